"""What can be said of a pair by itself: distances between its members, and what others say of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.data.errors import DataError
from ipg.data.parallel import in_order
from ipg.pairs.checks import ANOTHER_SPLIT, LABELS_DIFFER, UNKNOWN_LABEL, UNREADABLE, problems_of
from ipg.pairs.distances import look_alike, perceptual
from ipg.pairs.opinions import Known, Opinions, Says, answers
from ipg.pairs.references import References
from ipg.pairs.rows import DATA, Pair
from ipg.rationale import double_precision

__all__ = [
    "BETTER", "LABEL_CHANGED", "NOT_CHANGED", "REASONS", "THUMBNAIL", "TOO_MUCH", "TWICE", "UNUSABLE", "Finding",
    "Limits", "MaskOf", "look", "pixel_digest",
]  # fmt: skip

LABEL_CHANGED = "label changed"
NOT_CHANGED = "shortcut not changed"
TOO_MUCH = "too much else changed"
TWICE = "pair comes twice"
BETTER = "a better candidate is kept"
UNUSABLE = (UNREADABLE, UNKNOWN_LABEL, LABELS_DIFFER, ANOTHER_SPLIT)
"""Why pairs are rejected whatever anybody thinks of them."""
REASONS = (*UNUSABLE, LABEL_CHANGED, NOT_CHANGED, TOO_MUCH, BETTER, TWICE)
"""Why pairs are rejected; details follow a colon."""
MaskOf = Callable[[Pair], Tensor | None]
"""Where the members of a pair should agree, (H, W) of bool; None where nobody knows."""
THUMBNAIL = 32
GREY = 128
"""What is put in the place of what is not compared."""


@dataclass(frozen=True)
class Limits:
    """From where on a pair is rejected. Perceptual distances are 1 - SSIM."""

    kept: float = 0.45
    """Most distance where the members should agree."""
    changed: float = 0.1
    """Least distance where they may differ."""
    features: float = 1.0
    """Most distance in features, as a share of the median between images of other pairs."""
    others: float = 0.25
    """Largest share of other attributes that may differ."""


@dataclass
class Finding:
    """What has been found out about a pair so far."""

    pair: Pair
    reasons: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    thumbnails: Tensor | None = None  # (2, C, 32, 32), uint8
    features: Tensor | None = None  # (2, D), of what should agree
    outside: Tensor | None = None  # (2, D), of what may differ
    masked: bool = False
    digests: tuple[bytes, ...] = ()
    """Of the pixels of members that are files."""


def look(
    pairs: Sequence[Pair], references: References, opinions: Opinions, limits: Limits, mask_of: MaskOf | None
) -> list[Finding]:
    """What can be said of each of the pairs by itself."""

    def one(pair: Pair) -> tuple[Finding, Tensor | None, Tensor | None]:
        finding = Finding(pair, problems_of(pair, references))
        try:
            members = torch.stack([references.image(pair.first), references.image(pair.second)])
            mask = references.mask(pair.mask) if pair.mask else mask_of(pair) if mask_of is not None else None
        except DataError as error:
            finding.reasons.append(f"{UNREADABLE}: {error}")
            return finding, None, None
        finding.digests = tuple(
            pixel_digest(member)
            for member, name in zip(members, (pair.first, pair.second), strict=True)
            if not name.startswith(DATA)
        )
        _measure(finding, members, mask, limits)
        _compare_attributes(finding, references)
        return finding, members, mask

    found = list(in_order(one, pairs))
    seen = [(finding, members, mask) for finding, members, mask in found if members is not None]
    if seen:
        _ask(seen, opinions, limits)
    return [finding for finding, _, _ in found]


def pixel_digest(image: Tensor) -> bytes:
    """What the pixels of an image are known by."""
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()


def _measure(finding: Finding, members: Tensor, mask: Tensor | None, limits: Limits) -> None:
    """Distances between the pixels of the members."""
    first, second = members
    finding.thumbnails = F.adaptive_avg_pool2d(members.float(), THUMBNAIL).round().to(torch.uint8)
    same = look_alike(first, second)
    if mask is None:
        finding.measured["distance"] = perceptual(first, second)
    else:
        finding.masked = True
        inside, outside = perceptual(first, second, mask), perceptual(first, second, ~mask)
        finding.measured |= {"distance_inside": inside, "distance_outside": outside}
        if inside > limits.kept:
            finding.reasons.append(f"{TOO_MUCH}: distance {inside:.2f} where the members should agree")
        if outside < limits.changed and not same:
            finding.reasons.append(f"{NOT_CHANGED}: distance {outside:.2f} where the members should differ")
    if same:
        finding.reasons.append(f"{NOT_CHANGED}: the members look the same")


def _compare_attributes(finding: Finding, references: References) -> None:
    """Members that are images of the data set have its attributes."""
    table, pair = references.table, finding.pair
    if table is None or not (pair.first.startswith(DATA) and pair.second.startswith(DATA)):
        return
    first, second = (int(table.attribute[row]) for row in references.sources(pair))
    if first == second and len(table.attributes) > 1:
        finding.reasons.append(f"{NOT_CHANGED}: both are {table.attributes[first]}")


def _ask(seen: Sequence[tuple[Finding, Tensor, Tensor | None]], opinions: Opinions, limits: Limits) -> None:
    """Opinions on the members of several pairs."""
    findings = [finding for finding, _, _ in seen]
    images = torch.cat([members for _, members, _ in seen])  # first, second, first, second, …

    def both(opinion: Says | Known | None, pixels: Tensor = images) -> Iterator[tuple[Finding, Tensor, Tensor]]:
        """Each pair with what is said of its members, where something is said of both."""
        if opinion is None:
            return
        names = [name for finding in findings for name in (finding.pair.first, finding.pair.second)]
        said = answers(opinion, names, pixels)
        for finding, first, second in zip(findings, said[::2], said[1::2], strict=True):
            if first is not None and second is not None:
                yield finding, first, second

    for finding, first, second in both(opinions.label):
        if not torch.equal(first, second):
            finding.reasons.append(f"{LABEL_CHANGED}: its members are taken for two classes")
    for finding, first, second in both(opinions.attribute):
        if torch.equal(first, second):
            finding.reasons.append(f"{NOT_CHANGED}: its members are taken for the same kind")
    for finding, first, second in both(opinions.others):
        if (share := float(double_precision(first != second).mean())) > limits.others:
            finding.reasons.append(f"{TOO_MUCH}: {share:.0%} of the other attributes differ")
    if callable(opinions.features) and any(finding.masked for finding in findings):
        inside = torch.stack([torch.ones_like(images[0, 0]).bool() if mask is None else mask for *_, mask in seen])
        inside = inside.repeat_interleave(2, dim=0)[:, None]  # (2n, 1, H, W)
        for finding, first, second in both(opinions.features, torch.where(inside, images, GREY)):
            finding.features = torch.stack([first, second])
        for finding, first, second in both(opinions.features, torch.where(inside, GREY, images)):
            finding.outside = torch.stack([first, second]) if finding.masked else None
        return
    for finding, first, second in both(opinions.features):
        finding.features = torch.stack([first, second])
