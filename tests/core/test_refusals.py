"""What cannot be guided is refused for its true reason, before anything has moved."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ipg.guidance import Guidance, Pairs


def guided(model: nn.Module, *more: nn.Parameter) -> Guidance:
    return Guidance(model, torch.optim.SGD([*model.parameters(), *more], lr=0.1))


# -- without gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_gradients_that_are_switched_off_are_named(toys: ModuleType, off: type) -> None:
    model = toys.mlp()
    guide = guided(model)
    before, (x, y) = toys.bits(model), toys.batch()
    with off():
        for act in (
            lambda: guide.correct(toys.pairs()),
            lambda: guide.step(lambda: F.cross_entropy(model(x), y), toys.pairs()),
            lambda: guide.step(lambda: F.cross_entropy(model(x), y), None),
        ):
            with pytest.raises(RuntimeError, match=r"gradients are switched off here: guide outside of torch\.no_grad"):
                act()
    assert guide.iteration == guide.watch.counters[0] == 0
    assert torch.equal(toys.bits(model), before)
    with torch.no_grad():
        assert not guide.terms(toys.pairs()).alignment.requires_grad  # looking is no guiding


def test_an_iteration_that_is_refused_is_not_counted(toys: ModuleType) -> None:
    model = toys.mlp().requires_grad_(False)
    guide = Guidance(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), every=2)
    with pytest.raises(RuntimeError, match="everything it touches is frozen"):
        guide.correct(toys.pairs())
    assert guide.iteration == guide.watch.counters[0] == 0
    assert guide.due


# -- what lies before the head, and what does not --------------------------------------------------------------------


class Tempered(nn.Module):
    """A backbone, a head, and a temperature behind it."""

    def __init__(self, body: nn.Sequential, *, detached: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.detached = body[:-1], body[-1], detached
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        logits: Tensor = self.head(features.detach() if self.detached else features)
        return logits * self.temperature


def test_a_temperature_beside_a_frozen_backbone_is_welcome(toys: ModuleType) -> None:
    model = toys.mlp()
    model[:-1].requires_grad_(False)
    temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
    guide = Guidance(model, torch.optim.SGD([*model[-1].parameters(), temperature], lr=0.1))
    before, (x, y) = model[-1].weight.detach().clone(), toys.batch()
    report = guide.step(lambda: F.cross_entropy(model(x) * temperature, y), toys.pairs())
    assert report.correction_norm.item() > 0
    assert not torch.equal(model[-1].weight, before)
    assert temperature.item() != 1


@pytest.mark.parametrize("how", ["frozen", "detached, out of the optimizer"])
def test_a_temperature_behind_the_head_is_welcome(toys: ModuleType, how: str) -> None:
    model = Tempered(toys.mlp(), detached=how != "frozen")
    model.body.requires_grad_(how != "frozen")
    guide = Guidance(model, torch.optim.SGD([*model.head.parameters(), model.temperature], lr=0.1))
    assert guide.correct(toys.pairs()).norm.item() > 0


def test_a_detached_backbone_in_the_optimizer_is_refused_every_time(toys: ModuleType) -> None:
    model = Tempered(toys.mlp())
    guide = guided(model)
    guide.correct(toys.pairs())
    model.detached = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="reaches the head alone: its features arrive detached"):
            guide.correct(toys.pairs())
    assert guide.iteration == 1


def test_parameters_that_are_not_the_models_do_not_hide_detached_features(toys: ModuleType) -> None:
    model = Tempered(toys.mlp(), detached=True)
    with pytest.raises(RuntimeError, match="its features arrive detached"):
        guided(model, nn.Parameter(torch.zeros(1))).correct(toys.pairs())


class Reentering(nn.Module):
    """A backbone that is checkpointed by re-entry, and a head; the images require gradients, as it asks for."""

    def __init__(self, body: nn.Sequential) -> None:
        super().__init__()
        self.body, self.head = body[:-1], body[-1]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=True))
        return logits


def test_layers_checkpointed_by_reentry_are_refused(toys: ModuleType) -> None:
    model = Reentering(toys.mlp())
    guide, before = guided(model), toys.bits(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="checkpointed by re-entry: checkpoint them with use_reentrant=False"):
            guide.correct(toys.pairs())
    assert guide.iteration == 0
    assert torch.equal(toys.bits(model), before)


def test_frozen_layers_checkpointed_by_reentry_are_welcome(toys: ModuleType) -> None:
    model = Reentering(toys.mlp())
    model.body.requires_grad_(False)
    assert guided(model).correct(toys.pairs()).norm > 0


def test_layers_checkpointed_by_reentry_are_refused_when_they_are_unfrozen(toys: ModuleType) -> None:
    """A head is often trained alone at first; what follows must not go on without the layers before it."""
    model = Reentering(toys.mlp())
    model.body.requires_grad_(False)
    guide = guided(model)
    guide.correct(toys.pairs())
    model.body.requires_grad_(True)
    before = toys.bits(model)
    with pytest.raises(RuntimeError, match="checkpointed by re-entry"):
        guide.correct(toys.pairs())
    assert torch.equal(toys.bits(model), before)


class ReenteringLate(nn.Module):
    """A first layer as it is, a second one that is checkpointed by re-entry, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late, self.head = (nn.Linear(6, size, dtype=torch.float64) for size in (6, 6, 2))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(checkpoint(self.late, self.early(x).tanh().requires_grad_(), use_reentrant=True))
        return logits


