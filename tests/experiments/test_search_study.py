"""The trials of a search: handed out once, drawn from the seed, taken up again, told once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from ipg.config import EARLIER, ConfigError, RunConfig
from ipg.experiments.search.plan import Plan
from ipg.experiments.search.storage import open_storage
from ipg.experiments.search.study import Ledger
from ipg.experiments.search.trial import SearchTrial
from ipg.methods.space import Choice, LogUniform, Uniform, Whole, ZeroOr

WIDE = {
    "alpha": Uniform(0.05, 0.95),
    "tau": ZeroOr(0.0, 1.0),
    "margin": LogUniform(1e-2, 10.0),
    "epochs": Whole(5, 30),
    "batch": Choice((32, 64)),
}


@pytest.fixture
def ledger(tmp_path: Path, search_stubs: Any) -> Iterator[Callable[..., Ledger]]:
    """Opens the ledger of a search, as often as one likes, as another process would."""
    with ExitStack() as stack:

        def make(trials: int = 4, *, folder: str = "search", **changes: Any) -> Ledger:
            plan = search_stubs.plan(trials, **changes)
            storage, holds = open_storage(None, tmp_path / folder, plan.name)
            stack.callback(holds.close)
            return Ledger(plan, storage, holds)

        yield make


def work_off(ledger: Ledger, stubs: Any, *, most: int = 99) -> list[SearchTrial]:
    done: list[SearchTrial] = []
    while len(done) < most and (trial := ledger.take()) is not None:
        ledger.tell(trial, stubs.quick(trial))
        done.append(trial)
    return done


def test_every_trial_is_handed_out_once_and_told(ledger: Any, search_stubs: Any) -> None:
    book = ledger(3)
    done = work_off(book, search_stubs)
    assert [trial.number for trial in done] == [0, 1, 2]
    assert [tried.state for tried in book.tried()] == ["complete"] * 3
    for tried, trial in zip(book.tried(), done, strict=True):
        assert tried.settings == {"alpha": trial.config.alpha}
        assert tried.value == search_stubs.worth(trial.config.alpha)
        assert tried.about["commit"] == "abc"
    assert (done[0].config.seed, done[0].seed, done[0].protocol) == (100, 100, "search")


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_that_goes_on_is_the_search(ledger: Any, search_stubs: Any, sampler: str) -> None:
    whole = work_off(ledger(14, sampler=sampler, space=WIDE, folder="whole"), search_stubs)
    parts = [
        trial
        for trials in (3, 11, 14)
        for trial in work_off(ledger(trials, sampler=sampler, space=WIDE, folder="parts"), search_stubs)
    ]
    assert [trial.settings for trial in parts] == [trial.settings for trial in whole]
    assert len({trial.settings for trial in whole}) == 14


def test_random_settings_do_not_depend_on_what_the_others_are_worth(ledger: Any, search_stubs: Any) -> None:
    told = work_off(ledger(5, sampler="random", folder="one"), search_stubs)
    book = ledger(5, sampler="random", folder="two")
    assert [book.take().settings for _ in range(5)] == [trial.settings for trial in told]


def test_another_seed_is_another_search(ledger: Any, search_stubs: Any) -> None:
    one = work_off(ledger(3, folder="one"), search_stubs)
    two = work_off(ledger(3, folder="two", base=RunConfig(seed=101, epochs=4)), search_stubs)
    assert not {trial.settings for trial in one} & {trial.settings for trial in two}


def test_settings_lie_in_their_ranges(ledger: Any, search_stubs: Any) -> None:
    done = [dict(trial.settings) for trial in work_off(ledger(40, sampler="random", space=WIDE), search_stubs)]
    taus = [settings["tau"] for settings in done]
    assert 5 < taus.count(0.0) < 35
    assert all(0 <= tau <= 1 for tau in taus)
    assert all(0.05 <= settings["alpha"] <= 0.95 for settings in done)
    logs = [math.log10(settings["margin"]) for settings in done]
    assert -2 <= min(logs) < -1 < 0 < max(logs) <= 1
    assert {type(settings["epochs"]) for settings in done} == {int}
    assert {settings["batch"] for settings in done} == {32, 64}


def test_tpe_finds_what_is_worth_more(ledger: Any, search_stubs: Any) -> None:
    """After its ten random trials it draws near the optimum at 0.3."""
    done = work_off(ledger(30), search_stubs)
    distance = [abs(trial.config.alpha - 0.3) for trial in done]
    assert np.median(distance[15:]) < np.median(distance[:10]) / 2


def test_the_sampler_is_the_one_that_is_documented(ledger: Any) -> None:
    book = ledger(1)
    book.take()
    sampler = book.study.sampler
    assert isinstance(sampler, optuna.samplers.TPESampler)
    assert (sampler._n_startup_trials, sampler._n_ei_candidates) == (10, 24)
    assert (sampler._multivariate, sampler._constant_liar, sampler._group) == (False, True, False)
    good = optuna.samplers._tpe.sampler.default_gamma
    assert [good(n) for n in (1, 10, 11, 100, 250, 1000)] == [1, 1, 2, 10, 25, 25]
    weights = optuna.samplers._tpe.sampler.default_weights(100)
    assert weights[-25:].tolist() == [1.0] * 25
    assert weights[:75].tolist() == pytest.approx(np.linspace(0.01, 1, 75))


def test_a_trial_under_way_is_nobody_elses(ledger: Any) -> None:
    here, there = ledger(3), ledger(3)
    numbers = [here.take().number, there.take().number, here.take().number]
    assert numbers == [0, 1, 2]
    assert here.take() is None
    assert there.take() is None


def test_an_orphan_is_taken_up_again_with_its_settings(ledger: Any, search_stubs: Any) -> None:
    gone, book = ledger(3, prune=True), ledger(3, prune=True)
    first, second = gone.take(), gone.take()
    gone.holds.close()
    again = book.take()
    assert again == first
    assert book.take(busy={1}).number == 2
    assert book.take() == second
    assert book.take() is None
    assert len(book.tried()) == 3


def test_an_orphan_that_was_never_drawn(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed right after it had asked for it."""
    gone = ledger(2, space=WIDE)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_draw", _killed)
        with pytest.raises(KeyboardInterrupt):
            gone.take()
    gone.holds.close()
    assert [tried.settings for tried in gone.tried()] == [{}]
    undisturbed = ledger(2, space=WIDE, folder="other").take()
    assert ledger(2, space=WIDE).take().settings == undisturbed.settings


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_who_tells_last_changes_nothing(ledger: Any, search_stubs: Any) -> None:
    slow, fast = ledger(1), ledger(1)
    trial = slow.take()
    slow.holds.close()  # its connection is lost, it works on
    again = fast.take()
    fast.tell(again, search_stubs.quick(again))
    slow.tell(trial, {**search_stubs.quick(trial), "value": 0.123})
    assert [(tried.number, tried.value) for tried in fast.tried()] == [(0, search_stubs.worth(again.config.alpha))]


