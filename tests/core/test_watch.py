"""Updates that are never made are told, whoever skips them."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ipg.guidance import Guidance, NonFiniteError
from ipg.watch import CORRECTIVE, SKIP_PATIENCE, TASK, Watch, count_collapse, count_norm


def run(
    toys: ModuleType, iterations: int, *, enabled: bool = True, bad_pairs: bool = False, bad_task: bool = False
) -> Guidance:
    """Iterations with a NaN among the images of the pairs, of the task, or of neither."""
    model = toys.mlp(dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guide = Guidance(model, optimizer, scaler=torch.amp.GradScaler("cpu", enabled=enabled))
    pairs, (x, y) = toys.pairs(dtype=torch.float32), toys.batch(dtype=torch.float32)
    pairs.first[0, 0] = math.nan if bad_pairs else 0
    x[0, 0] = math.nan if bad_task else 0
    for _ in range(iterations):
        guide.step(lambda: F.cross_entropy(model(x), y), pairs)
    return guide


def test_a_disabled_scaler_skips_nothing(toys: ModuleType) -> None:
    guide = run(toys, 3, enabled=False, bad_task=True)
    with pytest.raises(NonFiniteError, match="NaN or infinite gradient at iteration 1"):
        guide.check()


@pytest.mark.parametrize(
    ("which", "kind"), [({"bad_pairs": True}, "corrective"), ({"bad_task": True}, "task")], ids=["pairs", "task"]
)
def test_updates_that_are_skipped_for_long_are_told(toys: ModuleType, which: dict[str, Any], kind: str) -> None:
    """Each kind is counted for itself: the updates of the other kind go through."""
    run(toys, SKIP_PATIENCE - 1, **which).check()
    guide = run(toys, SKIP_PATIENCE, **which)
    assert guide.skipped.item() == SKIP_PATIENCE
    with pytest.raises(
        NonFiniteError, match=rf"the last 50 {kind} updates .* were skipped.*at iteration 1\).*a NaN in the"
    ):
        guide.check()


def test_updates_must_be_skipped_in_a_row() -> None:
    watch, bad, good = Watch(torch.device("cpu")), torch.tensor(math.inf), torch.tensor(1.0)
    for _ in range(3):
        for _ in range(SKIP_PATIENCE - 1):
            count_norm(watch.counters, bad, CORRECTIVE)
            count_norm(watch.counters, good, TASK)
        count_norm(watch.counters, good, CORRECTIVE)
    watch.check(skips=True)
    assert watch.non_finite.item() == 3 * (SKIP_PATIENCE - 1)
    assert watch.counters.tolist()[CORRECTIVE:] == [0, 0]


def test_a_distance_that_overflows_hides_no_growth() -> None:
    """As the first corrections of an fp16 run may have it; a small head that grows afterwards has not collapsed."""
    watch, near, flat = Watch(torch.device("cpu")), torch.tensor(True), torch.tensor(False)
    for separation in (1.0, math.inf, 2.0, 3.0):
        count_collapse(watch.counters, watch.widest, torch.tensor(separation), near, flat)
    assert watch.widest.item() == 3.0
    assert watch.counters[3] == 0


def test_states_with_fewer_counters_are_read() -> None:
    watch = Watch(torch.device("cpu"))
    count_norm(watch.counters, torch.tensor(math.nan), TASK)
    watch.load_state_dict({"counters": torch.tensor([7, 3, 2, 1])})
    assert watch.counters.tolist() == [7, 3, 2, 1, 0, 0]
    other = Watch(torch.device("cpu"))
    other.load_state_dict(watch.state_dict())
    assert torch.equal(other.counters, watch.counters)
