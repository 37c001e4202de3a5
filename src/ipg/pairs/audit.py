"""Look at every pair: score it, and reject it with a reason where it would teach something else than it should.

The paper names three ways in which edited pairs fail: the label has changed (hair), the shortcut has not (gender), or
more than it has. All three are looked for, by pixels, inside and outside the mask where a pair has one, and by the
opinions of whoever is asked; so are pairs that come twice, and images of another split than the pair's own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.data.duplicates import similar
from ipg.data.errors import DataError
from ipg.data.parallel import Progress
from ipg.data.table import ImageTable
from ipg.pairs.by_eye import is_accepted
from ipg.pairs.checks import ANOTHER_SPLIT
from ipg.pairs.findings import (
    BETTER,
    NOT_CHANGED,
    REASONS,
    THUMBNAIL,
    TOO_MUCH,
    TWICE,
    UNUSABLE,
    Finding,
    Limits,
    MaskOf,
    look,
    pixel_digest,
)
from ipg.pairs.opinions import Known, Opinions, Says
from ipg.pairs.references import References, name_of
from ipg.pairs.rows import Manifest, Pair
from ipg.rationale import double_precision

__all__ = ["audit", "summary"]

CHUNK = 32
"""Pairs that are held at once."""
PLACES, SAME_COLOR = 16, 30.0
"""Places to a side, and the difference in their mean colour, of 255, up to which they look the same. The same kind of
plain ground differs by up to 36 in drawings; real pairs by 57 or more in one place of twenty."""
MEASURES = ("distance", "distance_inside", "distance_outside", "features", "features_inside", "features_outside")
"""The columns that distances are written to."""


def audit(
    manifest: Manifest,
    table: ImageTable | None = None,
    *,
    label_of: Says | Known | None = None,
    attribute_of: Says | Known | None = None,
    others_of: Says | Known | None = None,
    features_of: Says | Known | None = None,
    limits: Limits | None = None,
    mask_of: MaskOf | None = None,
    size: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Judge every pair of a manifest.

    Args:
        manifest: the pairs. Rows that somebody rejected for a reason of their own stay rejected, and those that
            somebody accepted by eye stay accepted unless they cannot be used.
        table: the data set they belong to; without it splits and labels are not looked at.
        label_of: the class of images, (n, C, H, W) of uint8 to (n,), or numbers by reference. It has to see the label
            alone: a network that leans on the shortcut rejects the good pairs.
        attribute_of: the same for the value of the shortcut.
        others_of: the same for further attributes, (n, A), which a pair should keep.
        features_of: the same for features, (n, D).
        limits: from where on a pair is rejected.
        mask_of: masks for pairs that name none.
        size: of images where there is no `table`.
        progress: told how many pairs are done.

    Returns:
        The manifest with score, status, reason and the distances measured; it is not written.

    Raises:
        DataError: numbers by reference are of none of the members.
    """
    opinions, limits = Opinions(label_of, attribute_of, others_of, features_of), limits or Limits()
    _check_known(manifest, opinions)
    references = References(manifest.folder, table, size=size)
    findings: list[Finding] = []
    thumbnails = torch.zeros(len(manifest), 2, references.shape[0], THUMBNAIL, THUMBNAIL, dtype=torch.uint8)
    for start in range(0, len(manifest), CHUNK):
        chunk = manifest.pairs[start : start + CHUNK]
        findings += look(chunk, references, opinions, limits, mask_of)
        _compare_colors(findings[start:], references, limits, mask_of)
        _collect(findings, thumbnails, start)
        if progress is not None:
            progress(len(findings), len(manifest))
    if table is not None:
        _find_copies(findings, table)
    _compare_features(findings, limits)
    scores = [_score(finding) for finding in findings]
    _keep_best(findings, scores)
    _find_twice(findings, thumbnails, manifest)
    judged = [_judged(finding, score) for finding, score in zip(findings, scores, strict=True)]
    return manifest.with_pairs(judged)


def summary(manifest: Manifest) -> Counter[str]:
    """How many pairs were rejected for each first reason, how many are `ok`, and how many `not judged`."""
    return Counter(
        pair.reason.split(";")[0].partition(":")[0].strip() or "rejected"
        if pair.status == "rejected"
        else pair.status or "not judged"
        for pair in manifest.pairs
    )


def _check_known(manifest: Manifest, opinions: Opinions) -> None:
    """DataError where numbers are given by reference, and none by that of a member: nothing would be looked at."""
    members = {name for pair in manifest.pairs for name in (pair.first, pair.second)}
    for one in fields(opinions):
        known = getattr(opinions, one.name)
        if members and known is not None and not callable(known) and members.isdisjoint(known):
            given, member = next(iter(known), None), manifest.pairs[0].first
            raise DataError(f"{one.name}_of knows no member of {manifest.path}: it has {given!r}, the pairs {member!r}")


def _compare_colors(
    findings: Sequence[Finding], references: References, limits: Limits, mask_of: MaskOf | None
) -> None:
    """Members whose ground is of one colour all over, though a little noise on it keeps SSIM from seeing it."""
    for finding in findings:
        apart = finding.measured.get("distance_outside", math.nan)
        if finding.thumbnails is None or not limits.changed <= apart <= limits.kept:
            continue
        mask = references.mask(finding.pair.mask) if finding.pair.mask else mask_of(finding.pair) if mask_of else None
        most = math.nan if mask is None else _color_apart(finding.thumbnails, mask)
        if most <= SAME_COLOR and not any(reason.startswith(NOT_CHANGED) for reason in finding.reasons):
            finding.reasons.append(f"{NOT_CHANGED}: colours differ by {most:.0f} of 255 at most where they should")


