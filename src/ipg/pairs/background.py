"""Pairs by cutting and pasting: an object on another background, or a background under another object.

For data whose objects have masks, such as Waterbirds: the bird is laid on a background of the other kind, or, where the
background is the label (the reverse task), a bird of the other kind on the background. What is pasted comes from a
*donor*, an image of the same split and of another attribute; where the data has no attributes, of another class, and
where there is none, any other image: of a few the one whose colour differs most where the members are to differ, since
class and shortcut need not go together. An object that is in the way is removed first (`inpaint`).
Edges are soft, and take their colour from inside the object, so that no rim of the old background comes along.

The first member is the image as it is. Compositing leaves traces, though, and a network may learn that pasted images
are of one kind. With `traces="both"` the first member is composed too: both members have the same hole filled, under
both objects, and differ in the one thing alone that is swapped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.data.errors import DataError
from ipg.data.parallel import in_order
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
FEW = 8
"""Donors to choose from where there is no attribute to go by."""
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
    too, without attributes the most unlike of a few, and none is used again before all have been. With one seed, fewer
    pairs are the beginning of more.

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
    chosen, donors = _choose(table, count, split, seed, lambda row: _color(table, masks, keep, row))
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


def _choose(
    table: ImageTable, count: int, split: str, seed: int, color_of: Callable[[int], Tensor]
) -> tuple[Tensor, str]:
    """Rows of images and donors, (count, 2), and what the donors are."""
    generator = torch.Generator().manual_seed(seed)
    rows = table.indices(split)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    donors = rows[torch.randperm(len(rows), generator=generator)]
    column, kind = _told_apart(table, rows)
    if kind == ANY_OTHER:
        if len(rows) < 2:
            raise ValueError(f"{table.name} has {number_of(len(rows), f'{split} image')}: there is nothing to swap")
        side = torch.zeros_like(table.label)
        side[rows[1::2]] = 1  # every other image is a donor to the rest
        return _unlike(deal({split: rows}, count), donors, side, color_of), kind
    group = table.group[rows]
    by_group = {table.group_names[number]: rows[group == number] for number in sorted(set(group.tolist()))}
    if kind == OTHER_CLASS:
        return _unlike(deal(by_group, count), donors, table.label, color_of), kind
    others = {value: donors[column[donors] != value] for value in sorted(set(column[rows].tolist()))}
    for value, found in others.items():
        if len(found) == 0:
            raise ValueError(
                f"{table.name} has no {split} image that is not {table.attributes[value]!r}: there is nothing to swap"
            )
    chosen = deal(by_group, count)
    given = torch.empty_like(chosen)
    for value, found in others.items():
        takers = torch.nonzero(column[chosen] == value).flatten()
        given[takers] = found[torch.arange(len(takers)) % len(found)]
    return torch.stack([chosen, given], dim=1), kind


def _told_apart(table: ImageTable, rows: Tensor) -> tuple[Tensor, str]:
    """The column in which a donor is to differ, and what donors then are."""
    if len(table.attributes) > 1:
        return table.attribute, OTHER_ATTRIBUTE
    several = len(rows) > 0 and bool((table.label[rows] != table.label[rows[0]]).any())
    return table.label, OTHER_CLASS if several else ANY_OTHER


def _unlike(rows: Tensor, donors: Tensor, side: Tensor, color_of: Callable[[int], Tensor]) -> Tensor:
    """Each row with a donor of another side: of the next few the one whose colour differs most; the others wait."""
    others = {value: donors[side[donors] != value].tolist() for value in set(side[rows].tolist())}
    seen = dict.fromkeys([*rows.tolist(), *(row for found in others.values() for row in found[: FEW * len(rows)])])
    colors = dict(zip(seen, in_order(color_of, seen), strict=True))
    queues: dict[int, deque[int]] = {value: deque() for value in others}
    pairs = []
    for row in rows.tolist():
        queue = queues[int(side[row])]
        if not queue:
            queue.extend(others[int(side[row])])
        few = [queue.popleft() for _ in range(min(FEW, len(queue)))]
        apart = [float(torch.dist(colors[row], colors[donor])) for donor in few]
        pairs.append((row, few.pop(apart.index(max(apart)))))
        queue.extend(few)
    return torch.tensor(pairs)


def _color(table: ImageTable, masks: Masks, keep: Keep | str, row: int) -> Tensor:
    """The mean colour of what pasting swaps in an image, (C,); of all of it where its mask does not serve."""
    image = table.images[row].float()
    try:
        swapped = (masks(row) > 0.5) == (keep == "scene")
    except DataError:  # `plan` names it if the image is chosen
        swapped = torch.ones_like(image[0]).bool()
    return image[:, swapped].mean(dim=1) if bool(swapped.any()) else image.mean(dim=(1, 2))


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
            second = paste(own, own_mask, self._filled(other, hole, row, donor), feather)
            kept = grow(own_mask > 0.5, -rim)
        else:
            hole = both if self.traces == "both" else own_hole
            second = paste(other, other_mask, self._filled(own, hole, row, donor), feather)
            kept = ~grow(both, rim)
        first = paste(own, own_mask, fill(own, hole), feather) if self.traces == "both" else own
        return _to_bytes(first), _to_bytes(second), kept

    def _filled(self, image: Tensor, hole: Tensor, *rows: int) -> Tensor:
        """The image without what stands in the hole; DataError where the masks of the rows leave nothing to go by."""
        if not bool(hole.all()):
            return fill(image, hole)
        shares = {row: float((self.masks(row) > 0.5).float().mean()) for row in rows}
        name = self.masks.source.find(self.masks.listing.files[max(shares, key=lambda row: shares[row])])
        raise DataError(
            f"the mask {name} in {self.masks.source.place} is white all over, or nearly so, and leaves no ground to "
            f"fill the place of the object with; is --masks the folder of masks, white on the object and black "
            f"elsewhere?"
        )


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
