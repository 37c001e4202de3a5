"""NCM: its directions by hand, its steps against training on projected features, and both ends of the rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class
from ipg.methods.ncm import spurious_directions
from ipg.models import build_model, load_model, save_weights
from ipg.pairs.pairset import PairSet
from ipg.training.checkpoint import load_checkpoint, save_checkpoint
from ipg.training.loop import train
from ipg.training.materials import gather


class Double(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.double()


def network(toy: Any) -> nn.Sequential:
    """The toy's network for images of 2x1x3 pixels, all but its head frozen."""
    model = nn.Sequential(Double(), nn.Flatten(), *toy.network())
    model[:-1].requires_grad_(False)
    return model


def pair_set(n: int = 20) -> PairSet:
    generator = torch.Generator().manual_seed(5)
    first = torch.randint(256, (n, 2, 1, 3), generator=generator, dtype=torch.uint8)
    return PairSet(first, first.flip(1), torch.arange(n) % 3, torch.zeros(n, 2).long(), "train", "recolored")


def batch(toy: Any, number: int) -> Batch:
    drawn: Batch = toy.batch(number)
    return drawn._replace(image=drawn.image.unflatten(1, (2, 1, 3)))


def ncm(toy: Any, model: nn.Module, *, optimizer: Any = None, weights: str | None = "some.pth", rank: int = 2) -> Any:
    head = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or torch.optim.SGD(head, lr=0.1)
    config = RunConfig(method="ncm", weights=weights, options={"rank": rank})
    setup = Setup(model, optimizer, nn.CrossEntropyLoss(), config, pairs=toy, table=toy.table(), pair_set=pair_set())
    return method_class("ncm")(setup)


def test_directions_by_hand() -> None:
    """Differences of 3 along the first axis and of 1 along the second; the third is no one's."""
    first = torch.tensor([[3.0, 1.0, 5.0], [2.0, 2.0, 7.0]])
    second = torch.tensor([[0.0, 1.0, 5.0], [2.0, 1.0, 7.0]])
    assert spurious_directions(first, second, 1).abs().tolist() == [[1.0], [0.0], [0.0]]
    both = spurious_directions(first, second, 2)
    torch.testing.assert_close(both @ both.T, torch.diag(torch.tensor([1.0, 1.0, 0.0])))
    assert spurious_directions(first, second, 3).shape == (3, 2)  # there is no third
    assert spurious_directions(first, first, 3).shape == (3, 0)  # nor one where nothing differs


