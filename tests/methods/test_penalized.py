"""What all methods share that add a penalty to the task loss: schedule, identity with plain training, state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods import METHODS, Setup, method_class
from ipg.methods import penalized as penalized_module
from ipg.methods.penalized import Annealed, Penalized, mean_over
from ipg.training.loop import train
from ipg.training.materials import gather

PENALIZED = [name for name, kind in METHODS.items() if issubclass(kind, Penalized)]
ANNEALED = [name for name, kind in METHODS.items() if issubclass(kind, Annealed)]
ACROSS = [name for name in PENALIZED if "environments" in METHODS[name].needs]
FORMS: dict[str, list[dict[str, Any]]] = {
    "irm": [{"penalty": "split"}, {"penalty": "squared"}],
    "fishr": [{"form": "averaged"}, {"form": "plain"}],
}
CASES = [(name, form) for name in PENALIZED for form in FORMS.get(name, [{}])]


def environments(toy: Any) -> ImageTable:
    """The toy's table with environments that are not numbered from 0 on."""
    table: ImageTable = toy.table()
    return replace(table, environment=torch.tensor([7, 3, 4])[torch.arange(len(table)) % 3])


def batch(toy: Any, number: int, *, of: tuple[int, ...] = (7, 3, 4), **options: Any) -> Batch:
    """The toy's batch, its images from the environments `of` in turn."""
    found: Batch = toy.batch(number, **options)
    return found._replace(environment=torch.tensor(of)[torch.arange(len(found.label)) % len(of)])


def always(name: str, weight: float, form: dict[str, Any]) -> dict[str, Any]:
    """Options for a weight that never changes."""
    return {"weight": weight, **({"anneal": 0} if name in ANNEALED else {}), **form}


