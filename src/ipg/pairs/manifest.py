"""Pairs on disk: a manifest, CSV or Parquet, a row a pair, with the images that are made for it beside it.

Columns: `first` and `second`, the two images; `label`, which they share, by name or number, by name alone where classes
are named by numbers; `split`, `train` to guide by or `validation` to hold out; `builder`; `score`, `status` (`ok`,
`rejected` or nothing yet) and `reason`, which an audit writes. An image is a file relative to the manifest's folder, or
`data:NAME`, an image of the data set.

Optional: `made_of`, the images of the data set that new members are made of, between `|`, first the one whose label
the pair keeps; `mask`, an image that is white where the members should agree; `label_first` and `label_second` where
the labels of the members were taken down one by one. Further columns are kept as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import PathLike

import torch
from torch import Tensor

from ipg.data.decode import Fit
from ipg.data.errors import DataError, ProblemsError
from ipg.data.parallel import in_order
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.pairs.checks import ANOTHER_SPLIT, class_number, problems_in
from ipg.pairs.pairset import PairSet
from ipg.pairs.record import read_record, size_of
from ipg.pairs.references import References
from ipg.pairs.rows import Manifest, Pair
from ipg.words import number_of

__all__ = ["Manifest", "Pair", "check_size", "check_usable", "load_pairs"]


def load_pairs(
    path: str | PathLike[str], table: ImageTable, *, split: str = "train", fit: Fit | None = None
) -> PairSet:
    """The pairs of a manifest that are of `split` and not rejected, at the size of `table` and on its classes.

    Args:
        path: the manifest, or the folder it is in.
        table: the data set that the pairs belong to.
        split: `train` to guide by, `validation` to hold out.
        fit: how files beside the manifest become square; as those of the data did where not given. Those of `ipg pairs
            build` are square.

    Returns:
        An empty set where no pair is of `split`.

    Raises:
        ProblemsError: members differ in label, an image is missing, unreadable, outside the folder or of another split
            than the pair's, a label is unknown; all of it is said at once.
        DataError: the manifest cannot be read, all of its pairs of `split` are rejected, or they were made of smaller
            images, which would be blurred beside those of the data.
    """
    manifest = Manifest.read(path)
    rows = _usable(manifest, split)
    check_size(manifest, [pair for _, pair in rows], split, table.images.shape[-1])
    references = References(manifest.folder, table, fit=fit)
    problems = problems_in(manifest, [row for row, _ in rows], references)
    problems = [*_of_another_draw(manifest, split, table, problems), *problems]
    pairs = [pair for _, pair in rows]
    shape = (len(pairs), *table.images.shape[1:])
    first, second = torch.empty(shape, dtype=torch.uint8), torch.empty(shape, dtype=torch.uint8)

    def fill(place: int) -> list[str]:
        """Read both members; returns what is wrong with them."""
        wrong = []
        for target, reference in ((first, pairs[place].first), (second, pairs[place].second)):
            try:
                target[place] = references.image(reference)
            except DataError as error:
                wrong.append(str(error))
        return wrong

    for (row, _), wrong in zip(rows, in_order(fill, range(len(pairs))), strict=True):
        problems += [f"{manifest.where(row)}: {reason}" for reason in wrong]
    if problems:
        raise ProblemsError(problems)
    _warn_of_same(manifest, split, first, second)
    return PairSet(
        first=first,
        second=second,
        label=torch.tensor([class_number(pair.label, table.classes) for pair in pairs], dtype=torch.int64),
        source=torch.tensor([references.sources(pair) for pair in pairs], dtype=torch.int64).view(-1, 2),
        split=split,
        builder="+".join(sorted({pair.builder for pair in pairs})),
    )


def _usable(manifest: Manifest, split: str) -> list[tuple[int, Pair]]:
    """The pairs of `split` that are not rejected, with their rows; DataError where all are."""
    chosen = [(row, pair) for row, pair in enumerate(manifest.pairs) if pair.split == split]
    rows = [(row, pair) for row, pair in chosen if pair.status != "rejected"]
    if chosen and not rows:
        raise DataError(
            f"{manifest.path}: all {len(chosen):,} pairs of {split} are rejected; `ipg pairs show` shows why"
        )
    return rows


def _warn_of_same(manifest: Manifest, split: str, first: Tensor, second: Tensor) -> None:
    """Tell of pairs without a difference: they teach nothing, and agree whatever a network does.

    Raises:
        DataError: none has one.
    """
    alike = (first == second).flatten(1).all(dim=1)
    if not (same := int(alike.sum())):
        return
    seen = f"show the same image twice at {first.shape[-1]} pixels"
    if same == len(first):
        raise DataError(
            f"{manifest.path}: all {same:,} pairs of {split} {seen}, and teach nothing: what their members differ in "
            f"is too small for that size, or cut off where files are made square"
        )
    warnings.warn(
        f"{manifest.path}: {same:,} of {number_of(len(first), 'pair')} of {split} {seen} and teach nothing; "
        f"`ipg pairs audit` rejects them",
        stacklevel=3,  # beyond `load_pairs`
    )


def check_usable(path: str | PathLike[str], side: int) -> None:
    """DataError as from `load_pairs`, where it shows without the images of the data, which are `side` pixels wide."""
    manifest = Manifest.read(path)
    for split in ("train", "validation"):
        check_size(manifest, [pair for _, pair in _usable(manifest, split)], split, side)


def check_size(manifest: Manifest, pairs: Sequence[Pair], split: str, side: int) -> None:
    """DataError where files were made smaller than the images that they are to be seen beside."""
    made = size_of(manifest.folder, split)
    if made is not None and made < side and any(pair.files for pair in pairs):
        raise DataError(
            f"{manifest.path}: the pairs are of images of {made} pixels, the network is to see {side}; build them "
            f"again with --size {side}, or take --size {made}"
        )


def _of_another_draw(manifest: Manifest, split: str, table: ImageTable, problems: Sequence[str]) -> Iterator[str]:
    """Why images are of another split, where the pairs were made when another seed drew it."""
    if table.drawn is None or not any(f": {ANOTHER_SPLIT}: " in problem for problem in problems):
        return
    with suppress(DataError):
        record = read_record(manifest.folder).get(split, {}).get("settings", {})
        if record and (then := Reading.kept(record).split_seed) != table.drawn:
            yield (
                f"{manifest.path}: the pairs were made with split_seed {then}, and the split of {table.name} is now "
                f"drawn by split_seed {table.drawn}: give --split-seed {then}, build the pairs again, or fix the split "
                f"by a column `split`"
            )
