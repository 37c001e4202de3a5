"""What is in a data set, what is wrong with it, and what that means for training."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from ipg.data.cache import UnreadableError
from ipg.data.decode import FORMATS
from ipg.data.doubts import alike, too_many_attributes, too_many_labels
from ipg.data.duplicates import identical, similar
from ipg.data.listing import Listing
from ipg.data.sources import Source
from ipg.data.splits import SPLITS
from ipg.data.table import ImageTable

__all__ = ["Finding", "Report", "check_files", "check_table"]

FEW = 100
"""Groups with fewer images give coarse accuracies."""
LOOKED_AT = 200
"""About how many files are asked for their size."""
MUCH = 0.3
"""The share of a longer side that is a lot to cut off; photographs of 4 to 3 lose a quarter."""
LEAST_GAP = 0.1
"""How much more frequent an attribute has to be in a class than in the others to be called a shortcut."""


ORDER = ("error", "warning", "note")
"""Of findings: the worst first."""


@dataclass(frozen=True)
class Finding:
    """One thing to know."""

    severity: Literal["error", "warning", "note"]
    """An error makes training impossible, a warning its figures doubtful."""
    name: str
    meaning: str
    """What it means for training, and what to do."""
    items: tuple[str, ...] = ()
    """The images or groups it is about."""


@dataclass(frozen=True)
class Report:
    """Counts and findings."""

    name: str
    shape: tuple[int, ...] | None
    """Of an image; None where they could not be decoded."""
    splits: tuple[str, ...]
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    counts: Tensor  # (splits, classes, attributes)
    findings: tuple[Finding, ...]
    impossible: frozenset[tuple[int, int]] = frozenset()
    """Classes and attributes, by number, that are no groups: attributes are of one label alone, and it has fewer."""

    @property
    def broken(self) -> bool:
        """Whether training is impossible."""
        return any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        rows = [
            {"split": split, "label": label, "attribute": attribute, "images": int(self.counts[s, k, a])}
            for s, split in enumerate(self.splits)
            for k, label in enumerate(self.classes)
            for a, attribute in enumerate(self.attributes)
            if (k, a) not in self.impossible
        ]
        findings = [asdict(finding) for finding in self.findings]
        total = int(self.counts.sum())
        return {"data": self.name, "images": total, "shape": self.shape, "broken": self.broken} | {
            "counts": rows,
            "findings": findings,
        }


def check_files(listing: Listing, *, size: int | None = None) -> Report:
    """Look at a data set of image files: decode all of them, count, and look for copies."""
    findings: list[Finding] = []
    table: ImageTable | None = None
    try:
        table = listing.table(size)
    except UnreadableError as error:
        items = tuple(f"{name}: {reason}" for name, reason in error.reasons.items())
        meaning = "Training refuses data with images that cannot be decoded: replace the files, or remove their rows."
        findings.append(Finding("error", "unreadable images", meaning, items))
    counts = _counts(listing, len(SPLITS))
    sizes = _sizes(listing)
    if size is None:
        findings += _about_size(listing.size, sizes)
    if listing.fit == "crop":
        findings += _about_edges(sizes)
    findings += _about_labels(listing)
    findings += _about_copies(listing, table)
    findings += _about_counts(counts, SPLITS, listing.classes, listing.attributes, nested=listing.nested)
    findings += [Finding("note", "as read", f"{note[0].upper()}{note[1:]}.") for note in listing.notes]
    shape = tuple(table.images.shape[1:]) if table is not None else None
    nowhere = torch.nonzero(counts.sum(dim=0) == 0).tolist() if listing.nested else []
    return Report(
        name=listing.name,
        shape=shape,
        splits=SPLITS,
        classes=listing.classes,
        attributes=listing.attributes,
        counts=counts,
        findings=tuple(sorted(findings, key=lambda finding: ORDER.index(finding.severity))),
        impossible=frozenset((label, attribute) for label, attribute in nowhere),
    )


def _sizes(listing: Listing) -> list[tuple[int, int]]:
    """Width and height of a few files from all over."""
    step = max(1, len(listing.files) // LOOKED_AT)
    return [found for name in listing.files[::step] if (found := _size(listing.source, name)) is not None]


def _about_size(side: int, sizes: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Whether most files are smaller than the images that are made of them."""
    sides = sorted(min(found) for found in sizes)
    if not sides or (middle := sides[len(sides) // 2]) >= side:
        return
    what = _most(sizes) or f"have sides of about {middle} pixels or less"
    meaning = f"Most files {what} and are enlarged to {side}: `--size {middle}` trains faster on them."
    yield Finding("note", "small images", meaning)


def _about_edges(sizes: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Whether much of most files lies outside the square in their middle."""
    lost = sorted(1 - min(found) / max(found) for found in sizes)
    if not lost or (middle := lost[len(lost) // 2]) < MUCH:
        return
    what = _most(sizes) or "are far from square"
    meaning = (
        f"Most files {what}: the square in their middle is kept, and {middle:.0%} of their length is cut off. If the "
        f"object or the shortcut lies there, pad the files to squares, those of pairs as well."
    )
    yield Finding("note", "edges cut off", meaning)


def _most(sizes: Sequence[tuple[int, int]]) -> str:
    """What most files are, where they are alike."""
    (width, height), count = Counter(sizes).most_common(1)[0]
    return f"are {width} by {height} pixels" if 2 * count > len(sizes) else ""


def _size(source: Source, name: str) -> tuple[int, int] | None:
    """Width and height of an image file; None where it cannot be read."""
    try:
        with Image.open(io.BytesIO(source.read(name)), formats=FORMATS) as image:
            return image.size
    except Exception:  # whatever Pillow's parsers stumble over; decoding says why
        return None


def check_table(table: ImageTable) -> Report:
    """Look at a data set that is no files of images: count."""
    counts = _counts(table, len(table.splits))
    findings = tuple(_about_counts(counts, table.splits, table.classes, table.attributes))
    shape = tuple(table.images.shape[1:])
    return Report(table.name, shape, table.splits, table.classes, table.attributes, counts, findings)


def _counts(rows: Listing | ImageTable, splits: int) -> Tensor:
    """Images by split, class and attribute."""
    shape = (splits, len(rows.classes), len(rows.attributes))
    key = (rows.split * shape[1] + rows.label) * shape[2] + rows.attribute
    return torch.bincount(key, minlength=splits * shape[1] * shape[2]).view(shape)


def _about_labels(listing: Listing) -> Iterator[Finding]:
    if (doubt := too_many_labels(listing)) is not None:
        yield Finding("error", "labels that cannot be learnt", f"{doubt[0].upper()}{doubt[1:]}: training refuses them.")
    if (doubt := too_many_attributes(listing)) is not None:
        yield Finding("warning", "nearly as many attributes as images", f"{doubt}.")
    if same := alike(listing.classes):
        meaning = "They differ in case or in spaces alone and count as classes of their own: give them one name."
        yield Finding("warning", "labels nearly alike", meaning, same)


def _about_copies(listing: Listing, table: ImageTable | None) -> Iterator[Finding]:
    same = identical(listing.source, listing.files)
    split, label = listing.split.tolist(), listing.label.tolist()

    def named(sets: Sequence[Sequence[int]]) -> tuple[str, ...]:
        return tuple(" = ".join(f"{listing.files[row]} ({SPLITS[split[row]]})" for row in rows) for rows in sets)

    if across := [rows for rows in same if len({split[row] for row in rows}) > 1]:
        meaning = "Accuracy there counts images that training has seen: remove them from one of the splits."
        yield Finding("warning", "images in two splits", meaning, named(across))
    if unlike := [rows for rows in same if len({label[row] for row in rows}) > 1]:
        meaning = "One of the labels is wrong, and no network can get both right: look at them."
        yield Finding("warning", "images with two labels", meaning, named(unlike))
    if within := [rows for rows in same if rows not in across and rows not in unlike]:
        yield Finding("note", "images that come twice", "They count as often as they are there.", named(within))
    if table is not None:
        alike = [rows for rows in similar(table.images) if len({split[row] for row in rows}) > 1]
        known = {frozenset(rows) for rows in same}
        if alike := [rows for rows in alike if frozenset(rows) not in known]:
            meaning = "They look the same, copies perhaps that were saved anew: look at them, as accuracy may flatter."
            yield Finding("warning", "images alike in two splits", meaning, named(alike))


def _about_counts(
    counts: Tensor, splits: Sequence[str], classes: Sequence[str], attributes: Sequence[str], *, nested: bool = False
) -> Iterator[Finding]:
    """What groups mean for training; those that are `nested` in labels cannot be compared between them."""

    def groups(mask: Tensor) -> tuple[str, ...]:
        named = len(attributes) > 1
        return tuple(classes[k] + (f", {attributes[a]}" if named else "") for k, a in torch.nonzero(mask).tolist())

    by_split = dict(zip(splits, counts, strict=True))
    train = by_split.get("train", torch.zeros_like(counts[0]))
    if not int(train.sum()):
        yield Finding("error", "no training image", "There is nothing to learn from.")
        return
    if missing := tuple(name for name, count in zip(classes, train.sum(dim=1).tolist(), strict=True) if not count):
        meaning = "A network cannot learn a class that it never sees: add images, or leave the class out."
        yield Finding("warning", "classes without a training image", meaning, missing)
    if len(attributes) == 1:
        meaning = (
            "Without an attribute there are no groups: the worst group is the worst class. Pairs work all the same."
        )
        yield Finding("note", "no group labels", meaning)
    else:
        if not nested:
            yield from _about_shortcut(train, classes, attributes)
        if empty := groups((train == 0) & (counts.sum(dim=0) > 0) if nested else train == 0):
            meaning = "Reweighting groups cannot help there; pairs can."
            yield Finding("note", "groups without a training image", meaning, empty)
    for name, meaning in (
        ("validation", "Selection by the worst group does not see them; `--selection pairs` needs no groups."),
        ("test", "How the network does there stays unknown."),
    ):
        part = by_split.get(name, torch.zeros_like(train))
        if not int(part.sum()):
            yield Finding("note", f"no {name} image", meaning.replace("there", "on new images"))
            continue
        if empty := groups((part == 0) & (counts.sum(dim=0) > 0)):
            yield Finding("note", f"groups without a {name} image", meaning, empty)
        few = (part > 0) & (part < FEW)
        if bool(few.any()):
            least = int(part[few].min())
            meaning = f"One image more or less right moves the accuracy of the smallest by {100 / least:.1f} points."
            yield Finding("note", f"small groups in {name}", meaning, groups(few))


def _about_shortcut(train: Tensor, classes: Sequence[str], attributes: Sequence[str]) -> Iterator[Finding]:
    """How much of the label the attribute gives away in training: where a class differs most from the others."""
    total, own = train.sum(dim=0, keepdim=True), train.sum(dim=1, keepdim=True)  # (1, A), (K, 1)
    here = train / own.clamp(min=1)
    elsewhere = (total - train) / (total.sum() - own).clamp(min=1)
    gap = torch.where(own > 0, here - elsewhere, 0.0)
    if float(gap.max()) < LEAST_GAP:
        return
    k, a = divmod(int((gap + 1e-3 * here).argmax()), len(attributes))  # of two that say the same the more frequent one
    perfect = torch.equal(train.max(dim=0).values, total[0])
    meaning = (
        f"In training {float(here[k, a]):.0%} of {classes[k]!r} are {attributes[a]!r}, of the other classes "
        f"{float(elsewhere[k, a]):.0%}" + (", and the attribute gives away every label" if perfect else "")
    )
    yield Finding("note", "perfect shortcut" if perfect else "shortcut", f"{meaning}: plain training may lean on it.")
