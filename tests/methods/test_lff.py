"""Learning from Failure against its algorithm written out in loops, with two networks and plain numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ipg
from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class
from ipg.models import HEAD_STD, build_model, renew_head, save_weights
from ipg.rationale import find_head
from ipg.seeds import derive_seed
from ipg.training.assembly import Assembly
from ipg.training.distributed import Team
from ipg.training.materials import gather


def part(toy: Any, number: int, *rows: int) -> Batch:
    """Rows of the toy's table with images of their own."""
    row = torch.tensor(rows)
    label = toy.table().label[row]
    image = toy.batch(number, n=len(row)).image
    return Batch(image, label, label, torch.zeros_like(label), row)


BATCHES = [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (0, 2, 4, 6, 8, 10), (1, 0, 11)]


@pytest.mark.parametrize("options", [{}, {"amplification": 0.4, "memory": 0.9}])
def test_against_loops(toy: Any, options: dict[str, float]) -> None:
    model = toy.network()
    method = toy.method("lff", model, options=options)
    debiased, biased = copy.deepcopy(model), copy.deepcopy(method.biased.model)
    q, keep = options.get("amplification", 0.7), options.get("memory", 0.7)
    remembered: list[dict[int, float]] = [{}, {}]
    labels = toy.table().label.tolist()
    for number, rows in enumerate(BATCHES):
        batch = part(toy, number, *rows)
        values = method.step(batch)
        losses: list[list[torch.Tensor]] = []
        for network, memory in zip((biased, debiased), remembered, strict=True):
            logits = network(batch.image)
            each = [torch.log(torch.exp(o).sum()) - o[y] for o, y in zip(logits, batch.label.tolist(), strict=True)]
            for row, loss in zip(rows, each, strict=True):
                new = loss.item()
                memory[row] = keep * memory[row] + (1 - keep) * new if row in memory else new
            losses.append(each)
        easy = hard = torch.zeros((), dtype=torch.float64)
        for i, row in enumerate(rows):
            largest = [max(v for r, v in memory.items() if labels[r] == labels[row]) for memory in remembered]
            b, d = (memory[row] / most for memory, most in zip(remembered, largest, strict=True))
            easy = easy + q * math.exp(-losses[0][i].item()) ** q * losses[0][i] / len(rows)
            hard = hard + b / (b + d + 1e-8) * losses[1][i] / len(rows)
        for network, loss in ((biased, easy), (debiased, hard)):
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
        assert values["task_loss"].item() == pytest.approx(hard.item(), abs=1e-12)
    for one, other in ((model, debiased), (method.biased.model, biased)):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_weights_by_hand(toy: Any) -> None:
    """Rows 0 and 3 have one label. Biased losses 1 and 4, debiased 2 and 2: relative 1/4 and 1, 1 and 1."""
    method = toy.method("lff", toy.network())
    batch = part(toy, 0, 0, 3)
    weight = method._weight(torch.tensor([[1.0, 4.0], [2.0, 2.0]], dtype=torch.float64), batch)
    assert weight.tolist() == pytest.approx([0.2, 0.5], abs=1e-7)
    # again, with biased losses of 11 and 4: 0.7 · 1 + 0.3 · 11 = 4, as large as the other
    weight = method._weight(torch.tensor([[11.0, 4.0], [2.0, 2.0]], dtype=torch.float64), batch)
    assert weight.tolist() == pytest.approx([0.5, 0.5], abs=1e-7)
    assert method.memory[:, [0, 3]].tolist() == [[pytest.approx(4), pytest.approx(4)], [2.0, 2.0]]
    assert method.seen.nonzero().flatten().tolist() == [0, 3]


def test_losses_of_zero_have_a_weight(toy: Any) -> None:
    weight = toy.method("lff", toy.network())._weight(torch.zeros(2, 2, dtype=torch.float64), part(toy, 0, 0, 3))
    assert weight.tolist() == [0.0, 0.0]


def test_two_equal_networks_make_half_a_step_of_plain_training(toy: Any) -> None:
    """Then every weight is 1/2, up to the 1e-8 below the line."""
    model, plain = toy.network(), toy.network()
    method = toy.method("lff", model, rate=0.2)
    method.biased.model.load_state_dict(model.state_dict())
    batch = part(toy, 0, *range(12))
    values = method.step(batch)
    toy.method("erm", plain, rate=0.1).step(batch)
    assert values["weight"].item() == pytest.approx(0.5, abs=1e-6)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=0)


