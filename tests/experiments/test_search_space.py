"""What a search tries."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ipg.config import ConfigError, RunConfig
from ipg.experiments.search.space import COMMON, SETTLED, configure, describe, gather_space, warn_of_pace
from ipg.methods import METHODS, method_class
from ipg.methods.space import Choice, LogUniform, Range, Uniform, Whole, ZeroOr


def problems(*vary: str, given: tuple[str, ...] = (), method: str = "ipg") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        gather_space(RunConfig(method=method), vary, given)
    return caught.value.problems


def test_the_space_of_ipg_is_the_one_that_is_documented() -> None:
    assert gather_space(RunConfig(every=1)) == {
        "alpha": Uniform(0.05, 0.95),
        "tau": ZeroOr(0.0, 1.0),
        "margin": LogUniform(1e-2, 10.0),
    }
    assert COMMON["learning_rate"] == LogUniform(1e-5, 1e-2)
    assert COMMON["epochs"] == Whole(5, 30)


@pytest.mark.parametrize(
    ("every", "low", "high"), [(2, 0.05, 0.5), (4, 0.05, 0.25), (8, 0.025, 0.125), (50, 0.004, 0.02)]
)
def test_alpha_is_searched_where_every_times_alpha_is_below_one(every: int, low: float, high: float) -> None:
    found = gather_space(RunConfig(every=every))["alpha"]
    assert isinstance(found, Uniform)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert gather_space(RunConfig(every=every), ["alpha"])["alpha"] == found
    assert gather_space(RunConfig(method="continuous", every=every))["alpha"] == found
    assert gather_space(RunConfig(every=every), ["alpha=0.1:0.9"])["alpha"] == Uniform(0.1, 0.9)  # the user's word


@pytest.mark.parametrize("every", [1, "auto"])
def test_alpha_has_its_whole_range_where_corrections_keep_pace(every: int | str) -> None:
    config = RunConfig.from_mapping({"every": every})
    assert gather_space(config)["alpha"] == Uniform(0.05, 0.95)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_pace(config, gather_space(config))


@pytest.mark.parametrize(
    ("vary", "warned"),
    [([], False), (["alpha=0.1:0.2"], False), (["alpha=0.1:0.9"], True), (["every"], True), (["every=1,auto"], False)],
)
def test_one_warning_where_alpha_is_tried_beyond_that(vary: list[str], warned: bool) -> None:
    config = RunConfig()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_pace(config, gather_space(config, vary))
        warn_of_pace(RunConfig(method="erm"), {"alpha": Uniform(0.1, 0.9)})  # which takes no notice of it
    assert [("every * alpha is not below 1" in str(w.message)) for w in caught] == [True] * warned


@pytest.mark.parametrize(
    ("vary", "given", "warned"),
    [([], ["alpha"], True), (["alpha=0.1,0.25"], [], True), (["alpha=0.1:0.25"], [], False)],
)
def test_a_warning_where_a_product_of_one_is_tried_itself(vary: list[str], given: list[str], warned: bool) -> None:
    """As `Guidance` warns from 1 on; a range that ends there is as good as below it."""
    config = RunConfig(alpha=0.25, every=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_pace(config, gather_space(config, vary, given))
    assert len(caught) == warned


def test_what_is_given_is_not_searched_for() -> None:
    assert list(gather_space(RunConfig(), given=["tau", "epochs"])) == ["alpha", "margin"]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("learning_rate", "learning_rate", LogUniform(1e-5, 1e-2)),
        ("learning-rate=1e-4:1e-2:log", "learning_rate", LogUniform(1e-4, 1e-2)),
        ("epochs=2:9", "epochs", Whole(2, 9)),
        ("alpha=0:0.5", "alpha", Uniform(0.0, 0.5)),
        ("batch = 64, 128", "batch", Choice((64, 128))),
        ("margin=0.5x,0.85x", "margin", Choice(("0.5x", "0.85x"))),
        ("flip=true,false", "flip", Choice((True, False))),
        ("tau", "tau", ZeroOr(0.0, 1.0)),
    ],
)
def test_ranges_as_they_are_written(text: str, name: str, expected: Range) -> None:
    assert gather_space(RunConfig(), [text])[name] == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alhpa=0:1", "--vary alhpa=0:1: 'alhpa' is nothing that trials can differ in; did you mean alpha?"),
        ("lr=0:1", "--vary lr=0:1: 'lr' is nothing that trials can differ in; did you mean learning_rate?"),
        ("seed=1,2", "--vary seed=1,2: 'seed' is nothing that trials can differ in; "),
        ("crop", "--vary crop: its range is not known: give one, e.g. crop=0:1, crop=1e-4:1:log or crop=1,2,4"),
        ("alpha=0:2", "--vary alpha=0:2: alpha=2: expected 0 <= alpha < 1"),
        ("alpha=0.5:0.1", "--vary alpha=0.5:0.1: low=0.5 must be below high=0.1"),
        ("alpha=0:0.5:log", "--vary alpha=0:0.5:log: low=0 must be positive and below high=0.5"),
        ("alpha=a:b", "--vary alpha=a:b: expected LOW:HIGH, LOW:HIGH:log or values with commas between them"),
        ("alpha=1:2:3:4", "--vary alpha=1:2:3:4: expected LOW:HIGH, LOW:HIGH:log or values with commas between them"),
        ("alpha=", "--vary alpha=: a choice needs at least one value, got none"),
        ("optimizer=adam,lion", "--vary optimizer=adam,lion: optimizer='lion': expected one of adam, adamw, sgd"),
    ],
)
def test_ranges_that_cannot_be(text: str, says: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(says)


def test_all_mistakes_are_named_at_once() -> None:
    assert len(problems("alhpa=0:1", "crop")) == 2
    assert problems("alpha=0:0.5", given=("alpha",)) == [
        "--vary alpha=0:0.5: it is given, too: leave out one of the two"
    ]


@pytest.mark.parametrize("method", ["erm", "oracle", "rwg", "subg", "shape_only"])
def test_methods_without_options_search_for_rate_and_decay(method: str) -> None:
    assert set(gather_space(RunConfig(method=method))) == {"learning_rate", "weight_decay"}


def test_every_method_has_something_to_search_for() -> None:
    assert [name for name in METHODS if not method_class(name).space] == []


def test_where_all_is_given_a_setting_has_to_be_named() -> None:
    assert problems(method="erm", given=("learning_rate", "weight_decay")) == [
        "there is nothing to search for with method 'erm': name a setting, e.g. --vary learning_rate"
    ]


@pytest.mark.parametrize("method", METHODS)
def test_the_ends_of_every_method_make_configurations(method: str) -> None:
    base = RunConfig(method=method)
    for name, range_ in {**method_class(method).space, **COMMON}.items():
        ends: tuple[Any, ...] = range_.values if isinstance(range_, Choice) else (range_.low, range_.high)
        for value in ends:
            flat = configure(base, {name: value}).flat()
            assert str(flat[name]) == str(value) or flat[name] == value
        assert name not in SETTLED


def test_options_of_the_method_and_settings_of_the_run_find_their_place() -> None:
    config = configure(RunConfig(method="irm", options={"penalty": "squared"}), {"weight": 3.0, "batch": 64})
    assert (config.batch, config.options) == (64, {"penalty": "squared", "weight": 3.0})
    with pytest.raises(ValueError, match="option weight=-1"):
        configure(RunConfig(method="irm"), {"weight": -1})


@pytest.mark.parametrize(
    ("range_", "words"),
    [
        (Choice((1, "x")), "one of 1, x"),
        (Uniform(0, 1), "0 to 1"),
        (LogUniform(1e-5, 1), "1e-05 to 1, logarithmic"),
        (Whole(5, 30), "5 to 30, whole"),
        (ZeroOr(0, 1), "0, or 0 to 1"),
    ],
)
def test_ranges_in_words(range_: Range, words: str) -> None:
    assert describe(range_) == words