def test_a_failed_trial_leaves_its_place_and_a_wrong_one_does_not(ledger: Any, search_stubs: Any) -> None:
    book = ledger(2)
    book.fail(book.take(), "out of memory")
    trial = book.take()
    book.tell(trial, {**search_stubs.quick(trial), "state": "wrong", "value": 0.0, "error": "collapsed"})
    work_off(book, search_stubs)
    assert [tried.state for tried in book.tried()] == ["failed", "wrong", "complete"]
    assert [tried.value for tried in book.tried()][:2] == [None, 0.0]
    assert book.tried()[0].about["error"] == "out of memory"
    assert book.tried()[1].about["error"] == "collapsed"


def test_a_value_that_could_not_be_measured_is_a_failure(ledger: Any, search_stubs: Any) -> None:
    book = ledger(1)
    trial = book.take()
    book.tell(trial, {**search_stubs.quick(trial), "value": None})
    (tried,) = book.tried()
    assert (tried.state, tried.about["error"]) == ("failed", "its value could not be measured")


def test_settings_that_were_tried_are_not_tried_again(ledger: Any, search_stubs: Any) -> None:
    book = ledger(10, space=search_stubs.CHOICES, sampler="random")
    done = work_off(book, search_stubs)
    assert len(done) == len({trial.settings for trial in done}) <= 4
    tried = book.tried()
    assert len(tried) == 10
    twins = [trial for trial in tried if "as" in trial.about]
    assert len(twins) == 10 - len(done)
    for twin in twins:
        assert (twin.value, twin.settings) == (tried[twin.about["as"]].value, tried[twin.about["as"]].settings)


