"""What all methods share: names, needs, options."""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpointed import Checkpointed, Noise
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.methods import METHODS, Method, Setup, method_class, parse_options
from ipg.methods.base import NEEDS
from ipg.methods.options import option, option_defaults
from ipg.methods.space import Choice
from ipg.training.checkpoint import load_checkpoint, save_checkpoint

GUIDED = ["ipg", "joint", "continuous", "joint_weighted", "cggd"]
"""Methods that draw pairs at each k-th step."""
ON_PAIRS = [*GUIDED, "pair_augmentation", "pair_contrastive", "ncm"]
"""All methods that need pairs."""
KNOWING = ["oracle", "dair", "shape_only"]
"""Methods that change the shortcut in every image, or take it out."""
ON_NUMBERS = [name for name in METHODS if name not in ("dair", "ncm", "epg", "gals", "gals_mask")]
"""Methods that take the toy's numbers for images; the others, which want colours or masks, have the same tests of
their own."""
LOOP: dict[str, dict[str, Any]] = {"ncm": {"model": "linear"}}
"""Settings without which a method cannot run."""


NEEDED: dict[str, list[str]] = {
    "pairs": ON_PAIRS,
    "shortcut rule": KNOWING,
    "environments": ["irm", "vrex", "fishr", "coral", "meta_irm"],
    "groups": ["groupdro", "rwg", "subg", "dkt"],
    "validation groups": ["dfr"],
    "masks": ["epg", "gals_mask"],
    "attention": ["gals"],
}
"""What methods cannot do without; those that are not named need labels alone."""


@pytest.mark.parametrize("name", METHODS)
def test_names_and_summaries(name: str) -> None:
    kind = method_class(name)
    assert kind.name == name
    assert kind.summary.endswith(".")
    assert kind.needs == {need for need, names in NEEDED.items() if name in names}
    assert NEEDED.keys() == NEEDS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_every_file_has_its_formula_and_says_how_it_differs(name: str) -> None:
    text = sys.modules[method_class(name).__module__].__doc__ or ""
    assert re.search(r"^    \S", text, re.MULTILINE)
    assert re.search(r"^Differs from [^\n]+:", text, re.MULTILINE)


def test_unknown_method() -> None:
    with pytest.raises(
        ValueError, match=r"no method 'irn'; did you mean irm\? There are erm, oracle, ipg, joint, continuous"
    ):
        method_class("irn")


@pytest.mark.parametrize("name", ON_PAIRS)
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


class Numbers(Method):
    """A method with options of every kind of number."""

    name = "numbers"

    @dataclass(frozen=True)
    class Options:
        weight: float = option(1.0, least=0)
        share: float = option(0.5, above=0, most=1)
        steps: int = option(3, least=1)
        sharp: bool = False


def test_numbers_come_as_words_or_numbers() -> None:
    options = parse_options(Numbers, {"weight": "2", "share": 1, "steps": "4.0", "sharp": "True"})
    assert options == Numbers.Options(2.0, 1.0, 4, True)
    assert [type(getattr(options, field.name)) for field in fields(options)] == [float, float, int, bool]
    assert parse_options(Numbers, {}) == Numbers.Options(1.0, 0.5, 3, False)
    assert option_defaults(Numbers) == {"weight": 1.0, "share": 0.5, "steps": 3, "sharp": False}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight": -1}, "option weight=-1: expected a number, at least 0"),
        ({"weight": "heavy"}, "option weight='heavy': expected a number, at least 0"),
        ({"weight": "nan"}, "option weight='nan': expected a number, at least 0"),
        ({"weight": 10**400}, f"option weight={10**400}: expected a number, at least 0"),
        ({"weight": True}, "option weight=True: expected a number, at least 0"),
        ({"share": 0}, "option share=0: expected a number, above 0, at most 1"),
        ({"share": 1.5}, "option share=1.5: expected a number, above 0, at most 1"),
        ({"steps": 2.5}, "option steps=2.5: expected a whole number, at least 1"),
        ({"steps": None}, "option steps=None: expected a whole number, at least 1"),
        ({"sharp": "perhaps"}, "option sharp='perhaps': expected true or false"),
        (
            {"share": 2, "weigth": 1},
            "option share=2: expected a number, above 0, at most 1; "
            "method 'numbers' has no option 'weigth'; did you mean weight?",
        ),
    ],
)
def test_numbers_out_of_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="option") as caught:
        parse_options(Numbers, given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("need", "column", "message"),
    [
        ("environments", "environment", "needs training images of two environments or more, and these are of one"),
        ("groups", "attribute", "needs training images whose attribute is known, and here all images have the same"),
    ],
)
def test_what_the_table_must_have(need: str, column: str, message: str, toy: Any) -> None:
    class Needing(Method):
        name = "needing"
        needs = frozenset({need})  # type: ignore[arg-type]

    model = toy.network()
    setup = Setup(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig(), table=toy.table()
    )
    assert Needing(setup).setup is setup
    without = replace(toy.table(), **{column: torch.zeros_like(toy.table().label)})
    for table in (without, None):
        with pytest.raises(ValueError, match=f"method 'needing' {message}"):
            Needing(replace(setup, table=table))


