"""One trial of a search, on small images."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.experiments.search import objective as search_objective
from ipg.experiments.search import trial as search_trial
from ipg.experiments.search.trial import WORST, SearchTrial, in_words, limits, run_search_trial
from ipg.training import loop, materials
from ipg.training.folder import read_jsonl

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    search_objective._readable.cache_clear()


@pytest.fixture
def make(small: dict[str, Any]) -> Callable[..., SearchTrial]:
    def trial(**changes: Any) -> SearchTrial:
        own = {name: changes.pop(name) for name in ("number", "limits", "objective") if name in changes}
        config = RunConfig(seed=100, **small | {"method": "erm"} | changes)
        return SearchTrial("s", "bars", config.method, "search", 100, config, settings=(("alpha", 0.1),), **own)

    return trial


def test_a_row_is_worth_what_its_kept_epoch_is(make: Any, tmp_path: Path) -> None:
    told: list[float] = []
    row = run_search_trial(make(), metrics_split="validation", folder=tmp_path / "run", tell=told.append)
    kept = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert row["state"] == "complete"
    assert row["value"] == kept[-1]["validation"]["worst_group"]
    assert row["curve"] == [epoch["validation"]["worst_group"] for epoch in kept]
    assert row["without_groups"] == kept[-1]["validation"]["balanced"] * (1 - kept[-1]["pair_disagreement"])
    assert row["group_mean"] == kept[-1]["validation"]["group_mean"]
    assert row["metrics"]["average"] == kept[-1]["validation"]["average"]
    assert row["config"]["batch"] == 32
    assert not {"seed", "device", "data_path"} & set(row["config"])
    assert {"commit", "hardware", "versions", "date", "seconds"} <= set(row)
    assert told[0] == 0


def test_nothing_of_a_trial_can_see_the_test_images(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_table: Callable[..., ImageTable]
) -> None:
    """The loop is given data without them, and what it writes knows no such split."""
    seen: list[materials.Materials] = []
    train = search_trial.train

    def keep(config: RunConfig, given: materials.Materials, **options: Any) -> Any:
        seen.append(given)
        return train(config, given, **options)

    monkeypatch.setattr(search_trial, "train", keep)
    row = run_search_trial(make(), metrics_split="validation", folder=tmp_path / "run")
    (given,) = seen
    assert given.table.splits == ("train", "validation")
    tests = {image.numpy().tobytes() for image in make_table(seed=100).part("test").images}
    assert not tests & {image.numpy().tobytes() for image in given.table.images}
    assert "test" not in read_jsonl(tmp_path / "run" / "metrics.jsonl")[0]
    assert row["split"] == "validation"
    with pytest.raises(ValueError, match="bars has no split 'test'"):
        run_search_trial(make(), metrics_split="test")


def test_nan_is_the_worst_value(make: Any) -> None:
    row = run_search_trial(make(learning_rate=1e30, optimizer="sgd"), metrics_split="validation")
    assert (row["state"], row["value"]) == ("wrong", WORST)
    assert row["error"].startswith("the loss is NaN or infinite by iteration")


def test_a_trial_behind_the_others_is_given_up(make: Any, tmp_path: Path) -> None:
    row = run_search_trial(
        make(epochs=4, limits=(None, 2.0, 2.0, 2.0)), metrics_split="validation", folder=tmp_path / "run"
    )
    assert row["state"] == "pruned"
    assert len(row["curve"]) == 2
    assert row["value"] == row["curve"][-1]


def test_the_last_epoch_and_what_is_level_are_kept(make: Any) -> None:
    assert run_search_trial(make(limits=(None, 2.0)), metrics_split="validation")["state"] == "complete"
    assert run_search_trial(make(limits=(0.0, 0.0)), metrics_split="validation")["state"] == "complete"


def test_a_trial_that_is_taken_up_again_is_the_trial(make: Any, tmp_path: Path) -> None:
    """Stopped after its first epoch, then given up for what it did before the stop, too."""
    whole = run_search_trial(make(epochs=3), metrics_split="validation")

    class StopError(Exception):
        pass

    def stop(share: float) -> None:
        if share >= 1 / 3:
            raise StopError

    folder = tmp_path / "run"
    with pytest.raises(StopError):
        run_search_trial(make(epochs=3), metrics_split="validation", folder=folder, tell=stop)
    row = run_search_trial(make(epochs=3), metrics_split="validation", folder=folder)
    assert (row["value"], row["curve"]) == (whole["value"], whole["curve"])


def test_rows_before_a_stop_count_when_a_trial_is_given_up(make: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    calls: list[float] = []

    def stop(share: float) -> None:
        calls.append(share)
        if share > 1 / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_search_trial(make(epochs=4), metrics_split="validation", folder=folder, tell=stop)
    row = run_search_trial(make(epochs=4, limits=(None, None, 2.0, 2.0)), metrics_split="validation", folder=folder)
    assert row["state"] == "pruned"
    assert len(row["curve"]) == 3


def test_a_warning_about_the_settings_is_no_matter_here(make: Any) -> None:
    row = run_search_trial(make(method="ipg", alpha=0.9, every=4, epochs=1), metrics_split="validation")
    assert row["state"] in ("complete", "wrong")


def test_keys_tell_trials_apart(make: Any) -> None:
    assert make(number=3).key != make(number=4).key
    assert make(number=3).key.startswith("0003-")
    assert make(number=3).title == "trial 3: alpha 0.1"
    with pytest.raises(TypeError, match="expected a SearchTrial, got a Trial"):
        run_search_trial(_plain(make()), metrics_split="validation")


def _plain(trial: SearchTrial) -> Any:
    from ipg.experiments.study import Trial

    return Trial(*(getattr(trial, field.name) for field in dataclasses.fields(Trial)))


def test_limits_are_medians_once_there_are_enough() -> None:
    curves = [[0.1, 0.2, 0.9], [0.1, 0.4, 0.8], [0.1, 0.6], [0.5, 0.3, 0.7], [0.5, 0.5, 0.1]]
    assert limits(curves[:4], 3) == ()
    assert limits(curves, 4) == (None, 0.4, 0.75, None)  # the last of 4 epochs nobody has reached


def test_settings_in_words() -> None:
    assert in_words({"alpha": 0.123456, "batch": 64, "margin": "0.5x", "flip": True}) == (
        "alpha 0.1235, batch 64, margin 0.5x, flip True"
    )


class _StopEarly(search_trial._Watcher):
    """Asks a run to stop in its first epoch, as Ctrl-C does."""

    def progress(self, step: int, values: Any) -> None:
        super().progress(step, values)
        if step == 1:
            signal.raise_signal(signal.SIGINT)


def test_a_trial_stopped_within_its_first_epoch_goes_on(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(search_trial, "_Watcher", _StopEarly)
        with pytest.raises(KeyboardInterrupt):
            run_search_trial(make(), metrics_split="validation", folder=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8") == ""
    row = run_search_trial(make(), metrics_split="validation", folder=tmp_path / "run")
    unbroken = run_search_trial(make(), metrics_split="validation", folder=tmp_path / "other")
    assert row["state"] == "complete"
    assert row["curve"] == unbroken["curve"]