def test_limits_come_from_trials_that_were_seen_to_their_end(ledger: Any, search_stubs: Any) -> None:
    book = ledger(8, prune=True)
    first = work_off(book, search_stubs, most=5)
    assert {trial.limits for trial in first} == {()}
    trial = book.take()
    assert trial.limits == (
        None,
        pytest.approx(np.median([search_stubs.worth(t.config.alpha) for t in first])),
        None,
        None,
    )
    book.tell(trial, {"state": "pruned", "value": 0.2, "curve": [0.1, 0.2], "seconds": 1.0})
    assert [(tried.state, tried.value) for tried in book.tried()][-1] == ("pruned", 0.2)
    assert book.take().limits[1] == trial.limits[1]  # what was given up says nothing
    assert ledger(8, folder="plain").take().limits == ()


def test_another_search_is_not_gone_on_with(ledger: Any) -> None:
    ledger(3)
    with pytest.raises(ConfigError) as caught:
        ledger(3, sampler="random", space={"alpha": Uniform(0, 0.5)})
    assert str(caught.value) == (
        "stub is another search: sampler was 'tpe' and is now 'random'; space was {'alpha': '0 to 0.9'} and is now "
        "{'alpha': '0 to 0.5'}. Give this one another place with --output, or with --name in a database."
    )
    ledger(30, base=RunConfig(seed=100, epochs=4, data_path="elsewhere", device="cpu", engine="eager"))  # elsewhere


def test_a_search_from_when_the_engine_was_told_is_gone_on_with_by_another(ledger: Any) -> None:
    book = ledger(3)
    book.study.set_user_attr("plan", {**book.plan.identity, "engine": "compiled"})
    assert ledger(3, base=RunConfig(seed=100, epochs=4, engine="eager")).take().config.engine == "eager"


def test_a_search_from_before_a_setting_joined_is_gone_on_with(ledger: Any) -> None:
    base = RunConfig(seed=100, epochs=4, restarts=0)
    book = ledger(3, base=base)
    before = {name: value for name, value in book.plan.identity.items() if name not in ("restarts", "decision")}
    book.study.set_user_attr("plan", before)
    ledger(3, base=base)
    with pytest.raises(ConfigError, match="stub is another search: restarts was 0 and is now 3"):
        ledger(3, base=base.with_changes(restarts=3))


def test_a_search_from_before_crops_could_be_auto_keeps_what_it_had(ledger: Any) -> None:
    base = RunConfig(seed=100, epochs=4, weights="net.safetensors")
    book = ledger(3, base=base.with_changes(**EARLIER))
    found = ledger(3, base=base).take().config
    assert {name: getattr(found, name) for name in EARLIER} == EARLIER
    with pytest.raises(ConfigError, match=r"another search: crop was 1\.0 and is now 0\.5\."):
        ledger(3, base=base.with_changes(crop=0.5))
    book.study.set_user_attr("plan", ledger(3, base=base, folder="new").plan.identity)
    assert ledger(3, base=base).take().config.is_auto("crop")


def test_crops_can_be_searched_for(ledger: Any, search_stubs: Any) -> None:
    base = RunConfig(seed=100, epochs=4, weights="net.safetensors")
    book = ledger(8, base=base, sampler="random", space={"crop": Choice((0.5, "auto")), "flip": Choice((True, False))})
    tried = [trial.config for trial in work_off(book, search_stubs)]
    assert {config.crop for config in tried} == {0.5, "auto"}
    assert {config.flip for config in tried} == {True, False}


def test_importance_of_a_setting_that_decides_alone(ledger: Any, search_stubs: Any) -> None:
    book = ledger(40, sampler="random", space={"tau": ZeroOr(0, 1), "alpha": Uniform(0, 0.9)})
    assert book.importances() == {}
    work_off(book, search_stubs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares = book.importances()
    assert list(shares) == ["alpha", "tau"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["alpha"] > 0.7


def test_a_plan_is_known_by_what_decides(search_stubs: Any) -> None:
    plan: Plan = search_stubs.plan(3)
    assert plan.identity["space"] == {"alpha": "0 to 0.9"}
    assert not {"alpha", "data_path", "device"} & set(plan.identity)
    assert plan.identity["seed"] == 100