@pytest.mark.parametrize("name", [*GUIDED, "pair_augmentation", "pair_contrastive", "erm", "groupdro", "vrex", "irm"])
def test_costs_are_the_images_that_pass_the_network(name: str, toy: Any, drawn: Any) -> None:
    """Nine task images and six pairs; every third step has pairs where a method draws them so."""
    model = toy.network()
    method = toy.method(name, model, every=3, pairs_from=drawn())
    seen = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal seen
        seen += len(inputs[0])

    model[0].register_forward_hook(count)
    for number in range(6):
        method.step(toy.batch(number))
    terms = {"1": 1.0, "1 + 2 B_I/B_D": 1 + 2 * 6 / 9, "1 + 2 B_I/(k B_D)": 1 + 2 * 6 / (3 * 9)}
    assert seen / (6 * 9) == pytest.approx(terms[method_class(name).cost])


@pytest.mark.parametrize("name", METHODS)
def test_which_losses_are_weighted_by_class(name: str, one_epoch: Any, make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    uneven = table.take((table.split > 0) | (table.label == 0) | (torch.arange(len(table)) % 3 == 0))
    plain, weighted = (
        one_epoch(name, table=uneven, class_weighted=weighted, **LOOP.get(name, {})).model.state_dict()
        for weighted in (False, True)
    )
    same = all(torch.equal(value, weighted[key]) for key, value in plain.items())
    assert same != method_class(name).weighs_classes


@pytest.mark.parametrize("name", METHODS)
def test_a_search_looks_at_what_there_is(name: str) -> None:
    kind = method_class(name)
    known = {field.name for field in fields(RunConfig)} | set(option_defaults(kind))
    assert set(kind.space) <= known
    for setting, values in kind.space.items():
        ends = values.values if isinstance(values, Choice) else (values.low, values.high)
        for value in ends if setting in option_defaults(kind) else ():
            parse_options(kind, {setting: value})


def test_a_method_must_say_how_to_step(toy: Any) -> None:
    class Empty(Method):
        name = "empty"

    model = toy.network()
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig())
    with pytest.raises(TypeError, match="Empty does not say how to step"):
        Empty(setup).step(toy.batch(0))


@pytest.mark.parametrize("name", ON_NUMBERS)
def test_steps_report_scalars(name: str, toy: Any) -> None:
    values = toy.method(name, toy.network()).step(toy.batch(0))
    assert "task_loss" in values
    for value in values.values():
        assert value.ndim == 0
        assert not value.requires_grad


@pytest.mark.parametrize("name", ON_NUMBERS)
def test_no_step_waits_for_the_device(name: str, toy: Any, no_waiting: Any) -> None:
    model = toy.network()
    method = toy.method(name, model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01, fused=True), every=2)
    batches = [toy.batch(number) for number in range(4)]
    before = next(model.parameters()).detach().clone()
    with no_waiting:  # which raises where one does
        for batch in batches:
            method.step(batch)
    assert not torch.equal(next(model.parameters()), before)


