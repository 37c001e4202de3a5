"""Guidance by several processes equals guidance by one on the same whole batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ipg.collectives import GlobalCrossEntropy, Peers, find_peers, shard
from ipg.guidance import Guidance, Pairs
from ipg.pairs.pairset import PairSampler

pytestmark = pytest.mark.usefixtures("one_thread")

Launch = Callable[[int, Sequence[str]], list[dict[str, Any]]]

FSDP = ["fsdp", "fsdp adam", "fsdp, root alone", "fsdp, plain", "fsdp, cooled"]
FLOAT32 = ["float32", "float32 adam"]
DOUBLE = [
    "sgd",
    "adam",
    "batch norm",
    "every third",
    "relative margin",
    "condition met",
    "jitter",
    "logits",
    "bare",
    "bare, plain",
    "static graph",
    "bucket views",
    "plain",
    "own backward",
    "bare, own backward",
    "sum of losses",
    "uneven",
    "uneven, bare",
    "fewer than processes",
]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def found(request: pytest.FixtureRequest, launch: Launch) -> list[dict[str, Any]]:
    """All cases in one launch: starting processes is what takes the time."""
    return launch(request.param, [*DOUBLE, *FSDP, *FLOAT32, "refused", "counted", "counted shards"])


def assert_equals_one_process(
    worker: ModuleType, found: Sequence[dict[str, Any]], name: str, *, tolerance: float
) -> None:
    """Hold parameters, state and reports of every process against those of one process alone."""
    alone = worker.run(worker.CASES[name])
    for one in found:
        torch.testing.assert_close(one[name]["parameters"], alone["parameters"], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(one[name]["guide"], alone["guide"], atol=tolerance, rtol=tolerance)
        assert one[name]["spread"] == 0.0, "the processes hold different parameters"
    for reports in zip(alone["reports"], *(one[name]["reports"] for one in found), strict=True):
        expected, *others = ({key: value for key, value in report.items() if key != "task_loss"} for report in reports)
        assert all(repr(other) == repr(others[0]) for other in others), "the processes report different numbers"
        assert others[0] == pytest.approx(expected, abs=tolerance, rel=tolerance, nan_ok=True)
        losses = [report.get("task_loss", math.nan) for report in reports]
        mean = sum(losses[1:]) / len(found)  # each reports its part
        assert mean == pytest.approx(losses[0], abs=tolerance, rel=tolerance, nan_ok=True)


def test_two_processes_equal_one(worker: ModuleType, launch: Launch) -> None:
    names = [
        *("every third", "uneven", "uneven, bare", "bare, plain", "relative margin", "jitter"),
        *("fsdp adam", "fsdp, cooled"),
    ]
    found = launch(2, names)
    for name in names:
        assert_equals_one_process(worker, found, name, tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOUBLE)
def test_many_processes_equal_one_in_float64(worker: ModuleType, found: list[dict[str, Any]], name: str) -> None:
    assert_equals_one_process(worker, found, name, tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOAT32)
def test_one_step_equals_in_float32(worker: ModuleType, found: list[dict[str, Any]], name: str) -> None:
    assert_equals_one_process(worker, found, name, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FSDP)
def test_sharded_parameters_equal_one_process(worker: ModuleType, found: list[dict[str, Any]], name: str) -> None:
    assert_equals_one_process(worker, found, name, tolerance=1e-10)


@pytest.mark.slow
def test_what_does_not_fit_together_is_refused_on_every_process(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert "do not agree on the number of pairs a process: 2, 3" in one["refused"]["lengths"]
        assert "do not agree on the parameters' norm" in one["refused"]["replicas"]
        assert "call fully_shard on the blocks before the head" in one["refused"]["head"]
        assert "4 pairs are not one of 1 shards of 8" in one["refused"]["alone"]


@pytest.mark.slow
def test_bytes_communicated_are_those_documented(found: list[dict[str, Any]], worker: ModuleType) -> None:
    features, pairs = 8, 8  # of each process
    for one in found:
        counts = one["counted"]
        parameters = counts["parameters"]["bytes"]
        weights = 4  # the sum of the weights of the task batch
        gathered = 4 * pairs * (2 * features + 2)
        plain = {"ddp": parameters, "all_reduce": weights}
        assert counts["erm"] == plain
        assert counts["between"] == plain, "between corrections nothing more than plain training is said"
        corrects = {"ddp": parameters, "all_reduce": weights + parameters, "all_gather": gathered}
        assert counts["corrects"] == corrects
        check = 8 * 3  # once: three numbers that the processes have to agree on
        assert counts["first"] == corrects | {"all_gather": gathered + check}


@pytest.mark.slow
def test_bytes_communicated_of_a_shared_network_are_those_documented(found: list[dict[str, Any]]) -> None:
    features, pairs, count = 64, 8, len(found)  # of each process
    for one in found:
        counts = one["counted shards"]
        sizes = counts["sizes"]
        held = {name: -(-shape[0] // count) * math.prod(shape[1:]) * width for name, (shape, width) in sizes.items()}
        blocks = sum(held[name] for name in held if name.startswith("body.layers."))
        rest = sum(held.values()) - blocks  # is gathered once, blocks twice
        weights, norm, gathered = 4, 4 * len(sizes), 4 * pairs * (2 * features + 2)
        plain = {"allgather": 2 * blocks + rest, "reducescatter": count * (blocks + rest), "allreduce": weights}
        assert counts["erm"] == plain
        assert counts["between"] == plain | {"allreduce": weights + norm}
        corrects = {"allgather": 2 * plain["allgather"] + gathered, "reducescatter": 2 * plain["reducescatter"]}
        assert counts["corrects"] == corrects | {"allreduce": weights + 2 * norm}
        check = 8 * 3  # once: three numbers that the processes have to agree on
        assert counts["first"]["allgather"] == corrects["allgather"] + check


# -- the parts, by one process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "count"), [(8, 2), (7, 2), (7, 4), (1, 4), (5, 3), (4, 1), (9, 4)])
def test_shards_put_together_are_the_batch_and_then_padding(n: int, count: int) -> None:
    rows = torch.arange(n)
    shards = [shard(rows, index, count) for index in range(count)]
    assert len({len(part) for part in shards}) == 1
    together = torch.cat(shards)
    assert together[:n].tolist() == rows.tolist()
    assert (together[n:] == n - 1).all()
    assert len(together) - n < count


def test_a_shard_of_pairs_knows_the_whole() -> None:
    images = torch.randn(5, 3)
    part = Pairs(images, images + 1, torch.arange(5)).shard(1, 2)
    assert part.label.tolist() == [3, 4, 4]
    assert part.total == 5
    assert part.to("cpu").total == 5


def test_samplers_of_one_seed_draw_the_shards_of_one_batch() -> None:
    images = torch.arange(10.0)[:, None]
    pairs = Pairs(images, images + 1, torch.arange(10))
    whole, *parts = (PairSampler(pairs, 5, seed=3, part=part) for part in ((0, 1), (0, 2), (1, 2)))
    for _ in range(4):
        batch, shards = whole.draw(), [part.draw() for part in parts]
        assert torch.cat([part.label for part in shards])[:5].tolist() == batch.label.tolist()
        assert [part.total for part in shards] == [5, 5]
        assert batch.total is None
    with pytest.raises(ValueError, match=r"part=\(2, 2\) is out of range"):
        PairSampler(pairs, 5, part=(2, 2))


def test_a_process_alone_exchanges_nothing() -> None:
    peers = Peers()
    rows = torch.randn(3, requires_grad=True)
    assert (peers.size, peers.index, peers.averages, peers.sharded) == (1, 0, False, False)
    assert peers.gather(rows) is rows
    assert peers.broadcast_(rows) is rows
    torch.testing.assert_close(peers.sum(rows), rows.detach())
    peers.mean_([rows])
    peers.check_same({"anything": 1.0}, device=rows.device)
    assert find_peers(None, None).size == find_peers(None, "auto").size == 1


@pytest.mark.parametrize("weight", [None, torch.tensor([0.2, 1.0, 3.0])])
def test_the_cross_entropy_of_one_process_is_torchs_own(weight: Tensor | None) -> None:
    logits, label = torch.randn(7, 3), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    assert torch.equal(GlobalCrossEntropy(weight)(logits, label), F.cross_entropy(logits, label, weight=weight))


def test_a_shard_is_refused_where_there_is_one_process(worker: ModuleType) -> None:
    case = worker.Case()
    model = worker.build(case)
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1))
    pairs = worker.data(case, 0)[2]
    with pytest.raises(ValueError, match=r"4 pairs are not one of 1 shards of 8"):
        guide.correct(pairs.shard(0, 2))
    guide.correct(pairs.shard(0, 1))
