"""Which iterations correct when k follows the disagreement: worked out by hand, and bit for bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ipg.guidance import Guidance, Pairs
from ipg.pace import LONGEST, FollowingPace, Pace, longest, next_pace


def follow(pace: Pace, disagreements: Sequence[float], iterations: int) -> list[int]:
    """The iterations that correct, when the corrections find `disagreements` one after the other."""
    found = iter(disagreements)
    corrected = []
    for iteration in range(iterations):
        if pace.due(iteration):
            corrected.append(iteration)
            pace.note(iteration, torch.tensor(next(found), dtype=torch.float32))
    return corrected


def following(alpha: float = 0.1, tau: float = 0.0) -> FollowingPace:
    return FollowingPace(alpha=alpha, tau=tau, like=torch.zeros(()))


class Switched:
    """Pairs whose members are the same image, and so agree, but at the draws that are named."""

    def __init__(self, toys: ModuleType, disagree: Sequence[int] = (), *, drawn: int = 0) -> None:
        self.toys, self.disagree, self.drawn = toys, disagree, drawn

    def draw(self) -> Pairs:
        far = self.drawn in self.disagree
        self.drawn += 1
        pairs = self.toys.pairs(32, seed=self.drawn, shift=0.0, dtype=torch.float32)
        return Pairs(5 * pairs.first, (-5 if far else 5) * pairs.first, pairs.label)


def fresh(toys: ModuleType, **options: Any) -> tuple[Any, Any, Guidance]:
    model = toys.mlp(dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, optimizer, Guidance(model, optimizer, margin=0.5, **options)


def run(toys: ModuleType, model: Any, guide: Guidance, pairs: Any, start: int, stop: int) -> list[float]:
    """Steps `start` to `stop`; what each correction found."""
    found = []
    for i in range(start, stop):
        x, y = toys.batch(seed=i, dtype=torch.float32)
        due = guide.due
        report = guide.step(lambda x=x, y=y: F.cross_entropy(model(x), y), pairs)
        found += [report.disagreement.item()] if due else []
    return found


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "most"),
    [(0.0, 16), (0.01, 16), (0.05, 16), (0.0625, 8), (0.1, 8), (0.2, 4), (0.25, 2), (0.49, 2), (0.5, 1), (0.99, 1)],
)
def test_the_largest_k_keeps_k_alpha_below_one(alpha: float, most: int) -> None:
    assert longest(alpha) == most
    assert most == LONGEST or 2 * most * alpha >= 1


@pytest.mark.parametrize(
    ("k", "disagreement", "tau", "expected"),
    [
        (1, 0.0, 0.0, 2),
        (4, 0.0, 0.0, 8),
        (8, 0.0, 0.0, 8),
        (8, 0.01, 0.0, 1),
        (1, 0.5, 0.0, 1),
        (2, 0.2, 0.2, 4),
        (2, 0.21, 0.2, 1),
        (2, math.nan, 0.2, 1),
    ],
)
def test_k_doubles_while_pairs_agree_and_falls_at_once(k: int, disagreement: float, tau: float, expected: int) -> None:
    assert next_pace(k, disagreement, tau=tau, most=8) == expected


@pytest.mark.parametrize(
    ("disagreements", "corrected"),
    [
        ([0.0] * 8, [0, 1, 3, 7, 15, 23, 31, 39]),  # the first k is 1; each k is set by the correction before
        ([0.5] * 40, list(range(40))),
        ([0.5, 0.5, 0.1] + [0.0] * 9, [0, 1, 2, 3, 4, 6, 10, 18, 26, 34]),
        ([0.0, 0.0, 0.0, 0.0, 0.25] + [0.0] * 9, [0, 1, 3, 7, 15, 23, 24, 26, 30, 38]),  # found at 15, told at 23
    ],
    ids=["agreed", "disagreed", "came to agree", "rose"],
)
def test_by_hand(disagreements: Sequence[float], corrected: list[int]) -> None:
    assert follow(following(), disagreements, 40) == corrected


def test_a_disagreement_that_equals_tau_is_not_above_it() -> None:
    """0.3 in single precision lies above 0.3."""
    assert float(torch.tensor(0.3)) > 0.3
    assert follow(following(tau=0.3), [0.3] * 4, 12) == [0, 1, 3, 7]
    assert follow(following(tau=0.3), [0.31] * 12, 12) == list(range(12))


def test_a_fixed_pace_hears_nothing() -> None:
    pace = Pace(3)
    assert follow(pace, [0.5] * 4, 12) == [0, 3, 6, 9]
    assert pace.state_dict() == {}


# -- in a guidance -----------------------------------------------------------------------------------------------------


def test_while_all_pairs_disagree_it_is_every_iteration_bit_for_bit(toys: ModuleType) -> None:
    model, optimizer, guide = fresh(toys, every="auto")
    twin, its_optimizer, its_guide = fresh(toys, every=1)
    found = run(toys, model, guide, Switched(toys, range(30)), 0, 30)
    assert len(found) == 30
    assert min(found) > 0
    assert found == run(toys, twin, its_guide, Switched(toys, range(30)), 0, 30)
    assert torch.equal(toys.bits(model), toys.bits(twin))
    assert torch.equal(toys.state_bits(optimizer), toys.state_bits(its_optimizer))


@pytest.mark.parametrize(("alpha", "most"), [(0.1, 8), (0.3, 2), (0.6, 1)])
def test_corrections_are_never_rarer_than_the_bound_allows(toys: ModuleType, alpha: float, most: int) -> None:
    model, _, guide = fresh(toys, every="auto", alpha=alpha)
    pairs = Switched(toys)
    gaps, since, drawn = set(), 0, 0
    for i in range(60):
        run(toys, model, guide, pairs, i, i + 1)
        since += 1
        if pairs.drawn > drawn:
            gaps.add(since)
            since, drawn = 0, pairs.drawn
    assert max(gaps) == most


def test_k_returns_to_one_after_a_rise(toys: ModuleType) -> None:
    model, _, guide = fresh(toys, every="auto")
    pairs = Switched(toys, [4])
    found = run(toys, model, guide, pairs, 0, 24)  # corrections at 0, 1, 3, 7, 15 and 23
    assert [value > 0 for value in found] == [False, False, False, False, True, False]
    assert guide.pace.k == 1
    assert guide.due


def test_it_goes_on_from_any_iteration_with_the_same_bits(toys: ModuleType, tmp_path: Any) -> None:
    model, optimizer, guide = fresh(toys, every="auto")
    pairs, saved = Switched(toys, [2, 5, 6]), []
    for i in range(30):
        torch.save(guide.state_dict(), tmp_path / f"{i}.pt")
        saved.append((copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), pairs.drawn))
        run(toys, model, guide, pairs, i, i + 1)
    assert 8 < pairs.drawn < 20
    for i, (weights, moments, drawn) in enumerate(saved):
        other, its_optimizer, its_guide = fresh(toys, every="auto")
        other.load_state_dict(weights)
        its_optimizer.load_state_dict(moments)
        its_guide.load_state_dict(torch.load(tmp_path / f"{i}.pt", weights_only=True))
        its_pairs = Switched(toys, [2, 5, 6], drawn=drawn)
        run(toys, other, its_guide, its_pairs, i, 30)
        assert torch.equal(toys.bits(other), toys.bits(model)), i
        assert its_pairs.drawn == pairs.drawn
        assert its_guide.state_dict()["pace"] == guide.state_dict()["pace"]


def test_states_without_a_pace_still_load(toys: ModuleType) -> None:
    """Those of a fixed `every`, and of all runs before k could follow: it begins anew, at once."""
    model, _, fixed = fresh(toys, every=4)
    run(toys, model, fixed, Switched(toys), 0, 6)
    assert "pace" not in fixed.state_dict()
    model, _, guide = fresh(toys, every="auto")
    guide.load_state_dict(fixed.state_dict())
    assert (guide.iteration, guide.pace.k, guide.due) == (6, 1, True)
    run(toys, model, guide, Switched(toys), 6, 10)
    other = fresh(toys, every=4)[2]
    other.load_state_dict(guide.state_dict())
    assert [other.iteration, other.due] == [10, False]


def test_a_run_that_goes_on_with_a_larger_alpha_is_within_its_bound_at_once(toys: ModuleType) -> None:
    """The k that is saved belonged to an alpha of 0.05, with which 16 is allowed; with 0.3 it is 2."""
    model, _, before = fresh(toys, every="auto", alpha=0.05)
    run(toys, model, before, Switched(toys), 0, 18)
    assert before.pace.k == 16
    guide = fresh(toys, every="auto", alpha=0.3)[2]
    guide.load_state_dict(before.state_dict())
    assert guide.pace.k == 2
    assert guide.due


def test_alpha_and_tau_may_change_between_steps(toys: ModuleType) -> None:
    """The bound is that of the alpha in force, and so is what counts as agreement that of tau."""
    model, _, guide = fresh(toys, every="auto", alpha=0.05)
    run(toys, model, guide, Switched(toys), 0, 18)
    assert guide.pace.k == 16
    guide.alpha = 0.3
    run(toys, model, guide, Switched(toys), 18, 40)
    assert guide.pace.k == 2
    guide.tau = 1.0
    run(toys, model, guide, Switched(toys, range(40)), 40, 50)
    assert guide.pace.k == 2  # as before, though all pairs disagree
    guide.tau = 0.0
    run(toys, model, guide, Switched(toys, range(40)), 50, 56)
    assert guide.pace.k == 1


def test_what_a_graph_has_made_counts_as_a_step(toys: ModuleType) -> None:
    """The host's part alone leads to the same iterations."""
    model, _, guide = fresh(toys, every="auto")
    its_guide = fresh(toys, every="auto")[2]
    pairs = Switched(toys, [2])
    for i in range(20):
        assert its_guide.due == guide.due
        run(toys, model, guide, pairs, i, i + 1)
        its_guide.correction.values.copy_(guide.correction.values)
        its_guide.replayed()
    assert its_guide.state_dict()["pace"] == guide.state_dict()["pace"]
    assert its_guide.iteration == 20