def values(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_which_there_are() -> None:
    assert PENALIZED == ["vrex", "irm", "fishr", "coral", "ridg"]
    assert ACROSS == ["vrex", "irm", "fishr", "coral"]
    assert ANNEALED == ["vrex", "irm", "fishr"]


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_without_weight_it_is_plain_training_bit_for_bit(name: str, form: dict[str, Any], kind: Any, toy: Any) -> None:
    criterion = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]))
    ends = []
    for which, options in ((name, always(name, 0.0, form)), ("erm", {})):
        model = toy.network(dtype=torch.float32)
        optimizer = kind(model.parameters(), lr=0.01)
        table = environments(toy)
        method = toy.method(which, model, optimizer=optimizer, criterion=criterion, table=table, options=options)
        losses = [method.step(batch(toy, number, dtype=torch.float32))["task_loss"] for number in range(5)]
        ends.append(torch.cat([values(model), torch.stack(losses)]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(("name", "form"), CASES)
def test_with_weight_it_is_not(name: str, form: dict[str, Any], toy: Any) -> None:
    ends = []
    for which, options in ((name, always(name, 5.0, form)), ("erm", {})):
        model = toy.network()
        method = toy.method(which, model, table=environments(toy), options=options)
        for number in range(3):
            method.step(batch(toy, number))
        ends.append(values(model))
    assert (ends[0] - ends[1]).abs().max() > 1e-4


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, form in CASES if name in ACROSS])
def test_an_environment_that_a_batch_lacks_changes_nothing(name: str, form: dict[str, Any], toy: Any) -> None:
    """Two environments of three give what they give where there are only these two."""
    steps = []
    for known in ((7, 3), (7, 3, 4)):
        model = toy.network()
        names = torch.tensor(known)
        table = replace(toy.table(), environment=names[torch.arange(12) % len(known)])
        method = toy.method(name, model, table=table, options=always(name, 5.0, form))
        reported = [method.step(batch(toy, number, of=(7, 3)))["penalty"] for number in range(3)]
        steps.append(torch.cat([values(model), torch.stack(reported)]))
    torch.testing.assert_close(*steps, atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("n", [1, 9])
def test_one_environment_has_nothing_to_differ_from(name: str, form: dict[str, Any], n: int, toy: Any) -> None:
    method = toy.method(name, toy.network(), table=environments(toy), options=always(name, 5.0, form))
    penalty = method.step(batch(toy, 0, of=(3,), n=n))["penalty"].item()
    assert math.isfinite(penalty)
    if name in ("vrex", "fishr", "coral"):
        assert penalty == pytest.approx(0.0, abs=1e-30)


@pytest.mark.parametrize("name", ACROSS)
def test_two_environments_are_needed(name: str, toy: Any) -> None:
    table = replace(toy.table(), environment=torch.zeros(12, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"method '{name}' needs training images of two environments or more"):
        toy.method(name, toy.network(), table=table)


@pytest.mark.parametrize("name", PENALIZED)
def test_several_processes_are_refused(name: str, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        size = 2

    monkeypatch.setattr("ipg.methods.base.find_peers", lambda model, group: Two())
    with pytest.raises(ValueError, match=f"method '{name}' compares the images of whole batches.* in one process"):
        toy.method(name, toy.network())


@pytest.mark.parametrize("name", ANNEALED)
@pytest.mark.parametrize("divide", [False, True])
def test_the_weight_changes_at_the_annealing_step(name: str, divide: bool, toy: Any) -> None:
    """Against gradient descent on the penalty that the method itself reports, weighted here."""
    options = {"weight": 8.0, "weight_before": 0.5, "anneal": 2, "divide": divide}
    model, twin = toy.network(), toy.network()
    method = toy.method(name, model, table=environments(toy), options=options)
    its = toy.method(name, twin, table=environments(toy), options=options)
    parameters = list(twin.parameters())
    for number in range(4):
        drawn = batch(toy, number)
        method.step(drawn)
        with its.tap.listen():
            logits = its.setup.logits(drawn.image)
        place = torch.searchsorted(torch.tensor([3, 4, 7]), drawn.environment)
        outputs = penalized_module.Outputs(its.tap.take()[0], logits, drawn.label, place)
        weight = 0.5 if number < 2 else 8.0
        total = nn.functional.cross_entropy(logits, drawn.label) + weight * its.penalty(outputs)
        gradients = torch.autograd.grad(total / (8.0 if divide and number >= 2 else 1.0), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
    torch.testing.assert_close(values(model), values(twin), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("divide", [False, True])
def test_the_squared_norm_is_of_all_that_is_trained_and_is_divided_too(divide: bool, toy: Any) -> None:
    """Against a step without it: what it adds to the gradient is 2 l2 θ, biases included."""
    ends = []
    for l2 in (0.0, 0.03):
        model = toy.network()
        start = values(model)
        options = {"weight": 8.0, "anneal": 0, "divide": divide, "l2": l2}
        toy.method("vrex", model, table=environments(toy), options=options).step(batch(toy, 0))
        ends.append(values(model))
    expected = -0.1 * 2 * 0.03 * start / (8.0 if divide else 1.0)
    torch.testing.assert_close(ends[1] - ends[0], expected, atol=1e-14, rtol=1e-9)


@pytest.mark.parametrize("restart", [False, True])
def test_the_optimizer_begins_anew_at_the_annealing_step(restart: bool, toy: Any) -> None:
    """As if Adam were made again; without `restart` it goes on."""
    ends = []
    for anew in (False, True):
        model = toy.network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        options = {"weight": 8.0, "anneal": 3, "restart": restart and not anew}
        method = toy.method("vrex", model, optimizer=optimizer, table=environments(toy), options=options)
        for number in range(6):
            if anew and restart and number == 3:
                optimizer.state.clear()
            method.step(batch(toy, number))
        ends.append((values(model), next(iter(optimizer.state.values()))["step"].item()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] == (3 if restart else 6)


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_state_goes_on_exactly(name: str, form: dict[str, Any], toy: Any) -> None:
    """Stopped before the annealing step, with banks and averages filled."""
    options = {"weight": 3.0, **({"anneal": 4} if name in ANNEALED else {}), **form}

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = toy.network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, optimizer, toy.method(name, model, optimizer=optimizer, table=environments(toy), options=options)

    model, optimizer, method = fresh()
    for number in range(3):
        method.step(batch(toy, number))
    model2, optimizer2, method2 = fresh()
    model2.load_state_dict(model.state_dict())
    optimizer2.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    places = {key: value.data_ptr() for key, value in method2.kept.items()}
    method2.load_state_dict(method.state_dict())
    assert {key: value.data_ptr() for key, value in method2.kept.items()} == places
    for number in range(3, 8):
        one, other = method.step(batch(toy, number)), method2.step(batch(toy, number))
        assert {k: v.item() for k, v in one.items()} == {k: v.item() for k, v in other.items()}
    assert torch.equal(values(model), values(model2))


class Column:
    """A column of two environments for fake tensors, whose values nobody can look at."""

    def unique(self) -> Tensor:
        return torch.tensor([3, 7])


class Columns:
    environment = Column()


@pytest.mark.parametrize(("name", "form"), CASES)
def test_no_step_waits(name: str, form: dict[str, Any], toy: Any) -> None:
    options = {**form, **({"anneal": 1, "divide": True} if name in ANNEALED else {})}
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        method = toy.method(name, model, optimizer=optimizer, table=Columns(), options=options)
        for number in range(3):
            reported = method.step(toy.batch(number, dtype=torch.float32))
        with pytest.raises(DataDependentOutputException):  # the mode was on: there is no value to read
            reported["penalty"].item()


@pytest.mark.parametrize("name", PENALIZED)
def test_autocast_reaches_the_network_and_not_the_penalty(name: str, toy: Any) -> None:
    model = toy.network(dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup = Setup(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        RunConfig(method=name),
        autocast=torch.bfloat16,
        table=environments(toy),
    )
    method = method_class(name)(setup)
    reported = method.step(batch(toy, 0, dtype=torch.float32))
    assert reported["penalty"].dtype == torch.float32
    assert math.isfinite(reported["penalty"].item())


@pytest.mark.parametrize(("name", "form"), CASES)
def test_training(name: str, form: dict[str, Any], make_table: Callable[..., ImageTable], tmp_path: Path) -> None:
    """An epoch under the one loop, over the annealing step and with a checkpoint."""
    options = {**form, **({"anneal": 2} if name in ANNEALED else {})}
    config = RunConfig(method=name, options=options, device="cpu", epochs=1, batch=32, held_out_pairs=6)
    outcome = train(config, gather(config, table=make_table()), folder=tmp_path / "run")
    assert len(outcome.rows) == 1
    assert math.isfinite(outcome.result["metrics"]["average"])
    assert all(torch.isfinite(parameter).all() for parameter in outcome.model.parameters())
    assert not any(module._forward_hooks for module in outcome.model.modules())


@pytest.mark.parametrize("name", ANNEALED)
def test_a_run_that_ends_before_the_weight_changes_says_so(name: str, toy: Any) -> None:
    def remark(**options: Any) -> str | None:
        config = RunConfig(method=name, epochs=3, batch=5, options=options)
        found: str | None = method_class(name).remark(config, toy.table())  # 12 images, so 9 iterations
        return found

    told = remark(weight=7, weight_before=2, anneal=9)
    assert told == (
        f"the penalty of {name} weighs 2 in its first 9 iterations, and a run has 9: it never comes to 7; "
        f"give -o anneal=… a smaller number"
    )
    assert remark() is not None  # the defaults are for longer runs
    assert remark(weight=7, weight_before=2, anneal=8) is None
    assert remark(weight=2, weight_before=2, anneal=9) is None
    longer = RunConfig(method=name, epochs=3, steps=4, options={"anneal": 11})
    assert method_class(name).remark(longer, toy.table()) is None
    assert METHODS["coral"].remark(longer, toy.table()) is None


def test_mean_over() -> None:
    table = torch.tensor([[1.0, 2.0], [100.0, 100.0], [3.0, 6.0]])
    assert mean_over(table, torch.tensor([True, False, True])).tolist() == [2.0, 4.0]
    assert mean_over(table[:, 0], torch.tensor([False, False, False])).item() == 0.0


def test_a_penalty_must_be_said(toy: Any) -> None:
    class Empty(Penalized):
        name = "empty"

    model = toy.network()
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig())
    with pytest.raises(TypeError, match="Empty does not say what it penalises"):
        Empty(setup).step(toy.batch(0))
