"""Verdicts of a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipg.data.errors import ProblemsError
from ipg.pairs.by_eye import accept, is_accepted, reject
from ipg.pairs.findings import REASONS
from ipg.pairs.rows import Manifest, Pair


@pytest.fixture
def manifest() -> Manifest:
    pairs = [Pair(f"{n}.png", f"{n}-other.png", "disc", "train", score=0.5) for n in range(1, 5)]
    pairs[3] = replace(pairs[3], status="rejected", reason=f"{REASONS[-1]}: it looks like another")
    return Manifest(Path("pairs/manifest.csv"), tuple(pairs), (2, 3, 4, 5))


def test_pairs_are_counted_from_one(manifest: Manifest) -> None:
    judged = reject(manifest, [1, 3, 3])
    assert [pair.status for pair in judged.pairs] == ["rejected", "", "rejected", "rejected"]
    assert [pair.reason for pair in judged.pairs[:3]] == ["by eye", "", "by eye"]
    assert judged.pairs[1] == manifest.pairs[1]
    assert judged.lines == manifest.lines


@pytest.mark.parametrize("reason", REASONS)
def test_a_persons_reason_is_never_taken_for_one_of_the_audits(manifest: Manifest, reason: str) -> None:
    judged = reject(manifest, [2], reason=f" {reason} ")
    assert judged.pairs[1].reason == f"by eye: {reason}"
    assert not judged.pairs[1].reason.startswith(REASONS)


def test_what_anybody_rejected_can_be_accepted(manifest: Manifest) -> None:
    judged = accept(reject(manifest, [1]), [1, 4])
    assert [pair.status for pair in judged.pairs] == ["ok", "", "", "ok"]
    assert [is_accepted(pair) for pair in judged.pairs] == [True, False, False, True]
    assert not any(is_accepted(pair) for pair in reject(judged, [1, 4]).pairs)


def test_numbers_of_no_pair_are_all_named(manifest: Manifest) -> None:
    with pytest.raises(ProblemsError) as caught:
        reject(manifest, [5, 2, 0, -1])
    expected = [f"there is no pair {number}: {manifest.path} has 4 pairs" for number in (-1, 0, 5)]
    assert caught.value.problems == expected