def test_the_second_network_is_drawn_from_the_seed_alone(toy: Any) -> None:
    model = toy.network()

    def weights(**settings: Any) -> torch.Tensor:
        method = toy.method("lff", model, **settings)
        return torch.cat([parameter.detach().flatten() for parameter in method.biased.model.parameters()])

    before = torch.get_rng_state()
    first = weights()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(weights(), first)
    assert not torch.equal(weights(seed=1), first)
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert not (first == own).any()


def test_a_pretrained_second_network_keeps_all_but_its_head(toy: Any) -> None:
    model = toy.network()
    second = toy.method("lff", model, weights="pretrained").biased.model
    assert torch.equal(second[0].weight, model[0].weight)
    assert second[0].weight.data_ptr() != model[0].weight.data_ptr()
    assert not torch.equal(second[2].weight, model[2].weight)


@pytest.fixture
def networks(make_table: Callable[..., ImageTable]) -> Callable[..., tuple[nn.Module, nn.Module]]:
    """The two networks, B and D, that a run begins with on images of three channels and 32 pixels."""
    table = make_table()
    images = nn.functional.pad(table.images, (12, 12, 12, 12, 0, 1))

    def make(**settings: Any) -> tuple[nn.Module, nn.Module]:
        config = RunConfig(method="lff", held_out_pairs=0, engine="eager", precision="fp32", **settings)
        materials = gather(config, table=replace(table, images=images))
        method: Any = Assembly(config, materials, torch.device("cpu"), (), Team()).method
        return method.biased.model, method.setup.model

    return make