def test_the_mean_difference_counts() -> None:
    """Not centred: a shift that all pairs share is the first to go."""
    first = torch.tensor([[2.0, 0.1], [2.0, -0.1]])
    direction = spurious_directions(first, torch.zeros(2, 2), 1)
    assert direction.abs().tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("decay", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_it_is_training_on_projected_features(kind: Any, decay: float, toy: Any) -> None:
    """The projection explicit, the head unfolded: what weight decay makes of it is then the optimizer's matter."""
    model = network(toy)
    look = model[:-1]
    weight, bias = (value.detach().clone().requires_grad_() for value in model[-1].parameters())
    pairs = pair_set()
    _, _, right = torch.linalg.svd(look(pairs.first.float() / 255) - look(pairs.second.float() / 255))
    projection = torch.eye(5, dtype=torch.float64) - right[:2].T @ right[:2]
    theirs = kind([weight, bias], lr=0.05, weight_decay=decay)
    method = ncm(toy, model, optimizer=kind(model[-1].parameters(), lr=0.05, weight_decay=decay))
    for number in range(5):
        drawn = batch(toy, number)
        value = method.step(drawn)["task_loss"]
        loss = F.cross_entropy(look(drawn.image) @ projection @ weight.T + bias, drawn.label)
        assert value.item() == pytest.approx(loss.item(), abs=1e-10)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
    torch.testing.assert_close(model[-1].weight, weight.detach() @ projection, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(model[-1].bias, bias, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_rank_0_is_plain_training_bit_for_bit(kind: Any, toy: Any) -> None:
    ends = []
    for plain in (False, True):
        model = network(toy)
        optimizer = kind(model[-1].parameters(), lr=0.05)
        method = (
            toy.method("erm", model, optimizer=optimizer) if plain else ncm(toy, model, optimizer=optimizer, rank=0)
        )
        losses = [method.step(batch(toy, number))["task_loss"] for number in range(5)]
        ends.append(torch.cat([*(value.flatten() for value in model[-1].parameters()), torch.stack(losses)]))
    assert torch.equal(*ends)


def test_at_full_rank_both_colours_are_one(one_epoch: Any, make_table: Callable[..., ImageTable]) -> None:
    """On pixels, with recoloured pairs enough to span them: the head weighs both channels alike."""
    full = one_epoch("ncm", model="linear", pairs=100, options={"rank": 10_000})
    assert full.result["metrics"]["pair_disagreement"] == 0
    red, green = full.model.head.weight.unflatten(1, (2, -1)).unbind(dim=1)
    torch.testing.assert_close(red, green, atol=1e-5, rtol=0)
    images = make_table().images.float() / 255
    torch.testing.assert_close(full.model(images), full.model(images.flip(1)), atol=1e-4, rtol=0)
    plain = one_epoch("ncm", model="linear", pairs=100, options={"rank": 0})
    assert (plain.model(images) - plain.model(images.flip(1))).abs().max() > 0.01


def test_the_projection_is_grey_in_both_channels() -> None:
    """Of pairs (v, 0), (0, v) whose v span all pixels."""
    drawing = torch.eye(4)
    none = torch.zeros(4, 4)
    directions = spurious_directions(torch.cat([drawing, none], dim=1), torch.cat([none, drawing], dim=1), 8)
    image = torch.tensor([0.2, 0.9, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0])
    projected = image - image @ directions @ directions.T
    torch.testing.assert_close(projected, torch.tensor([0.1, 0.45, 0.2, 0.0]).repeat(2))


@pytest.mark.parametrize(
    ("frozen", "weights", "message"),
    [
        (False, "some.pth", "method 'ncm' trains a head on frozen features, and its features would change in training"),
        (True, None, "and its features are those of fresh, random weights: give it a network with weights and freeze"),
    ],
)
def test_what_is_refused(frozen: bool, weights: str | None, message: str, toy: Any) -> None:
    model = network(toy)
    model.requires_grad_(not frozen)
    model[-1].requires_grad_(True)
    with pytest.raises(ValueError, match=message):
        ncm(toy, model, weights=weights)


def test_the_command_says_what_to_give(one_epoch: Any) -> None:
    with pytest.raises(ValueError, match=r"e\.g\. --model vit_base_patch32_clip_224 --weights FILE --freeze .*linear"):
        one_epoch("ncm")  # a small network, not frozen
    with pytest.raises(ValueError, match="fresh, random weights"):
        one_epoch("ncm", freeze=True)


def test_frozen_features_of_weights(one_epoch: Any, tmp_path: Path) -> None:
    save_weights(tmp_path / "weights.safetensors", build_model("small_cnn", channels=2, classes=2))
    outcome = one_epoch("ncm", model="small_cnn", weights=str(tmp_path / "weights.safetensors"), freeze=True)
    assert 0 <= outcome.result["metrics"]["average"] <= 1


def test_no_step_waits_for_the_device(toy: Any, no_waiting: Any) -> None:
    model = network(toy)
    method = ncm(toy, model, optimizer=torch.optim.Adam(model[-1].parameters(), lr=0.01, fused=True))
    batches = [batch(toy, number) for number in range(3)]
    with no_waiting:
        values = [method.step(drawn) for drawn in batches]
    assert all(value.ndim == 0 and not value.requires_grad for value in values[0].values())


def test_a_state_goes_on_exactly(toy: Any, tmp_path: Path) -> None:
    def fresh() -> tuple[nn.Sequential, torch.optim.Optimizer, Any]:
        model = network(toy)
        optimizer = torch.optim.Adam(model[-1].parameters(), lr=0.01, weight_decay=0.1)
        return model, optimizer, ncm(toy, model, optimizer=optimizer)

    model, optimizer, method = fresh()
    for number in range(3):
        method.step(batch(toy, number))
    model2, optimizer2, method2 = fresh()
    method2.directions.zero_()  # what is kept must come from the state
    method2.weight.zero_()
    model2.load_state_dict(model.state_dict())
    optimizer2.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    save_checkpoint(tmp_path / "state", method.state_dict())
    method2.load_state_dict(load_checkpoint(tmp_path / "state"))
    for number in range(3, 6):
        assert method.step(batch(toy, number)) == method2.step(batch(toy, number))
    assert torch.equal(model[-1].weight, model2[-1].weight)


def test_a_run_is_read_back(make_table: Callable[..., ImageTable], tmp_path: Path) -> None:
    """What is saved is the folded head: a plain network gives what the run gave."""
    config = RunConfig(method="ncm", model="linear", epochs=1, batch=32, pairs=30, held_out_pairs=6, device="cpu")
    outcome = train(config, gather(config, table=make_table()), folder=tmp_path / "run")
    images: Tensor = make_table().images.float() / 255
    assert torch.equal(load_model(str(tmp_path / "run"))(images), outcome.model(images))
