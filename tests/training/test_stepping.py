"""Means that are summed on the device, and pairs that are fed from outside the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from ipg.collectives import Peers
from ipg.config import RunConfig
from ipg.data.augment import Augmentation
from ipg.data.batches import Batches
from ipg.pairs.pairset import PairSampler, PairSet
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep, Means, PairFeed


def test_means_against_numpy() -> None:
    """Steps of two kinds, as `every` makes them: some report more than others."""
    generator = np.random.default_rng(0)
    means = Means()
    seen: dict[str, list[float]] = {"loss": [], "extra": []}
    for step in range(50):
        values = {"loss": generator.normal()} | ({"extra": generator.normal()} if step % 3 == 0 else {})
        for name, value in values.items():
            seen[name].append(value)
        means.add({name: torch.tensor(value) for name, value in values.items()})
    found = means.numbers()
    assert set(found) == set(seen)
    for name, values in seen.items():
        assert found[name] == pytest.approx(np.mean(values), rel=1e-5)


def test_means_of_any_dtype() -> None:
    means = Means()
    for yes in (True, True, False, True):
        means.add({"share": torch.tensor(yes), "count": torch.tensor(2), "wide": torch.tensor(0.5).double()})
    assert means.numbers() == {"share": 0.75, "count": 2.0, "wide": 0.5}


def test_a_reset_forgets_and_keeps_its_tensors() -> None:
    means = Means()
    assert means.numbers() == {}
    means.add({"loss": torch.tensor(3.0)})
    (kept,) = means._sums.values()
    means.reset()
    assert means.numbers() == {}
    means.add({"loss": torch.tensor(5.0)})
    assert means.numbers() == {"loss": 5.0}
    assert next(iter(means._sums.values())) is kept  # a captured graph adds to it


def test_not_a_number_is_not_hidden() -> None:
    means = Means()
    means.add({"loss": torch.tensor(float("nan"))})
    means.add({"loss": torch.tensor(1.0)})
    assert np.isnan(means.numbers()["loss"])


def test_means_go_on_from_a_state() -> None:
    means, resumed = Means(), Means()
    means.add({"loss": torch.tensor(1.0), "more": torch.tensor(4.0)})
    means.add({"loss": torch.tensor(2.0)})
    resumed.load_state_dict({name: total.clone() for name, total in means.state_dict().items()})
    for one in (means, resumed):
        one.add({"loss": torch.tensor(6.0)})
    assert resumed.numbers() == means.numbers() == {"loss": 3.0, "more": 4.0}


class Two(Peers):
    """Another process whose sums are three times as large."""

    def __init__(self) -> None:
        super().__init__(alone=True)
        self.size = 2

    def mean_(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor *= 2


def test_means_over_processes_leave_the_sums_alone() -> None:
    """Or what an epoch comes to would depend, by rounding, on how often somebody has looked."""
    means = Means()
    means.add({"loss": torch.tensor(1.0)})
    before = {name: total.clone() for name, total in means.state_dict().items()}
    for _ in range(2):
        assert means.over(Two()).state_dict()["loss"].tolist() == [2.0, 2.0]
    assert all(torch.equal(total, before[name]) for name, total in means.state_dict().items())
    assert means.over(Peers(alone=True)) is means


def test_what_is_fed_is_drawn(materials: Callable[[RunConfig], Materials], settings: Callable[..., RunConfig]) -> None:
    pairs = materials(settings("ipg")).pairs
    assert pairs is not None
    feed, sampler = PairFeed(PairSampler(pairs, 5, seed=3)), PairSampler(pairs, 5, seed=3)
    place = feed._rows.data_ptr()
    for _ in range(4):
        feed.feed()
        expected = sampler.draw()
        for _ in range(2):  # drawing draws nothing new
            found = feed.draw()
            assert torch.equal(found.first, expected.first)
            assert torch.equal(found.second, expected.second)
            assert torch.equal(found.label, expected.label)
    assert feed._rows.data_ptr() == place


class Recorder:
    """In the place of a method: notes what it is given."""

    due = False

    def __init__(self) -> None:
        self.labels: list[list[int]] = []

    def step(self, batch: Any) -> dict[str, torch.Tensor]:
        self.labels.append(batch.label.tolist())
        return {"task_loss": torch.tensor(float(len(batch.label)))}


def test_pairs_are_fed_only_when_due(
    materials: Callable[[RunConfig], Materials], settings: Callable[..., RunConfig]
) -> None:
    given = materials(settings("ipg"))
    assert given.pairs is not None
    batches = Batches(given.table.part("train"), 32, seed=0)
    sampler = PairSampler(given.pairs, 5)
    method, means = Recorder(), Means()
    step = EagerStep(method, batches, PairFeed(sampler), means)  # type: ignore[arg-type]
    rows = list(batches.rows(0))
    untouched = sampler.state_dict()["position"]
    step(rows[0])
    assert sampler.state_dict()["position"] == untouched
    method.due = True
    step(rows[3])
    assert sampler.state_dict()["position"] != untouched
    assert method.labels == [batches.table.label[rows[0]].tolist(), batches.table.label[rows[3]].tolist()]
    assert means.numbers() == {"task_loss": (32 + 24) / 2}


def test_both_members_are_seen_through_one_view() -> None:
    """Members that are equal before are equal after, and not what they were."""
    images = torch.randint(0, 256, (6, 2, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    source = torch.zeros(6, 2, dtype=torch.int64)
    twins = PairSet(images, images.clone(), torch.arange(6) % 2, source, "train", "test")
    feed = PairFeed(PairSampler(twins, 6), augmentation=Augmentation(crop=0.5, flip=True))
    torch.manual_seed(0)
    feed.feed()
    drawn = feed.draw()
    assert torch.equal(drawn.first, drawn.second)
    assert not torch.allclose(drawn.first, images.float() / 255, atol=0.05)
    again = feed.draw()
    assert not torch.equal(again.first, drawn.first)  # another view each time
