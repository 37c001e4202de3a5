"""What each method may try under the unified protocol: its defaults, and draws from its space."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from experiments.unified_rows import DATASETS, PLAIN, SMALL, settings_of

from ipg.config import RunConfig
from ipg.experiments.study import find_study
from ipg.experiments.unified.plan import Contender, configurations, draw, load_protocol, space_of
from ipg.methods import METHODS, method_class
from ipg.methods.options import option_defaults
from ipg.methods.space import Choice, LogUniform, Range, Uniform, Whole, ZeroOr


def inside(value: Any, range_: Range) -> bool:
    match range_:
        case Choice(values):
            return value in values
        case ZeroOr(low, high):
            return value == 0 or low <= value <= high
        case Whole(low, high):
            return isinstance(value, int) and low <= value <= high
    return isinstance(value, float) and range_.low <= value <= range_.high


@pytest.mark.parametrize("dataset", DATASETS)
def test_configurations_are_the_defaults_and_draws_from_the_contenders_space(dataset: str) -> None:
    protocol = load_protocol(dataset)
    for contender in protocol.contenders:
        method, space = method_class(contender.method), space_of(protocol, contender)
        found = [settings_of(config) for config in configurations(protocol, contender)]
        usual = {**protocol.base, **option_defaults(method), **settings_of(contender.config)}
        assert all(found[0][name] == usual[name] for name in space if name in usual)
        for drawn in found[1:]:
            assert all(inside(drawn[name], range_) for name, range_ in space.items()), drawn
            assert all(float(f"{v:.3g}") == v for v in drawn.values() if isinstance(v, float))
            assert drawn.get("alpha", 0) * contender.config.get("every", protocol.base["every"]) < 1
        assert len({json.dumps(one, sort_keys=True) for one in found}) == len(found)


def test_as_many_configurations_as_the_protocol_grants_or_the_space_has() -> None:
    protocol = load_protocol("colored_mnist")
    counts = Counter(trial.method for trial in find_study("colored_mnist_unified_tuning").trials)
    expected = dict.fromkeys(METHODS, protocol.configurations) | {
        **dict.fromkeys(("erm", "oracle", "shape_only", "rwg", "subg", "dfr"), 1),  # nothing to choose
        "pair_contrastive": 3,
        "pair_augmentation": 4,
        "lff": 4,
        "dair": 12,  # two contenders
        "ipg": 12,
    }
    assert counts == {name: expected[name] for name in counts}


def test_values_of_the_protocol_stand_in_for_ranges_of_the_method() -> None:
    """A contender's own come first, then the method's; those of the data set are for who has none and fixes none."""
    protocol = replace(SMALL, values={"learning_rate": (1e-3, 1e-2), "batch": (16, 32)})
    irm = Contender("irm", values={"anneal": (1, 7)})
    own = method_class("irm").space
    assert own["anneal"] != Choice((1, 7))
    rates, batches = Choice((1e-3, 1e-2)), Choice((16, 32))
    assert space_of(protocol, irm) == {**own, "anneal": Choice((1, 7)), "learning_rate": rates, "batch": batches}
    plain = Contender("erm", {"batch": 8}, PLAIN)
    assert space_of(protocol, plain) == {"learning_rate": rates}  # of the data set; none of the method's own
    assert space_of(SMALL, plain) == {}
    assert space_of(SMALL, Contender("erm")) == method_class("erm").space
    assert space_of(protocol, Contender("epg"))["learning_rate"] == method_class("epg").space["learning_rate"]
    drawn = configurations(replace(protocol, configurations=5), plain)
    assert drawn[0]["learning_rate"] == RunConfig().learning_rate
    assert {one["learning_rate"] for one in drawn[1:]} == {1e-3, 1e-2}
    assert all(one["batch"] == 8 for one in drawn)


def test_a_default_outside_of_the_space_is_a_configuration_of_its_own() -> None:
    found = configurations(load_protocol("colored_mnist"), Contender("irm"))
    assert found[0]["options"] == {"weight": 100.0, "anneal": 500}
    assert all(config["options"]["anneal"] != 500 for config in found[1:])


def test_a_methods_draws_do_not_depend_on_the_others() -> None:
    protocol = load_protocol("colored_mnist")
    alone = replace(protocol, contenders=(Contender("irm"),))
    assert configurations(alone, Contender("irm")) == configurations(protocol, Contender("irm"))
    irm, vrex = (configurations(protocol, Contender(name)) for name in ("irm", "vrex"))  # of the same space
    assert [config["options"] for config in irm[1:]] != [config["options"] for config in vrex[1:]]


def test_more_configurations_keep_those_there_are() -> None:
    protocol = load_protocol("colored_mnist")
    more = configurations(replace(protocol, configurations=9), Contender("fishr"))
    assert len(more) == 9
    assert more[:6] == configurations(protocol, Contender("fishr"))


def test_another_seed_draws_others() -> None:
    protocol = load_protocol("colored_mnist")
    one, other = (configurations(replace(protocol, seed=seed), Contender("coral")) for seed in (100, 101))
    assert one[0] == other[0]
    assert not any(config in other for config in one[1:])


def test_draws_follow_their_range() -> None:
    def many(range_: Range) -> list[Any]:
        return [draw(range_, 0, "method", number, "setting") for number in range(2000)]

    assert all(abs(count - 500) < 100 for count in Counter(many(Choice(tuple("abcd")))).values())
    assert sum(value < 10 for value in many(LogUniform(0.1, 1000.0))) == pytest.approx(1000, abs=100)
    assert sum(value < 2.5 for value in many(Uniform(2.0, 3.0))) == pytest.approx(1000, abs=100)
    assert set(many(Whole(3, 7))) == {3, 4, 5, 6, 7}
    assert many(ZeroOr(0.5, 1.0)).count(0.0) == pytest.approx(1000, abs=100)
    assert sum(0 < value < 0.75 for value in many(ZeroOr(0.5, 1.0))) == pytest.approx(500, abs=100)
