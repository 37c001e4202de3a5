"""DAIR: its loss by hand, its copies, and what plain images make of it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.methods.dair import Dair, recolored_copy
from ipg.training.checkpoint import load_checkpoint, save_checkpoint


def colored(toy: Any, number: int, *, n: int = 9) -> Batch:
    """The toy's batch as images of two channels and 1x3 pixels."""
    batch: Batch = toy.batch(number, n=n)
    return batch._replace(image=batch.image.unflatten(1, (2, 1, 3)))


def seeing(toy: Any) -> nn.Sequential:
    """The toy's network for such images."""
    return nn.Sequential(nn.Flatten(), *toy.network())


def test_the_loss_by_hand(toy: Any) -> None:
    """Logits (ln 3, 0) and, swapped, (0, ln 3), of label 0: losses ln 4/3 and ln 4."""
    image = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64).expand(2, 2)[:, :, None, None]
    zero = torch.zeros(2, dtype=torch.long)
    method = toy.method("dair", nn.Sequential(nn.Flatten(), toy.mirror()), options={"augment": "swap", "weight": 3})
    values = method.step(Batch(image, zero, zero, zero, zero))
    plain, other = math.log(4 / 3), math.log(4)
    difference = (math.sqrt(plain) - math.sqrt(other)) ** 2
    assert values["difference"].item() == pytest.approx(difference, abs=1e-6)  # 1e-7 under the roots
    assert values["task_loss"].item() == pytest.approx(0.5 * (plain + other) + 3 * difference, abs=1e-6)
    assert values["task_loss"].item() == pytest.approx(2.0698, abs=1e-4)


@pytest.mark.parametrize("augment", ["random", "swap"])
def test_a_step_is_one_on_that_loss(toy: Any, augment: Any) -> None:
    model = seeing(toy)
    plain = copy.deepcopy(model)
    method = toy.method("dair", model, options={"augment": augment, "weight": 2})
    for number in range(3):
        batch = colored(toy, number)
        torch.manual_seed(number)
        values = method.step(batch)
        torch.manual_seed(number)
        copies = recolored_copy(batch.image, augment)
        total = torch.zeros((), dtype=torch.float64)
        for x, other, y in zip(batch.image, copies, batch.label, strict=True):
            one, two = (F.cross_entropy(plain(image[None]), y[None]) for image in (x, other))
            total = total + (one + two) / 2 + 2 * ((one + 1e-7) ** 0.5 - (two + 1e-7) ** 0.5) ** 2
        gradients = torch.autograd.grad(total / 9, list(plain.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        assert values["task_loss"].item() == pytest.approx(total.item() / 9, abs=1e-12)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_images_without_colour_make_it_plain_training(toy: Any) -> None:
    """Both channels alike: the swapped copy is the image, and its loss the same, whatever the weight."""
    model, plain = seeing(toy), seeing(toy)
    method, erm = toy.method("dair", model, options={"augment": "swap", "weight": 5}), toy.method("erm", plain)
    for number in range(4):
        batch = colored(toy, number)
        grey = batch._replace(image=batch.image.mean(dim=1, keepdim=True).expand(-1, 2, -1, -1))
        method.step(grey)
        erm.step(grey)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_without_a_weight_it_is_plain_training_on_images_and_copies(toy: Any) -> None:
    model, plain = seeing(toy), seeing(toy)
    batch = colored(toy, 0)
    toy.method("dair", model, options={"augment": "swap", "weight": 0}).step(batch)
    both = batch._replace(image=torch.cat([batch.image, batch.image.flip(1)]), label=batch.label.repeat(2))
    toy.method("erm", plain).step(both)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_the_mean_over_processes_is_the_loss_of_the_whole_batch(toy: Any) -> None:
    class Two:
        size = 2

        def sum(self, count: torch.Tensor) -> torch.Tensor:
            return torch.full_like(count, 9)

    batch = colored(toy, 0)
    losses = []
    for piece, peers in ((slice(9), None), (slice(5), Two()), (slice(5, 9), Two())):
        method = toy.method("dair", seeing(toy), options={"augment": "swap"})
        method.peers = peers or method.peers
        losses.append(method.step(Batch(*(column[piece] for column in batch)))["task_loss"].item())
    assert sum(losses[1:]) / 2 == pytest.approx(losses[0], abs=1e-12)


def test_swapped_copies_wear_the_other_colour() -> None:
    image = torch.rand(3, 2, 4, 4)
    assert torch.equal(recolored_copy(image, "swap"), image[:, [1, 0]])


@pytest.mark.parametrize("channels", [2, 3])
def test_random_copies_are_grey_times_a_number_for_each_channel(channels: int) -> None:
    grey = torch.rand(200, 4, 4) + 0.1
    image = torch.zeros(200, channels, 4, 4)
    image[torch.arange(200), torch.arange(200) % channels] = grey  # one channel is lit
    strength = recolored_copy(image, "random") / grey[:, None]
    torch.testing.assert_close(strength, strength[:, :, :1, :1].expand_as(strength))
    drawn = strength[:, :, 0, 0]  # (200, C)
    assert drawn.min() >= 0
    assert drawn.max() < 1.0001
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.05)
    assert len(drawn.unique()) > 199 * channels  # for each image and each channel another


@pytest.mark.parametrize(
    ("augment", "channels", "message"),
    [
        ("random", 1, "dair with augment=random recolours images of 2 or 3 channels, and these have 1: take another"),
        ("swap", 3, "dair with augment=swap recolours images of 2 channels, and these have 3: take augment=random"),
    ],
)
def test_images_that_cannot_be_recoloured(toy: Any, augment: Any, channels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recolored_copy(torch.zeros(2, channels, 4, 4), augment)
    table = replace(toy.table(), images=torch.zeros(12, channels, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=message):  # before the first step
        toy.method("dair", seeing(toy), table=table, options={"augment": augment})


@pytest.mark.parametrize("augment", ["random", "swap"])
def test_no_step_waits_for_the_device(toy: Any, no_waiting: Any, augment: str) -> None:
    method, batch = toy.method("dair", seeing(toy), options={"augment": augment}), colored(toy, 0)
    with no_waiting:
        values = method.step(batch)
    assert all(value.ndim == 0 and not value.requires_grad for value in values.values())


def test_it_says_that_it_changes_colours_alone(toy: Any) -> None:
    said = "dair changes the colours of images alone, which helps where they are the shortcut"
    assert Dair.remark(RunConfig(method="dair"), toy.table()) == said
    assert Dair.remark(RunConfig(method="dair"), replace(toy.table(), name="colored_mnist_dair")) is None


def test_there_is_no_state(toy: Any, tmp_path: Path) -> None:
    """What copies are drawn from is the device's own generator, which the loop keeps."""
    method = toy.method("dair", seeing(toy))
    save_checkpoint(tmp_path / "state", method.state_dict())
    assert load_checkpoint(tmp_path / "state") == {}


@pytest.mark.parametrize("augment", ["random", "swap"])
def test_an_epoch_of_the_one_loop(one_epoch: Any, augment: str) -> None:
    outcome = one_epoch("dair", options={"augment": augment, "weight": 10})
    assert math.isfinite(outcome.rows[0]["train"]["difference"])