def test_layers_checkpointed_by_reentry_are_refused_when_others_are_frozen_for_them() -> None:
    """There are as many trainable parameters as before."""
    model, images = ReenteringLate(), torch.ones(2, 6, dtype=torch.float64)
    model.early.requires_grad_(False)
    model.late.requires_grad_(False)
    beside = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in model.late.parameters()]
    guide = guided(model, *beside)
    pairs = Pairs(images, -images, torch.tensor([0, 1]))
    guide.correct(pairs)
    model.late.requires_grad_(True)
    for parameter in beside:
        parameter.requires_grad_(False)
    with pytest.raises(RuntimeError, match="checkpointed by re-entry"):
        guide.correct(pairs)


# -- gradients that would be lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_pairs", [True, False])
def test_accumulated_gradients_are_refused_by_step(toys: ModuleType, with_pairs: bool) -> None:
    model = toys.mlp()
    guide = guided(model)
    before, (x, y) = toys.bits(model), toys.batch()
    F.cross_entropy(model(x), y).backward()
    kept = model[0].weight.grad.clone()
    with pytest.raises(RuntimeError, match=r"gradients are already accumulated: .* between correct and rescale"):
        guide.step(lambda: F.cross_entropy(model(x), y), toys.pairs() if with_pairs else None)
    assert torch.equal(model[0].weight.grad, kept)
    assert torch.equal(toys.bits(model), before)
    assert guide.iteration == 0
    guide.optimizer.zero_grad()
    guide.step(lambda: F.cross_entropy(model(x), y), toys.pairs())


def test_a_step_that_fails_leaves_no_gradients(toys: ModuleType) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            raise KeyError("planted")

    model = toys.mlp()
    guide = guided(model)
    x, y = toys.batch()
    with pytest.raises(KeyError, match="planted"):  # the head has its gradient by then
        guide.step(lambda: F.cross_entropy(model[-1](Fails.apply(model[:-1](x))), y), toys.pairs())
    guide.step(lambda: F.cross_entropy(model(x), y), toys.pairs())


def test_a_correction_that_fails_leaves_no_gradients(toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toys.mlp()
    guide = guided(model)

    def full() -> None:
        raise torch.OutOfMemoryError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(guide.optimizer, "step", full)
        with pytest.raises(torch.OutOfMemoryError, match="planted"):
            guide.correct(toys.pairs())
    assert guide.iteration == guide.watch.counters[0] == 0
    assert guide.correct(toys.pairs()).norm > 0


def test_rescale_before_any_correction_is_refused(toys: ModuleType) -> None:
    """It would zero the task gradient, as the norm of a correction that never was is 0."""
    model = toys.mlp()
    guide = guided(model)
    x, y = toys.batch()
    F.cross_entropy(model(x), y).backward()
    kept = model[0].weight.grad.clone()
    with pytest.raises(
        RuntimeError, match=r"no correction to rescale by yet: call correct\(pairs\) before the backward"
    ):
        guide.rescale(guide.correction)
    assert torch.equal(model[0].weight.grad, kept)
    other = guided(toys.mlp())
    other.correct(toys.pairs())
    guide.load_state_dict(other.state_dict())  # a resumed run has one
    assert guide.rescale(guide.correction).scale.item() > 0


# -- gradients of another kind ---------------------------------------------------------------------------------------


class Looks(nn.Module):
    """Adds to its features what a table has for each image, or keeps the table for the task alone."""

    def __init__(self, body: nn.Sequential, *, beside: bool) -> None:
        super().__init__()
        self.body, self.head, self.beside = body[:-1], body[-1], beside
        self.table = nn.Embedding(4, 5, sparse=True, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        found = self.table(x[:, 0].long() % 4)
        logits: Tensor = self.head(self.body(x) + (0 if self.beside else found))
        return logits


@pytest.mark.parametrize("beside", [False, True])
def test_sparse_gradients_are_refused_where_they_appear(toys: ModuleType, *, beside: bool) -> None:
    model = Looks(toys.mlp(), beside=beside)
    guide, (x, y) = guided(model), toys.batch()
    before = toys.bits(model)

    def task() -> Tensor:
        return F.cross_entropy(model(x), y) + model.table(y).square().mean()

    with pytest.raises(RuntimeError, match=r"shape \(4, 5\) has a sparse gradient, .*: make its layer with sparse=F"):
        guide.step(task, toys.pairs())
    assert torch.equal(toys.bits(model), before) is not beside  # the correction of a table for the task alone is made
    assert guide.iteration == int(beside)
    assert all(parameter.grad is None for parameter in model.parameters())