def _color_apart(members: Tensor, mask: Tensor) -> float:
    """The largest difference in colour between places that lie outside the mask; NaN where none does."""
    small = F.adaptive_avg_pool2d(members.float(), PLACES)  # (2, C, p, p)
    outside = F.adaptive_max_pool2d(mask.float()[None], PLACES)[0] == 0
    apart = (small[0] - small[1]).square().mean(dim=0).sqrt()[outside]
    return float(apart.max()) if len(apart) else math.nan


def _collect(findings: Sequence[Finding], thumbnails: Tensor, start: int) -> None:
    """Move thumbnails to their rows of one tensor: each by itself would keep memory around it from being given back."""
    for row in range(start, len(findings)):
        if (found := findings[row].thumbnails) is not None:
            thumbnails[row] = found
            findings[row].thumbnails = None


def _find_copies(findings: Sequence[Finding], table: ImageTable) -> None:
    """Files that are pixel by pixel an image of another split."""
    wanted: dict[tuple[str, bytes], list[Finding]] = {}
    for finding in findings:
        for digest in finding.digests:
            wanted.setdefault((finding.pair.split, digest), []).append(finding)
    splits = {split for split, _ in wanted}
    for row in range(len(table)) if wanted else ():
        own = table.splits[int(table.split[row])]
        if others := splits - {own}:
            digest = pixel_digest(table.images[row])
            for finding in [finding for split in others for finding in wanted.get((split, digest), ())]:
                finding.reasons.append(f"{ANOTHER_SPLIT}: a member is a copy of {name_of(table, row)}, of {own}")


def _compare_features(findings: Sequence[Finding], limits: Limits) -> None:
    """Distances in features, as a share of those between images that have nothing to do with each other."""
    for masked in (False, True):
        chosen = [finding for finding in findings if finding.masked == masked and finding.features is not None]
        for finding, share in _shares(chosen, [finding.features for finding in chosen]):
            finding.measured["features_inside" if masked else "features"] = share
            if share > limits.features:
                finding.reasons.append(f"{TOO_MUCH}: its members are {share:.2f} times as far apart as strangers")
    chosen = [finding for finding in findings if finding.outside is not None]
    for finding, share in _shares(chosen, [finding.outside for finding in chosen]):
        finding.measured["features_outside"] = share


def _shares(findings: Sequence[Finding], features: Sequence[Tensor | None]) -> Iterator[tuple[Finding, float]]:
    points = [double_precision(pair.flatten(1)) for pair in features if pair is not None]  # (2, D) each
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0)).tolist()
    apart = [
        float(torch.dist(points[one][0], points[other][0]))
        for one, other in zip(order, order[1:] + order[:1], strict=True)
        if findings[one].pair.first != findings[other].pair.first
    ]
    typical = sorted(apart)[len(apart) // 2] if apart else 0.0
    if typical > 0:
        for finding, pair in zip(findings, points, strict=True):
            yield finding, float(torch.dist(pair[0], pair[1])) / typical


def _score(finding: Finding) -> float | None:
    """How much of what should stay has stayed, by the best measure there is."""
    measured = finding.measured
    lost = next((measured[name] for name in ("distance_inside", "features", "distance") if name in measured), math.nan)
    return None if math.isnan(lost) else min(max(1 - lost, 0.0), 1.0)


def _keep_best(findings: Sequence[Finding], scores: Sequence[float | None]) -> None:
    """Of the candidates that one image was edited to, the best that passed."""
    best: dict[str, int] = {}
    for row, finding in enumerate(findings):
        if finding.pair.builder == "edited" and not finding.reasons:
            other = best.setdefault(finding.pair.first, row)
            if (scores[row] or 0) > (scores[other] or 0):
                best[finding.pair.first] = row
    for row, finding in enumerate(findings):
        if finding.pair.builder == "edited" and not finding.reasons and best[finding.pair.first] != row:
            finding.reasons.append(BETTER)


def _find_twice(findings: Sequence[Finding], thumbnails: Tensor, manifest: Manifest) -> None:
    """Pairs whose members look like those of a pair before them."""
    seen = [row for row, finding in enumerate(findings) if not finding.reasons]  # what cannot be seen has a reason
    if not seen:
        return
    looks = {member: number for number, rows in enumerate(similar(thumbnails[seen].flatten(0, 1))) for member in rows}
    before: dict[frozenset[object], int] = {}
    for place, row in enumerate(seen):
        pair = findings[row].pair
        members = zip((2 * place, 2 * place + 1), (pair.first, pair.second), strict=True)
        other = before.setdefault(frozenset(looks.get(member, name) for member, name in members), row)
        if other != row:
            findings[row].reasons.append(f"{TWICE}: it looks like {manifest.where(other)}")


def _judged(finding: Finding, score: float | None) -> Pair:
    pair = finding.pair
    by_hand = pair.status == "rejected" and not pair.reason.startswith(REASONS)
    reasons = [pair.reason] if by_hand else finding.reasons
    if is_accepted(pair):
        reasons = [reason for reason in reasons if reason.startswith(UNUSABLE)]
    measured = {name: "" if math.isnan(value) else f"{value:.4f}" for name, value in finding.measured.items()}
    return replace(
        pair,
        score=score,
        status="rejected" if by_hand or reasons else "ok",
        reason="; ".join(reasons) or (pair.reason if is_accepted(pair) else ""),
        extra={name: text for name, text in pair.extra.items() if name not in MEASURES} | measured,
    )
