"""Modes hold where they are promised to: in checkpointed layers, and for BatchNorm whatever `model.train()` says."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from checkpointed import Checkpointed, Noise
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.evaluation.groups import evaluating
from ipg.guidance import Guidance
from ipg.modes import unchanged


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("layer", [Noise(), nn.Dropout(0.5)], ids=["noise", "dropout"])
def test_checkpointed_layers_are_corrected_like_plain_ones(toys: ModuleType, layer: nn.Module) -> None:
    def corrected(checkpointed: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = Checkpointed(copy.deepcopy(layer), checkpointed=checkpointed).train()
        guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), margin=1.0)
        correction = guide.correct(toys.pairs(dtype=torch.float32))
        assert all(module.training for module in model.modules())
        return toys.bits(model), correction.values.clone()

    (plain, found), (again, found_again) = corrected(False), corrected(True)
    torch.testing.assert_close(found_again, found)
    torch.testing.assert_close(again, plain)
    assert found[3] > 0


def test_terms_may_be_differentiated_inside_comparing(toys: ModuleType) -> None:
    model = Checkpointed(nn.Dropout(0.5), checkpointed=True).train()
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with guide.comparing():
        guide.terms(toys.pairs(dtype=torch.float32)).alignment.backward()
    assert model.stem.weight.grad is not None
    assert all(module.training for module in model.modules())


class Remembering(nn.Module):
    """Keeps what it has computed in eval mode until it hears of training, as attention does in networks of timm."""

    def __init__(self, *, remembers: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.remembers = remembers
        self.kept: Tensor | None = None

    def train(self, mode: bool = True) -> Remembering:
        super().train(mode)
        if mode:
            self.kept = None
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not self.remembers:
            return x * self.scale.exp()
        if self.kept is None:
            self.kept = self.scale.exp()
        return x * self.kept


@pytest.mark.parametrize("looks", [False, True])
def test_layers_that_remember_their_eval_mode_hear_of_training(toys: ModuleType, looks: bool) -> None:
    def trained(remembers: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(Remembering(remembers=remembers), nn.BatchNorm1d(6), nn.Linear(6, 2)).train()
        guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), margin=1.0, batch_norm="eval")
        x, y = toys.batch(dtype=torch.float32)
        for _ in range(3):
            if looks:
                with evaluating(model):
                    model(x)
            guide.step(lambda: F.cross_entropy(model(x), y), toys.pairs(dtype=torch.float32))
            assert [module.training for module in model] == [True, False, True]
        return toys.bits(model), model.eval()(x).detach()

    for found, expected in zip(trained(True), trained(False), strict=True):
        assert torch.equal(found, expected)


class Asked(nn.Dropout):
    """Hears of what is assigned to it, as scripted modules do."""

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__.setdefault("heard", []).append((name, value))
        super().__setattr__(name, value)


def test_modules_that_hear_of_assignments_hear_of_their_mode(toys: ModuleType) -> None:
    model = nn.Sequential(asked := Asked(), nn.Linear(6, 2)).train()
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1))
    asked.heard.clear()
    guide.correct(toys.pairs(dtype=torch.float32))
    assert asked.heard == [("training", False), ("training", True)]


class Recurrent(nn.Module):
    """Reads the columns of an image one after the other, and notes the mode in which it does."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.reader, self.head = nn.LSTM(1, 4, num_layers=2, dropout=dropout, batch_first=True), nn.Linear(4, 2)
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.reader.training)
        logits: Tensor = self.head(self.reader(x[:, :, None])[0][:, -1])
        return logits


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recurrent_layers_stay_as_they_are_unless_they_have_dropout(toys: ModuleType, dropout: float) -> None:
    """On a GPU they have no way back in eval mode."""
    model = Recurrent(dropout).train()
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        guide.correct(toys.pairs(dtype=torch.float32))
        model.eval()
    assert model.seen == [not dropout, False]
    model.train()
    assert guide.correct(toys.pairs(shift=0.0, dtype=torch.float32)).alignment < 1e-6


# -- BatchNorm in eval mode -----------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def held(model: nn.Module, **options: Any) -> Guidance:
    return Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), batch_norm="eval", **options)


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model]


def statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


FOLLOWS, KEPT = [True] * 5, [True, False, True, True, True]


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("compiled", [False, True])
def test_eval_survives_train_inside_an_iteration(toys: ModuleType, compiled: bool) -> None:
    inner = network()
    model = torch.compile(inner, backend="eager") if compiled else inner
    guide = held(model)
    pairs, (x, y) = toys.pairs(dtype=torch.float32), toys.batch(dtype=torch.float32)
    before = statistics(inner)

    def loss() -> Tensor:
        model.train()  # the first line of many a training step
        return F.cross_entropy(model(x + 3), y)

    for given in (pairs, None):
        guide.step(loss, given)
    correction = guide.correct(pairs)
    loss().backward()
    guide.rescale(correction)
    guide.optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(statistics(inner), before, strict=True))
    assert modes(inner) == KEPT
    assert not any(module.training for module in model.eval().modules())


