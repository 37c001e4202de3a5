"""The plain loops compute what ours compute: loops are compared only where they do."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from ipg.benchmarks import plain
from ipg.benchmarks.plain import Pictures
from ipg.guidance import Guidance, Pairs
from ipg.models import ConvNet

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")
CPU = torch.device("cpu")
SETTINGS = {"alpha": 0.1, "margin": 0.1, "floor": 1e-3}


@pytest.fixture
def model() -> ConvNet:
    return ConvNet(2, 3, widths=(16, 16), strides=(1, 2)).double()


@pytest.fixture
def batch() -> list[torch.Tensor]:
    return [torch.rand(6, 2, 8, 8, dtype=torch.float64), torch.arange(6) % 3]


@pytest.mark.parametrize("tau", [0.0, 1.0], ids=["violated", "met"])
def test_the_guided_loop_is_ours(model: ConvNet, batch: list[torch.Tensor], tau: float) -> None:
    pairs = [torch.rand(5, 2, 8, 8, dtype=torch.float64) for _ in range(2)] + [torch.arange(5) % 2]
    theirs, ours = model, deepcopy(model)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5, momentum=0.9) for one in (theirs, ours)]
    guide = Guidance(ours, optimizers[1], tau=tau, **SETTINGS)
    images, labels = batch
    for _ in range(3):
        report = guide.step(lambda: F.cross_entropy(ours(images), labels), Pairs(*pairs))
        loss, accuracy = plain.ipg_step(theirs, optimizers[0], batch, pairs, CPU, tau=tau, **SETTINGS)
        assert bool(report.violated) is (tau == 0 or float(report.disagreement) >= tau)
        assert loss == pytest.approx(float(report.task_loss))
        assert 0 <= accuracy <= 1
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_plain_training_is_plain_training(model: ConvNet, batch: list[torch.Tensor]) -> None:
    theirs, ours = model, deepcopy(model)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (theirs, ours)]
    loss, accuracy = plain.erm_step(theirs, optimizers[0], batch, CPU)
    images, labels = batch
    logits = ours(images)
    expected = F.cross_entropy(logits, labels)
    expected.backward()
    optimizers[1].step()
    assert loss == expected.item()
    assert accuracy == (logits.argmax(1) == labels).float().mean().item()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(one, other)


def test_pictures_are_the_images() -> None:
    images = torch.randint(0, 256, (3, 2, 5, 5), dtype=torch.uint8)
    data = Pictures(images, torch.tensor([2, 0, 1]))
    assert len(data) == 3
    for index, (image, label) in enumerate([data[0], data[1], data[2]]):
        assert torch.equal(image, images[index].float() / 255)
        assert label == (2, 0, 1)[index]


def test_batches_are_full_and_never_end() -> None:
    drawn = plain.draw(TensorDataset(torch.arange(5)), batch=2, workers=0)
    batches = [next(drawn)[0] for _ in range(6)]
    assert all(len(batch) == 2 for batch in batches)
    assert len(set(torch.cat(batches[:2]).tolist())) == 4
