"""Pairs that are chosen but not yet made: what every builder gives, to be held in memory or written to a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from ipg.data.parallel import Progress, in_order
from ipg.data.table import ImageTable
from ipg.files import replacing
from ipg.pairs.checks import class_number
from ipg.pairs.pairset import PairSet
from ipg.pairs.record import claim
from ipg.pairs.references import References, name_of, to_rgb
from ipg.pairs.rows import DATA, NAMES, Manifest, Pair, check_parquet

__all__ = ["Plan", "file_name", "of_pair_set", "write"]

Result = TypeVar("Result")
Files = Mapping[str, Tensor]
"""New images, (C, H, W) of uint8, and masks, (H, W) of bool, by their names beside the manifest."""


@dataclass(frozen=True)
class Plan:
    """The rows of a manifest, and how to make the files that they name."""

    table: ImageTable
    pairs: tuple[Pair, ...]
    make: Callable[[int], Files]
    """The files of a pair by its number; the same ones whenever it is called."""
    parallel: bool = True
    """Whether several pairs may be made at once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the builder settled by itself, to be kept beside what it was told."""
    notes: tuple[str, ...] = ()
    """What to know of it, in sentences."""

    def __len__(self) -> int:
        return len(self.pairs)

    def pair_set(self) -> PairSet:
        """The pairs in memory."""
        references = References(Path(), self.table)
        members = [
            [files[name] if name in files else references.image(name) for name in (pair.first, pair.second)]
            for pair, files in zip(self.pairs, _in_order(self, self.make, range(len(self))), strict=True)
        ]
        return PairSet(
            first=torch.stack([first for first, _ in members]),
            second=torch.stack([second for _, second in members]),
            label=torch.tensor([class_number(pair.label, self.table.classes) for pair in self.pairs]),
            source=torch.tensor([references.sources(pair) for pair in self.pairs]),
            split=self.pairs[0].split,
            builder=self.pairs[0].builder,
        )


def of_pair_set(table: ImageTable, pairs: PairSet) -> Plan:
    """The plan of pairs that are in memory: members that are images of `table` are referred to, others become files."""
    rows = []
    files: list[dict[str, Tensor]] = []
    for number, (source, label) in enumerate(zip(pairs.source.tolist(), pairs.label.tolist(), strict=True)):
        new: dict[str, Tensor] = {}
        names: dict[str, str] = {}
        for member, images, row in zip(("first", "second"), (pairs.first, pairs.second), source, strict=True):
            if torch.equal(images[number], table.images[row]):
                names[member] = DATA + name_of(table, row)
            else:
                names[member] = file_name(pairs.split, number, member)
                new[names[member]] = images[number]
        made_of = tuple(dict.fromkeys(name_of(table, row) for row in source)) if new else ()
        pair = Pair(names["first"], names["second"], table.classes[label], pairs.split, pairs.builder, made_of=made_of)
        rows.append(pair)
        files.append(new)
    return Plan(table, tuple(rows), files.__getitem__)


def file_name(split: str, number: int, what: str) -> str:
    """What a new file of a pair is called."""
    return f"{'masks' if what == 'mask' else 'images'}/{split}-{number:05d}-{what}.png"


def write(
    plan: Plan,
    folder: Path,
    *,
    settings: Mapping[str, Any],
    parquet: bool = False,
    begun: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make the files of a plan that are not there yet, then its rows in the manifest of the folder.

    A folder holds pairs of both splits, each written by a plan of its own. Rows that are there stay, with their audit.

    Args:
        plan: of a builder.
        folder: where to.
        settings: what the plan was made from. Where the folder has pairs of that split made from others, it is refused.
        parquet: write the manifest as Parquet.
        begun: told how many pairs an earlier call has made, where it has made any.
        progress: told how many pairs are done.

    Raises:
        DataError: the folder holds something else.
    """
    if parquet:
        check_parquet()
    split = plan.pairs[0].split
    claim(folder, split, {**settings, **plan.settings}, _digest(plan.pairs))
    missing = [
        number for number, pair in enumerate(plan.pairs) if not all((folder / name).is_file() for name in pair.files)
    ]

    def make(number: int) -> None:
        for name, pixels in plan.make(number).items():
            if not (folder / name).is_file():
                _save(folder / name, pixels)

    made = sum(bool(pair.files) for pair in plan.pairs) - len(missing)
    if begun is not None and made:
        begun(made)
    for done, _ in enumerate(_in_order(plan, make, missing), len(plan) - len(missing) + 1):
        if progress is not None:
            progress(done, len(plan))
    manifest = Manifest(folder / NAMES[parquet], ())
    if any((folder / name).is_file() for name in NAMES):
        manifest = Manifest.read(folder)
    if not any(pair.split == split for pair in manifest.pairs):
        manifest = manifest.with_pairs([*manifest.pairs, *plan.pairs])
        manifest.write()
    return manifest


def _digest(pairs: tuple[Pair, ...]) -> str:
    return hashlib.sha256(repr([sorted(pair.cells().items()) for pair in pairs]).encode()).hexdigest()[:16]


def _save(path: Path, pixels: Tensor) -> None:
    image = Image.fromarray(pixels.numpy() if pixels.ndim == 2 else to_rgb(pixels).permute(1, 2, 0).numpy())
    with replacing(path) as temporary:
        try:
            image.save(temporary, format="PNG", compress_level=6 if pixels.ndim == 2 else 1)
        except OSError as error:
            if error.errno is not None:
                raise
            raise MemoryError from None  # all that can be wrong with an image of our own: zlib gets none


def _in_order(plan: Plan, work: Callable[[int], Result], rows: Iterable[int]) -> Iterator[Result]:
    return in_order(work, rows) if plan.parallel else map(work, rows)
