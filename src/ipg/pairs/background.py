"""Pairs by cutting and pasting: an object on another background, or a background under another object.

For data whose objects have masks, such as Waterbirds: the bird is laid on a background of the other kind, or, where the
background is the label (the reverse task), a bird of the other kind on the background. What is pasted comes from a
*donor*, an image of the same split and of another attribute; where the data has no attributes, of another class, and
where there is none, any other image. An object that is in the way is removed first (`inpaint`).
Edges are soft, and take their colour from inside the object, so that no rim of the old background comes along.

The first member is the image as it is. Compositing leaves traces, though, and a network may learn that pasted images
are of one kind. With `traces="both"` the first member is composed too: both members have the same hole filled, under
both objects, and differ in the one thing alone that is swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.data.table import ImageTable
from ipg.pairs.balance import deal
from ipg.pairs.inpaint import fill, grow, smooth
from ipg.pairs.masks import Keep, Masks, margin
from ipg.pairs.plan import Plan, file_name
from ipg.pairs.references import name_of
from ipg.pairs.rows import DATA, Pair
from ipg.words import number_of

__all__ = ["Traces", "paste", "plan"]

Traces = Literal["second", "both"]
"""Which members are composed."""
OTHER_ATTRIBUTE, OTHER_CLASS, ANY_OTHER = "images of another attribute", "images of another class", "any other image"
"""What donors are."""
FEATHER = 0.8
"""Standard deviation in pixels of 224 by which the edges of objects are softened."""


def plan(
    table: ImageTable,
    count: int,
    *,
    masks: Masks,
    keep: Keep | str = "object",
    traces: Traces | str = "second",
    split: str = "train",
    seed: int = 0,
) -> Plan:
    """Choose `count` images of `split` and a donor for each.

    Images are drawn without replacement and equally from the groups (label and attribute) that exist. Donors are drawn
    too, and none is used again before all have been. With one seed, fewer pairs are the beginning of more.

    Args:
        table: the data set, at the size of the pairs.
        count: how many pairs; not more than the split has images.
        masks: of its objects.
        keep: `object` swaps the background, `scene` the object.
        traces: `both` composes the first member too.
        split: whose images to use, for donors too.
        seed: of the draw.

    Raises:
        ProblemsError: masks that are needed are missing or do not fit.
    """
    for name, value, choices in (("keep", keep, get_args(Keep)), ("traces", traces, get_args(Traces))):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is unknown; there are {', '.join(choices)}")
    chosen, donors = _choose(table, count, split, seed)
    masks.check(chosen.flatten().tolist())
    maker = _Maker(table, masks, keep, traces)

    def pair(number: int, row: int, donor: int) -> Pair:
        first = file_name(split, number, "first") if traces == "both" else DATA + name_of(table, row)
        return Pair(
            first=first,
            second=file_name(split, number, "second"),
            label=table.classes[int(table.label[row])],
            split=split,
            builder="background",
            made_of=(name_of(table, row), name_of(table, donor)),
            mask=file_name(split, number, "mask"),
        )

    def make(number: int) -> dict[str, Tensor]:
        first, second, kept = maker(*chosen[number].tolist())
        files = {file_name(split, number, "second"): second, file_name(split, number, "mask"): kept}
        return files | ({file_name(split, number, "first"): first} if traces == "both" else {})

    pairs = tuple(pair(number, row, donor) for number, (row, donor) in enumerate(chosen.tolist()))
    if donors == OTHER_ATTRIBUTE:
        return Plan(table, pairs, make)
    note = f"{table.name} has no attribute: what is pasted comes from {donors}"
    return Plan(table, pairs, make, settings={"donors": donors}, notes=(note,))


def _choose(table: ImageTable, count: int, split: str, seed: int) -> tuple[Tensor, str]:
    """Rows of images and donors, (count, 2), and what the donors are."""
    generator = torch.Generator().manual_seed(seed)
    rows = table.indices(split)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    donors = rows[torch.randperm(len(rows), generator=generator)]
    column, kind = _told_apart(table, rows)
    if kind == ANY_OTHER:
        return _any_other(rows, count, table, split), kind
    group = table.group[rows]
    queues: dict[str, Tensor] = {}
    groups = sorted(set(group.tolist()))
    values = {number: int(column[rows[group == number][0]]) for number in groups}
    for number in groups:
        own, others = rows[group == number], donors[column[donors] != values[number]]
        if len(others) == 0:
            raise ValueError(
                f"{table.name} has no {split} image that is not {table.attributes[values[number]]!r}: there is nothing "
                f"to swap"
            )
        sharing = [other for other in groups if values[other] == values[number]]  # the same donors, in turn
        turn = torch.arange(len(own)) * len(sharing) + sharing.index(number)
        queues[table.group_names[number]] = torch.stack([own, others[turn % len(others)]], dim=1)
    return deal(queues, count), kind


def _told_apart(table: ImageTable, rows: Tensor) -> tuple[Tensor, str]:
    """The column in which a donor is to differ, and what donors then are."""
    if len(table.attributes) > 1:
        return table.attribute, OTHER_ATTRIBUTE
    several = len(rows) > 0 and bool((table.label[rows] != table.label[rows[0]]).any())
    return table.label, OTHER_CLASS if several else ANY_OTHER


def _any_other(rows: Tensor, count: int, table: ImageTable, split: str) -> Tensor:
    """Each of the rows, in their random order, with the one that follows it."""
    if len(rows) < 2:
        raise ValueError(f"{table.name} has {number_of(len(rows), f'{split} image')}: there is nothing to swap")
    return deal({split: torch.stack([rows, rows.roll(-1)], dim=1)}, count)


@dataclass(frozen=True)
class _Maker:
    """Makes the images of a pair."""

    table: ImageTable
    masks: Masks
    keep: str
    traces: str

    def __call__(self, row: int, donor: int) -> tuple[Tensor, Tensor, Tensor]:
        """Both members, (C, H, W) of uint8, and where they should agree, (H, W) of bool."""
        size = self.table.images.shape[-1]
        rim, feather = margin(size), FEATHER * size / 224
        own, other = (self.table.images[number].float() / 255 for number in (row, donor))
        own_mask, other_mask = self.masks(row), self.masks(donor)
        own_hole, other_hole = (grow(mask > 0.5, rim) for mask in (own_mask, other_mask))
        both = own_hole | other_hole
        if self.keep == "object":
            hole = both if self.traces == "both" else other_hole
            second = paste(own, own_mask, fill(other, hole), feather)
            kept = grow(own_mask > 0.5, -rim)
        else:
            hole = both if self.traces == "both" else own_hole
            second = paste(other, other_mask, fill(own, hole), feather)
            kept = ~grow(both, rim)
        first = paste(own, own_mask, fill(own, hole), feather) if self.traces == "both" else own
        return _to_bytes(first), _to_bytes(second), kept


def paste(image: Tensor, mask: Tensor, scene: Tensor, feather: float) -> Tensor:
    """Lay what `mask` (H, W) shows of `image` (C, H, W) on `scene` (C, H, W), with soft edges.

    Edge pixels are a mixture of object and old background; they take the colours of the object beside them.
    """
    solid = mask > 0.5
    core = grow(solid, -1)
    thin = solid & ~grow(core, 1)  # legs and beaks have no inside
    colors = smooth(image, core | thin)
    opacity = _blurred(mask, feather)
    return opacity * colors + (1 - opacity) * scene


def _blurred(mask: Tensor, deviation: float) -> Tensor:
    """The mask under a Gaussian."""
    reach = max(round(3 * deviation), 1)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation) ** 2)
    weights = weights / weights.sum()
    padded = F.pad(mask[None, None], (reach, reach, reach, reach), mode="replicate")
    return F.conv2d(F.conv2d(padded, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))[0, 0]


def _to_bytes(image: Tensor) -> Tensor:
    return (image * 255).round().clamp(0, 255).to(torch.uint8)
