"""What all methods share: names, needs, options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ipg.config import RunConfig
from ipg.methods import METHODS, Method, Setup, method_class, parse_options
from ipg.methods.base import option_defaults

GUIDED = ["ipg", "joint", "continuous"]


@pytest.mark.parametrize("name", METHODS)
def test_names_and_summaries(name: str) -> None:
    kind = method_class(name)
    assert kind.name == name
    assert kind.summary.endswith(".")
    assert ("pairs" in kind.needs) == (name in GUIDED)


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match="there is no method 'irm'; there are erm, oracle, ipg, joint, continuous"):
        method_class("irm")


@pytest.mark.parametrize("name", GUIDED)
def test_guided_methods_need_pairs(name: str, toy: Any) -> None:
    model = toy.network()
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig(method=name))
    message = f"method '{name}' is guided by pairs and there are none: give --pairs a number above 0, or train with"
    with pytest.raises(ValueError, match=message):
        method_class(name)(setup)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("erm", {"order": "sum"}, "method 'erm' has no option 'order'; it has none"),
        ("joint", {"oder": "sum"}, "method 'joint' has no option 'oder'; did you mean order?"),
        ("joint", {"zzz": "sum"}, "method 'joint' has no option 'zzz'; it has order, loss"),
        ("joint", {"order": "both"}, "option order='both': expected one of task_first, alignment_first, sum"),
        (
            "joint",
            {"order": 3, "los": "alignment"},
            "option order=3: expected one of task_first, alignment_first, sum; "
            "method 'joint' has no option 'los'; did you mean loss?",
        ),
    ],
)
def test_options_that_are_none(name: str, given: dict[str, Any], message: str, toy: Any) -> None:
    with pytest.raises(ValueError, match="option") as caught:
        parse_options(method_class(name), given)
    assert str(caught.value) == message
    with pytest.raises(ValueError, match="option") as caught:
        toy.method(name, toy.network(), options=given)
    assert str(caught.value) == message


def test_options_and_their_defaults() -> None:
    assert option_defaults(method_class("joint")) == {"order": "task_first", "loss": "alignment"}
    assert option_defaults(method_class("erm")) == {}
    options = parse_options(method_class("joint"), {"loss": "corrective"})
    assert (options.order, options.loss) == ("task_first", "corrective")


def test_a_method_must_say_how_to_step(toy: Any) -> None:
    class Empty(Method):
        name = "empty"

    model = toy.network()
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig())
    with pytest.raises(TypeError, match="Empty does not say how to step"):
        Empty(setup).step(toy.batch(0))


@pytest.mark.parametrize("name", METHODS)
def test_steps_report_scalars(name: str, toy: Any) -> None:
    values = toy.method(name, toy.network()).step(toy.batch(0))
    assert "task_loss" in values
    for value in values.values():
        assert value.ndim == 0
        assert not value.requires_grad


@pytest.mark.parametrize("name", METHODS)
def test_closing_leaves_no_hook(name: str, toy: Any) -> None:
    model = toy.network()
    method = toy.method(name, model)
    method.step(toy.batch(0))
    method.close()
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", GUIDED)
@pytest.mark.parametrize("every", [1, 3])
def test_pairs_are_drawn_when_they_are_due(name: str, every: int, toy: Any, drawn: Any) -> None:
    source = drawn()
    method = toy.method(name, toy.network(), every=every, pairs_from=source)
    due = []
    for number in range(7):
        before = source.count
        due.append(method.due)
        assert method.iteration == number
        method.step(toy.batch(number))
        assert source.count - before == due[-1]
    assert due == [number % every == 0 for number in range(7)]


@pytest.mark.parametrize("name", METHODS)
def test_a_state_goes_on_exactly(name: str, toy: Any, drawn: Any) -> None:
    """Stopped inside a cycle of `every`, with the relative margin measured before."""

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, Method, Any]:
        model = toy.network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        source = drawn()
        method = toy.method(name, model, every=3, margin="0.5x", optimizer=optimizer, pairs_from=source)
        return model, optimizer, method, source

    model, optimizer, method, source = fresh()
    for number in range(5):
        method.step(toy.batch(number))
    model2, optimizer2, method2, source2 = fresh()
    model2.load_state_dict(model.state_dict())
    optimizer2.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # it would share tensors
    method2.load_state_dict(method.state_dict())
    source2.count = source.count
    for number in range(5, 11):
        one, other = method.step(toy.batch(number)), method2.step(toy.batch(number))
        assert {k: v.item() for k, v in one.items()} == {k: v.item() for k, v in other.items()}
    for one, other in zip(model.parameters(), model2.parameters(), strict=True):
        assert torch.equal(one, other)