def drawn(make: Callable[[], nn.Module], seed: int = 0) -> dict[str, Tensor]:
    """What `make` draws from the seed of the second network."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "biased network"))
        return dict(make().state_dict())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "name", ["mnist_cnn", "small_vit", "irm_mlp", "bcos_small_cnn", "xdnn_test_resnet", "test_vit", "test_convnext"]
)
def test_the_second_network_is_drawn_as_the_first(name: str, networks: Any) -> None:
    second, first = networks(model=name, seed=3)
    assert same(dict(second.state_dict()), drawn(lambda: build_model(name, channels=3, classes=2, size=32), seed=3))
    for (of, mine), theirs in zip(second.named_parameters(), first.parameters(), strict=True):
        assert torch.equal(mine, theirs) == (mine.max() == mine.min()), of  # constants alone
        assert mine.data_ptr() != theirs.data_ptr()


def test_weights_by_torchs_own_rule_are_the_draws_of_before(networks: Any) -> None:
    """Of earlier rows with `mnist_cnn`: each layer reset in turn."""

    def reset() -> nn.Module:
        model = build_model("mnist_cnn", channels=3, classes=2)
        torch.default_generator.manual_seed(derive_seed(0, "biased network"))
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        return model

    assert same(dict(networks(model="mnist_cnn")[0].state_dict()), drawn(reset))


def test_from_weights_it_has_a_new_head_as_all_new_heads_are(networks: Any, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_weights(file, build_model("test_resnet", channels=3, classes=2))
    second, first = networks(model="test_resnet", weights=str(file), normalization="half")
    renewed = drawn(lambda: _with_new_head(copy.deepcopy(first)))
    assert same(dict(second.state_dict()), renewed)
    head = find_head(second)
    assert head.weight.std().item() == pytest.approx(HEAD_STD, rel=0.2)
    assert not head.bias.any()
    assert not torch.equal(head.weight, find_head(first).weight)


def _with_new_head(model: nn.Module) -> nn.Module:
    renew_head(model)
    return model


def test_a_network_that_brings_its_weights_along_keeps_them(networks: Any, tmp_path: Path) -> None:
    from timm.models import save_for_hf  # type: ignore[attr-defined]

    held = build_model("test_resnet", channels=3, classes=2)
    save_for_hf(held.backbone, str(tmp_path), safe_serialization=True)
    second, first = networks(model=f"local-dir:{tmp_path}")
    new = {name for name, value in second.state_dict().items() if not torch.equal(value, first.state_dict()[name])}
    assert new == {"backbone.fc.weight"}


def test_the_head_of_a_bcos_network_from_weights_is_new(networks: Any, tmp_path: Path) -> None:
    held = build_model("bcos_small_cnn", channels=3, classes=2)
    torch.save(held.body.state_dict(), tmp_path / "weights.pth")
    second, first = networks(model="bcos_small_cnn", weights=str(tmp_path / "weights.pth"))
    new = {name for name, value in second.state_dict().items() if not torch.equal(value, first.state_dict()[name])}
    assert new == {"head.weight"}


class Own(nn.Module):
    """A network of the user's own, with attention, bare parameters and a layer that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 4, stride=4)
        self.fixed = nn.Linear(8, 8).requires_grad_(False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.places = nn.Parameter(0.02 * torch.randn(4, 8))
        self.gain = nn.Parameter(torch.full((8,), 0.1))
        self.table = nn.Parameter(torch.linspace(0, 1, 8), requires_grad=False)
        self.head = nn.Linear(8, 2)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.fixed(self.patches(images).flatten(2).transpose(1, 2) + self.places + self.table)
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        logits: Tensor = self.head((tokens + self.gain * mixed).mean(dim=1))
        return logits


def test_a_network_of_ones_own_is_drawn_anew_as_far_as_it_can_be(toy: Any) -> None:
    model = Own()
    second = toy.method("lff", model).biased.model
    kept = {name for (name, one), other in zip(second.named_parameters(), model.parameters(), strict=True)
            if torch.equal(one, other)}  # fmt: skip
    constant = {"gain", "attention.in_proj_bias", "attention.out_proj.bias"}
    assert kept == {*constant, "table", "fixed.weight", "fixed.bias"}
    assert torch.equal(second.places.flatten().sort()[0], model.places.flatten().sort()[0])
    bound = math.sqrt(6 / (8 + 24))  # Xavier's, as attention is made
    assert 0.8 * bound < second.attention.in_proj_weight.abs().max() <= bound
    again = toy.method("lff", model).biased.model
    assert same(dict(again.state_dict()), dict(second.state_dict()))


def test_fit_takes_a_network_of_ones_own(make_table: Callable[..., ImageTable]) -> None:
    run = ipg.fit(Own(), make_table(), method="lff", epochs=1, batch=32, device="cpu")
    assert run.materials.make_network is None
    assert isinstance(run.model, Own)


@pytest.mark.parametrize(
    ("settings", "kept"), [({"batch_norm": "eval"}, True), ({"weights": "pretrained"}, True), ({}, False)]
)
def test_both_networks_keep_their_statistics_or_neither_does(toy: Any, settings: dict[str, str], kept: bool) -> None:
    """As `batch_norm` says; for a network that starts from weights `auto` is `eval`."""
    model = nn.Sequential(toy.network()[0], nn.BatchNorm1d(5).double(), nn.Linear(5, 3).double())
    method = toy.method("lff", model, **settings)
    second = method.biased.model
    method.step(part(toy, 0, *range(12)))
    assert second.training
    assert torch.equal(second[1].running_mean, torch.zeros(5, dtype=torch.float64)) is kept


def test_the_second_optimizer_follows_the_rate(toy: Any) -> None:
    model = toy.network()
    method = toy.method("lff", model, rate=0.5)
    method.setup.optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(method.biased.model.state_dict())
    method.step(part(toy, 0, *range(12)))
    assert all(torch.equal(value, before[name]) for name, value in method.biased.model.state_dict().items())


def test_what_it_cannot_do_without(toy: Any) -> None:
    model = toy.network()
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig(method="lff"))
    for changed in (replace(setup, table=toy.table()), replace(setup, make_optimizer=lambda _: setup.optimizer)):
        with pytest.raises(ValueError, match="its Setup needs make_optimizer and table"):
            method_class("lff")(changed)


def test_several_processes_are_refused(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipg.methods.base.find_peers", lambda *_: SimpleNamespace(size=2))
    told = "method 'lff' remembers the loss of every image: train it in one process, without"
    with pytest.raises(ValueError, match=told):
        toy.method("lff", toy.network())


def test_the_run_keeps_the_debiased_network(make_table: Callable[..., ImageTable], one_epoch: Any) -> None:
    outcome = one_epoch("lff", epochs=2, seed=3)
    train = outcome.rows[-1]["train"]
    assert 0 < train["weight"] < 1
    assert math.isfinite(train["biased_loss"])
    names = build_model("small_cnn", channels=2, classes=2).state_dict().keys()
    assert outcome.model.state_dict().keys() == names
    again = one_epoch("lff", epochs=2, seed=3)
    for one, other in zip(outcome.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