def test_a_planted_read_is_caught(toy: Any, no_waiting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (Tensor.item, bool, float, Tensor.nonzero, Tensor.unique, lambda loss: loss[loss > 0]):
        method = toy.method("erm", toy.network())
        monkeypatch.setattr(Setup, "task_loss", lambda setup, batch, read=read: read(setup.losses(batch).sum()))
        with pytest.raises(Exception, match=r"_local_scalar_dense|nonzero|_unique2|index") as caught, no_waiting:
            method.step(toy.batch(0))
        assert type(caught.value).__name__ == "WaitedError"


@pytest.mark.parametrize("name", METHODS)
def test_an_epoch_of_the_one_loop(name: str, one_epoch: Any) -> None:
    outcome = one_epoch(name, **LOOP.get(name, {}))
    row, *refitted = outcome.rows
    assert len(refitted) == method_class(name).refits
    assert math.isfinite(row["train"]["task_loss"])
    assert 0 <= row["test"]["worst_group"] <= row["test"]["average"] <= 1
    assert not any(module._forward_hooks for module in outcome.model.modules())


@pytest.fixture
def shortcut_table(make_table: Callable[..., ImageTable]) -> ImageTable:
    """Three classes, each of one colour in training: three of the six groups have training images."""
    table = make_table()
    label = torch.arange(len(table)) % 3
    trained = table.split == table.splits.index("train")
    attribute = torch.where(trained, label % 2, table.attribute)
    row = torch.arange(len(table))
    images = torch.zeros_like(table.images)
    images[row, attribute] = table.images.amax(dim=1)
    return replace(
        table, images=images, label=label, attribute=attribute, content=label, classes=("none", "some", "all")
    )


@pytest.mark.parametrize("name", METHODS)
def test_groups_without_training_images_are_handled_or_refused(
    name: str, one_epoch: Any, shortcut_table: ImageTable
) -> None:
    if name == "dkt":
        with pytest.raises(ValueError, match="no class has training images of two: take a method that needs no groups"):
            one_epoch(name, table=shortcut_table)
        return
    outcome = one_epoch(name, table=shortcut_table, **LOOP.get(name, {}))
    row = outcome.rows[-1]
    assert math.isfinite(outcome.rows[0]["train"]["task_loss"])
    assert 0 <= row["test"]["worst_group"] <= row["test"]["average"] <= 1
    assert len(row["test"]["groups"]) == 6
    assert all(torch.isfinite(value).all() for value in outcome.model.state_dict().values())


ONE_LOGIT_REFUSED = {
    "eva_e": "method 'eva_e' needs a last layer with an output for each class",
    "ncm": "method 'ncm' trains a head on frozen features, and its features would change",
}
"""What is said where a network tells two classes apart by one logit, or may not learn."""


@pytest.mark.parametrize("name", METHODS)
def test_a_network_with_one_logit_is_trained_or_refused(name: str, one_epoch: Any) -> None:
    if name in ONE_LOGIT_REFUSED:
        with pytest.raises(ValueError, match=ONE_LOGIT_REFUSED[name]):
            one_epoch(name, model="irm_mlp_83")
        return
    outcome = one_epoch(name, model="irm_mlp_83")
    assert outcome.model.head.out_features == 1
    assert math.isfinite(outcome.rows[0]["train"]["task_loss"])


@pytest.mark.parametrize("name", ON_NUMBERS)
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


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in GUIDED), ("joint", {"order": "sum"})])
def test_pairs_are_drawn_more_rarely_while_they_agree(name: str, options: dict[str, Any], toy: Any, drawn: Any) -> None:
    """Members are the same but for the third batch; what `corrected` says is what was drawn."""

    class Once(type(drawn())):  # type: ignore[misc]
        def draw(self) -> Any:
            self.options = {"shift": 100.0 if self.count == 2 else 0.0, "n": 60}
            return super().draw()

    source = Once(toy)
    method = toy.method(name, toy.network(), every="auto", rate=1e-3, options=options, pairs_from=source)
    due = []
    for number in range(11):
        before = source.count
        due += [number] if method.due else []
        told = method.step(toy.batch(number))
        assert source.count - before == told["corrected"].item() == (number in due)
        if source.count == 3:
            assert 0 < told.get("disagreement", torch.ones(())).item() <= 1
    assert due == [0, 1, 3, 7, 8, 10]  # the third was at 3, and the next one heard of it


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in GUIDED), ("joint", {"order": "sum"})])
@pytest.mark.parametrize("layer", [Noise, lambda: nn.Dropout(0.5)], ids=["noise", "dropout"])
def test_checkpointed_layers_are_trained_like_plain_ones(
    name: str, options: dict[str, Any], layer: Any, toy: Any
) -> None:
    """Pairs run without noise, also where their layers run again in the backward pass."""
    ends = []
    for checkpointed in (False, True):
        torch.manual_seed(1)
        model = Checkpointed(layer(), checkpointed=checkpointed, classes=3).double().train()
        method = toy.method(name, model, options=options)
        torch.manual_seed(2)
        for number in range(3):
            method.step(toy.batch(number))
        assert all(module.training for module in model.modules())
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ON_NUMBERS)
def test_a_state_goes_on_exactly(name: str, toy: Any, drawn: Any, tmp_path: Path) -> None:
    """Stopped inside a cycle of `every`, with the relative margin measured before, and read from a checkpoint."""

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
    save_checkpoint(tmp_path / "state", method.state_dict())
    method2.load_state_dict(load_checkpoint(tmp_path / "state"))
    source2.count = source.count
    for number in range(5, 11):
        one, other = method.step(toy.batch(number)), method2.step(toy.batch(number))
        assert {k: v.item() for k, v in one.items()} == {k: v.item() for k, v in other.items()}
    for one, other in zip(model.parameters(), model2.parameters(), strict=True):
        assert torch.equal(one, other)
