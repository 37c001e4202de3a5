"""A search as a whole: real trials on small images, in this process and in others."""

from __future__ import annotations

import io
import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forking import Forked, Template
from rich.console import Console

from ipg.config import RunConfig, load_config
from ipg.experiments import runner
from ipg.experiments.search import objective as search_objective
from ipg.experiments.search import run as module
from ipg.experiments.search.result import Found, origin_of
from ipg.experiments.search.run import BEST, make_plan, search
from ipg.experiments.search.storage import JOURNAL
from ipg.experiments.store import Store, read_rows
from ipg.methods.space import Uniform
from ipg.training import loop

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    search_objective._readable.cache_clear()


@pytest.fixture
def base(small: dict[str, Any]) -> RunConfig:
    return RunConfig(**small | {"epochs": 1}, seed=100, device="cpu")


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def values(found: Found) -> list[tuple[Any, ...]]:
    return [(trial.number, trial.state, trial.value, dict(trial.settings)) for trial in found.trials]


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"base": {"seed": 9}}, "seed 9 may be among those that results are reported on; a search takes one from 100"),
        ({"trials": 0}, "0 trials are asked for; expected at least 1"),
        ({"sampler": "grid"}, "there is no sampler 'grid'; there are tpe, random"),
        ({"prune": True, "vary": ["epochs"]}, "--prune compares trials epoch by epoch: leave epochs out of --vary"),
        ({"objective": "search"}, "objective 'search' cannot be measured on bars: it has no split search"),
        ({"base": {"pair_builder": "magic"}}, "magic"),
        ({"base": {"method": "gals"}}, "method 'gals' needs maps of where CLIP looks in training images, and"),
        ({"base": {"method": "epg"}}, "method 'epg' needs masks of the objects in training images, and there"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(base: RunConfig, changes: dict[str, Any], says: str) -> None:
    config = base.with_changes(**changes.pop("base", {}))
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        make_plan(config, **changes)


def test_a_plan_is_judged_by_what_the_data_have(base: RunConfig) -> None:
    plan = make_plan(base, vary=["learning_rate"], given=["tau"])
    assert (plan.name, plan.objective, plan.trials, plan.sampler) == ("bars-ipg", "worst_group", 100, "tpe")
    assert list(plan.space) == ["alpha", "margin", "learning_rate"]


def test_what_the_trials_will_be_is_what_has_to_fit(base: RunConfig) -> None:
    """Not what they begin from: NCM takes pixels, which are one of three networks to choose from."""
    plan = make_plan(base.with_changes(method="ncm"), vary=["model=small_cnn,linear,mnist_cnn"])
    assert "model" in plan.space
    with pytest.raises(ValueError, match="method 'ncm' trains a head on frozen features"):
        make_plan(base.with_changes(method="ncm"), vary=["model=mnist_cnn,small_cnn"])


# -- real trials -------------------------------------------------------------------------------------------------------


def test_a_search_finds_the_same_again_and_its_file_trains(base: RunConfig, tmp_path: Path) -> None:
    plan = make_plan(base, trials=3, sampler="random")
    found = search(plan, tmp_path / "one", workers=1, console=quiet())
    again = search(plan, tmp_path / "two", workers=1, console=quiet())
    assert values(found) == values(again)
    assert [trial.state for trial in found.trials] == ["complete"] * 3
    assert len({json.dumps(dict(trial.settings)) for trial in found.trials}) == 3
    rows = read_rows(tmp_path / "one" / "trials.jsonl")
    assert [row["value"] for row in rows] == [trial.value for trial in found.trials]
    assert found.best is not None
    assert found.best.value == max(row["value"] for row in rows)

    file = tmp_path / "one" / BEST
    config = load_config(file)
    assert config == found.config.with_changes(seed=0, device="auto")
    assert f"# Best: trial {found.best.number}, {100 * found.best.value:.2f} % (" in file.read_text(encoding="utf-8")
    assert origin_of(file.read_text(encoding="utf-8")) == (3, round(100 * found.best.value, 2) / 100)
    assert origin_of("alpha = 0.3\n") == (None, None)
    with pytest.raises(ValueError, match="there is no search called another to go on with"):
        search(replace(plan, name="another"), tmp_path / "one", workers=1, console=quiet(), resume=True)


def test_the_best_configuration_trains_to_its_value(base: RunConfig, tmp_path: Path) -> None:
    """The network of the best trial, trained anew from the file with the search's seed, is worth what was said."""
    from ipg.training.loop import train
    from ipg.training.materials import gather

    plan = make_plan(base.with_changes(every=1), trials=2, sampler="random")
    found = search(plan, tmp_path, workers=1, console=quiet())
    config = load_config(tmp_path / BEST).with_changes(seed=100, device="cpu")
    outcome = train(config, gather(config))
    assert found.best is not None
    assert outcome.rows[-1]["validation"]["worst_group"] == found.best.value


def test_given_again_it_goes_on(base: RunConfig, tmp_path: Path) -> None:
    whole = search(make_plan(base, trials=4, sampler="random"), tmp_path / "whole", workers=1, console=quiet())
    search(make_plan(base, trials=1, sampler="random"), tmp_path / "parts", workers=1, console=quiet())
    said = quiet()
    parts = search(make_plan(base, trials=4, sampler="random"), tmp_path / "parts", workers=1, console=said)
    assert values(parts) == values(whole)
    assert isinstance(said.file, io.StringIO)
    lines = said.file.getvalue().splitlines()
    assert lines[0] == "bars-ipg: 4 trials, 1 done"
    assert lines[1].startswith("[1/3] trial 1: alpha ")
    done = quiet()
    search(make_plan(base, trials=4, sampler="random"), tmp_path / "parts", workers=1, console=done)
    assert isinstance(done.file, io.StringIO)
    assert done.file.getvalue() == "bars-ipg: 4 trials, 4 done\n"


def test_after_its_limit_a_search_leaves_the_rest(search_stubs: Any, notes: Path, tmp_path: Path) -> None:
    """Trial 2 waits without end; it is taken up again when the search goes on."""
    said, plan = quiet(), search_stubs.plan(4, notes, sampler="random")
    found = search(plan, tmp_path / "s", workers=1, run=search_stubs.waiting, console=said, limit=1.5)
    assert found.count("complete") == 2
    assert isinstance(said.file, io.StringIO)
    assert said.file.getvalue().splitlines()[-1] == "stub: the time is over, 2 of 4 trials are done"
    found = search(plan, tmp_path / "s", workers=1, run=search_stubs.quick, console=quiet(), limit=600.0)
    assert found.count("complete") == len(found.trials) == 4


def test_a_stop_in_the_last_part_of_a_trial_stops_the_search(
    base: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial itself is told of."""
    real: Any = loop.Training._finish

    def finish(run: loop.Training) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(run)

    plan = make_plan(base, trials=3, sampler="random")
    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "_finish", finish)
        for done in (1, 2):
            with pytest.raises(KeyboardInterrupt, match=f"stopped, {done} of 3 trials are done"):
                search(plan, tmp_path, workers=1, console=quiet())
            assert len(read_rows(Store(tmp_path).rows)) == done
    assert search(plan, tmp_path, workers=1, console=quiet()).count("complete") == 3


def test_a_search_sees_between_trials_that_the_time_is_over(
    search_stubs: Any, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.os, "kill", lambda *_: None)

    def slow(trial: Any, **options: Any) -> dict[str, Any]:
        time.sleep(0.5)
        row: dict[str, Any] = search_stubs.quick(trial, **options)
        return row

    plan = search_stubs.plan(4, notes, sampler="random")
    assert search(plan, tmp_path, workers=1, run=slow, console=quiet(), limit=0.1).count("complete") == 1


def test_nan_never_stops_a_search(base: RunConfig, tmp_path: Path) -> None:
    config = base.with_changes(method="erm", optimizer="sgd")
    plan = make_plan(config, trials=4, sampler="random", vary=["learning_rate=1e-3,1e30"], objective="pairs")
    said = quiet()
    found = search(plan, tmp_path, workers=1, console=said)
    states = {trial.settings["learning_rate"]: trial.state for trial in found.trials}
    assert states == {1e-3: "complete", 1e30: "wrong"}
    assert found.config.learning_rate == 1e-3
    assert isinstance(said.file, io.StringIO)
    assert "went wrong, counted as 0 %: the loss is NaN or infinite" in said.file.getvalue()
    assert "the loss is NaN or infinite" in (tmp_path / BEST).read_text(encoding="utf-8")


def test_trials_behind_the_median_are_given_up(base: RunConfig, tmp_path: Path) -> None:
    config = base.with_changes(method="erm", epochs=3, batch=8)
    rates = ["learning_rate=1e-6:1e-2:log"]
    plan = make_plan(config, trials=10, sampler="random", prune=True, vary=rates, objective="pairs")
    found = search(plan, tmp_path, workers=1, console=quiet())
    states = [trial.state for trial in found.trials]
    assert states[:5] == ["complete"] * 5
    assert set(states[5:]) == {"complete", "pruned"}
    curves = {row["number"]: row["curve"] for row in read_rows(tmp_path / "trials.jsonl")}
    for trial in found.trials:
        assert len(curves[trial.number]) == 3 if trial.state == "complete" else len(curves[trial.number]) == 2
        assert trial.value == curves[trial.number][-1]
    second = sorted(curves[number][1] for number in range(5))
    assert max(curves[states.index("pruned")]) < second[2]  # the median of five
    assert found.best is not None
    assert found.best.state == "complete"


def test_interrupted_it_goes_on_with_the_trial_under_way(base: RunConfig, tmp_path: Path) -> None:
    plan = make_plan(base, trials=3, sampler="random")
    whole = search(plan, tmp_path / "whole", workers=1, console=quiet())
    run = module.run_search_trial
    begun: list[int] = []

    def interrupted(trial: Any, **options: Any) -> dict[str, Any]:
        begun.append(trial.number)
        if trial.number == 1 and begun.count(1) == 1:
            raise KeyboardInterrupt
        return run(trial, **options)

    with pytest.raises(KeyboardInterrupt, match="stopped, 1 of 3 trials are done; run the same command again to go on"):
        search(plan, tmp_path / "parts", workers=1, console=quiet(), run=interrupted)
    assert (tmp_path / "parts" / BEST).exists()
    found = search(plan, tmp_path / "parts", workers=1, console=quiet(), run=interrupted)
    assert begun == [0, 1, 1, 2]
    assert values(found) == values(whole)


# -- stubs of trials ---------------------------------------------------------------------------------------------------


def test_the_best_so_far_is_written_after_every_trial(search_stubs: Any, tmp_path: Path) -> None:
    """So that it tells of all that are done where the command is killed, which nothing can be done about then."""
    seen: list[int | None] = []

    def looking(trial: Any, **options: Any) -> dict[str, Any]:
        file = tmp_path / BEST
        seen.append(origin_of(file.read_text(encoding="utf-8"))[0] if file.exists() else None)
        row: dict[str, Any] = search_stubs.quick(trial, **options)
        return row

    search(search_stubs.plan(3, sampler="random"), tmp_path, workers=1, run=looking, console=quiet())
    assert seen == [None, 1, 2]


def test_a_row_that_nobody_told_is_told(search_stubs: Any, tmp_path: Path, notes: Path) -> None:
    """The search was killed between a trial's row and Optuna."""
    plan = search_stubs.plan(2, notes)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Ledger, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            search(plan, tmp_path / "s", workers=1, run=search_stubs.quick, console=quiet())
    said = quiet()
    found = search(plan, tmp_path / "s", workers=1, run=search_stubs.quick, console=said)
    assert found.count("complete") == 2
    assert isinstance(said.file, io.StringIO)
    assert [": failed" in line for line in said.file.getvalue().splitlines()] == [False] * 3
    assert {number: len(pids) for number, pids in search_stubs.begun(notes).items()} == {0: 1, 1: 1}


def test_journal_and_rows_are_enough_to_go_on_elsewhere(search_stubs: Any, notes: Path, tmp_path: Path) -> None:
    """As from a folder of results that is committed: no locks, nothing of the trial that was under way."""
    whole = search(search_stubs.plan(4), tmp_path / "whole", workers=1, run=search_stubs.quick, console=quiet())
    plan = search_stubs.plan(4, notes)
    search(plan, tmp_path / "here", workers=1, run=search_stubs.waiting, console=quiet(), limit=1.5)
    (tmp_path / "there").mkdir()
    for name in (JOURNAL, "trials.jsonl"):
        shutil.copy(tmp_path / "here" / name, tmp_path / "there")
    found = search(plan, tmp_path / "there", workers=1, run=search_stubs.quick, console=quiet(), resume=True)
    assert values(found) == values(whole)
    assert [row["number"] for row in read_rows(tmp_path / "there" / "trials.jsonl")] == [0, 1, 2, 3]


def test_a_failed_trial_does_not_stop_the_others_and_leaves_its_place(search_stubs: Any, tmp_path: Path) -> None:
    said = quiet()
    found = search(search_stubs.plan(3), tmp_path, workers=1, run=search_stubs.failing, console=said)
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete", "complete"]
    assert isinstance(said.file, io.StringIO)
    assert "failed: RuntimeError: trial 1 is not to be had (see " in said.file.getvalue()
    assert len(Store(tmp_path).done()) == 3


def test_three_failures_in_a_row_end_it(search_stubs: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 trials in a row have failed, the last: RuntimeError: no pairs"):
        search(search_stubs.plan(9), tmp_path, workers=1, run=search_stubs.never, console=quiet())


def test_a_trial_that_a_dying_process_still_holds_is_waited_for(
    search_stubs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[str] = []
    attempt = module.Job.attempt

    def busy_at_first(job: Any, trial: Any, tell: Any) -> Any:
        claims.append(trial.key)
        return module.Ended(trial.key, "elsewhere") if len(claims) == 1 else attempt(job, trial, tell)

    monkeypatch.setattr(module.Job, "attempt", busy_at_first)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    found = search(search_stubs.plan(2), tmp_path, workers=1, run=search_stubs.quick, console=quiet())
    assert found.count("complete") == 2
    assert [key.split("-")[0] for key in claims] == ["0000", "0001", "0000"]


def begun(stubs: Any, notes: Path) -> dict[int, int]:
    return {number: len(pids) for number, pids in stubs.begun(notes).items()}


@pytest.mark.slow
def test_a_killed_workers_trial_goes_on_in_another(search_stubs: Any, tmp_path: Path, notes: Path) -> None:
    said = quiet()
    plan = search_stubs.plan(5, notes, sampler="random")
    found = search(plan, tmp_path / "s", workers=2, run=search_stubs.dying_once, console=said)
    alone = search(
        search_stubs.plan(5, sampler="random"), tmp_path / "t", workers=1, run=search_stubs.quick, console=quiet()
    )
    assert values(found) == values(alone)
    assert begun(search_stubs, notes) == {0: 1, 1: 2, 2: 1, 3: 1, 4: 1}
    assert isinstance(said.file, io.StringIO)
    assert "its process was ended by SIGKILL (out of memory?); another goes on with it" in said.file.getvalue()


@pytest.mark.slow
def test_the_trials_of_a_killed_search_are_taken_up(
    template: Template, search_stubs: Any, tmp_path: Path, notes: Path
) -> None:
    """The command itself is killed with two trials under way; no trial is lost or doubled."""
    folder = tmp_path / "s"
    line = [search_stubs.__file__, folder, notes, "waiting", "6", "2"]
    first = template.start(*line, log=tmp_path / "first.log")
    search_stubs.wait_for(lambda: len(search_stubs.begun(notes)) == 4)
    first.kill()
    assert first.wait(120) == -signal.SIGKILL
    (notes / "go").touch()
    second = template.start(*line, log=tmp_path / "second.log")
    assert second.wait(120) == 0, second.log.read_text()
    assert second.log.read_text().splitlines()[-1] == "6"
    counts = begun(search_stubs, notes)
    assert sorted(counts) == list(range(6))
    assert [counts[number] for number in (0, 1, 4, 5)] == [1, 1, 1, 1]
    found = search(search_stubs.plan(6, sampler="random"), folder, console=quiet())
    assert [(trial.number, trial.state) for trial in found.trials] == [(n, "complete") for n in range(6)]


@pytest.mark.slow
def test_two_searches_at_once_share_the_trials(
    template: Template, search_stubs: Any, tmp_path: Path, notes: Path
) -> None:
    line = [search_stubs.__file__, tmp_path / "s", notes, "slowly", "8", "1"]
    both = [template.start(*line, log=tmp_path / f"{number}.log") for number in range(2)]
    ends = [process.wait(120) for process in both]
    assert ends == [0, 0], [process.log.read_text() for process in both]
    assert begun(search_stubs, notes) == dict.fromkeys(range(8), 1)
    assert len({pid for pids in search_stubs.begun(notes).values() for pid in pids}) == 2


@pytest.mark.slow
def test_a_killed_run_of_the_command_ends_with_the_same_values(
    template: Template, search_stubs: Any, tmp_path: Path
) -> None:
    """Real trials on the embedded images; the process is killed in the middle of the second."""
    settings = "--epochs 2 --batch 256 --pairs 8 --held-out-pairs 20 --trials 3 --sampler random --workers 1"

    def command(folder: Path, log: str) -> Forked:
        line = ["search", *settings.split(), "--device", "cpu", "--output", folder]
        return template.start("-m", "ipg", *line, log=tmp_path / log)

    whole = command(tmp_path / "whole", "whole.log")
    assert whole.wait(300) == 0, whole.log.read_text()
    process = command(tmp_path / "parts", "parts.log")
    try:
        search_stubs.wait_for(
            lambda: any((tmp_path / "parts" / "trials").glob("0001-*/run/metrics.jsonl")), seconds=300
        )
    finally:
        process.kill()
        process.wait(120)
    again = command(tmp_path / "parts", "again.log")
    assert again.wait(300) == 0, again.log.read_text()
    assert "3 trials, 1 done" in again.log.read_text()
    one, two = (read_rows(tmp_path / name / "trials.jsonl") for name in ("whole", "parts"))
    assert [(row["key"], row["value"], row["curve"]) for row in one] == [
        (row["key"], row["value"], row["curve"]) for row in two
    ]


def test_a_search_for_one_setting_of_a_users_choice(search_stubs: Any, tmp_path: Path) -> None:
    plan = search_stubs.plan(12, space={"alpha": Uniform(0.25, 0.35)})
    found = search(plan, tmp_path, workers=1, run=search_stubs.quick, console=quiet())
    assert 0.25 <= found.config.alpha <= 0.35
    assert list(found.importances) == ["alpha"]