def test_eval_survives_a_mode_that_is_set_by_hand(toys: ModuleType) -> None:
    model = network()
    guide = held(model)
    before = statistics(model)
    model[1].training = True
    guide.correct(toys.pairs(dtype=torch.float32))
    assert all(torch.equal(one, other) for one, other in zip(statistics(model), before, strict=True))


def test_train_leaves_batch_norm_alone(toys: ModuleType) -> None:
    model = network()
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = statistics(model)
    guide.correct(toys.pairs(dtype=torch.float32))
    assert not torch.equal(model[1].running_mean, before[0])
    assert "train" not in vars(model[1])


def test_close_leaves_a_plain_network() -> None:
    model = network()
    guide = held(model)
    assert modes(model.train()) == KEPT
    guide.close()
    assert modes(model) == FOLLOWS  # what it was told last
    assert "train" not in vars(model[1])
    assert not any(module._forward_hooks for module in model.modules())


def test_an_evaluation_changes_nothing_of_what_comes_after_close() -> None:
    model = network()
    guide = held(model)
    model.train()
    with unchanged(model):
        model.eval()
    assert modes(model) == KEPT
    guide.close()
    assert modes(model) == FOLLOWS


def test_batch_norm_is_let_go_with_the_guidance() -> None:
    model = network()
    guide = held(model)
    assert modes(model.train()) == KEPT
    del guide
    gc.collect()
    assert modes(model.train()) == FOLLOWS


def test_the_last_of_several_guidances_holds(toys: ModuleType) -> None:
    model = network()
    guide = held(model)
    guide = held(model)
    gc.collect()
    guide.correct(toys.pairs(dtype=torch.float32))
    assert modes(model.train()) == KEPT
    other = Guidance(model, guide.optimizer, batch_norm="train")
    assert modes(model) == FOLLOWS
    guide.close()
    other.close()
    assert modes(model) == FOLLOWS


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": _saved,
    "a copy of a copy": lambda model: copy.deepcopy(pickle.loads(pickle.dumps(model))),
    "averaged": lambda model: torch.optim.swa_utils.AveragedModel(model).module,
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
def test_copies_are_not_held(make: Callable[[nn.Module], nn.Module]) -> None:
    model = network()
    guide = held(model)
    copied = make(model)
    assert modes(copied.train()) == FOLLOWS
    assert copied.train() is copied
    assert modes(model.train()) == KEPT
    x = torch.randn(4, 6)
    copied(x + 3)
    assert torch.equal(model[1].running_mean, torch.zeros(8))
    assert not torch.equal(copied[1].running_mean, torch.zeros(8))
    torch.testing.assert_close(make(model).eval()(x), model.eval()(x))
    guide.close()


def test_a_copied_guidance_holds_its_own_network(toys: ModuleType) -> None:
    guide = held(network())
    other = copy.deepcopy(guide)
    other.correct(toys.pairs(dtype=torch.float32))
    assert modes(other.model.train()) == KEPT
    assert modes(guide.model.train()) == KEPT


def test_a_held_network_is_exported() -> None:
    model = network()
    guide = held(model)
    x = torch.randn(4, 6)
    program = torch.export.export(model.train(), (x,))
    assert not any("running_mean" in name for name in program.graph_signature.buffers_to_mutate.values())
    expected = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(torch.export.export(model.eval(), (x,)).module()(x), expected)
    guide.close()


@pytest.mark.usefixtures("_fresh_compiler")
def test_held_layers_cost_no_recompilation(toys: ModuleType) -> None:
    model = network()
    graphs: list[object] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=count)
    guide = held(compiled)
    pairs, (x, y) = toys.pairs(dtype=torch.float32), toys.batch(dtype=torch.float32)

    def loss() -> Tensor:
        compiled.train()
        return F.cross_entropy(compiled(x), y)

    guide.step(loss, pairs)
    first = len(graphs)
    for _ in range(3):
        guide.step(loss, pairs)
    assert len(graphs) == first > 0


def test_layers_that_join_later_are_known(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), batch_norm="eval")
    model[1] = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(7).double())
    model.train()
    pairs = toys.pairs(shift=0.0)
    assert guide.correct(pairs).alignment == 0
    assert model[1][0].training
    assert not model[1][1].training
