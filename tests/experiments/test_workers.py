"""Real worker processes: all trials once, whoever dies or is stopped and when."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import Forked, Template

from ipg.data.parallel import cores
from ipg.experiments import attempt, runner, workers
from ipg.experiments.arms import is_timed
from ipg.experiments.attempt import Job
from ipg.experiments.runner import Tally, run_study
from ipg.experiments.store import Store, read_rows
from ipg.experiments.workers import gpu_of, sharing, suitable_workers

# -- how many, and where -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("known", "expected"), [(1, 1), (2, 1), (3, 1), (4, 2), (64, 32)])
def test_half_the_cores(monkeypatch: pytest.MonkeyPatch, known: int, expected: int) -> None:
    monkeypatch.setattr(workers, "cores", lambda: known)
    assert suitable_workers("cpu") == expected


def test_cores_are_those_one_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1", "2", "0"]), ("5,GPU-7", ["5", "GPU-7", "5", "GPU-7"]), ("3", ["3", "3", "3", "3"])],
)
def test_a_gpu_a_worker(monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu_of(slot, "auto") for slot in range(4)] == expected
    assert suitable_workers("cuda") == 3
    assert gpu_of(0, "cpu") is None


def test_how_many_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [sharing(count, "auto") for count in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert sharing(7, "cpu") == 1


@pytest.mark.parametrize(("processes", "said"), [(1, None), (4, 4)])
def test_a_row_says_that_others_were_at_work_on_its_gpu(
    stubs: Any, notes: Path, tmp_path: Path, processes: int, said: int | None
) -> None:
    (trial,) = stubs.study(1).trials
    here = trial.on("cpu", data_path=str(notes))
    ended = Job({"stub": Store(tmp_path)}, "test", stubs.quick, processes).attempt(here, lambda share: None)
    (row,) = read_rows(tmp_path / "trials.jsonl")
    assert row.get("sharing") == said
    assert ended.row == row


@pytest.mark.parametrize(("device", "said"), [("cuda", [True, None, None]), ("cpu", [None, None, None])])
def test_a_row_says_that_its_process_had_a_gpu_to_make_ready(
    monkeypatch: pytest.MonkeyPatch, stubs: Any, notes: Path, tmp_path: Path, device: str, said: list[bool | None]
) -> None:
    """Which takes longer than training does, and has no part in what a method costs."""
    monkeypatch.setattr("ipg.training.device.resolve_device", lambda name: torch.device(device))
    monkeypatch.setattr("ipg.training.memory.memory_of_others", lambda found: 0)
    monkeypatch.setattr(attempt, "_READY", set())
    job = Job({"stub": Store(tmp_path)}, "test", stubs.quick)
    for trial in stubs.study(3).trials:
        job.attempt(trial.on("cpu", data_path=str(notes)), lambda share: None)
    assert [row.get("first") for row in read_rows(tmp_path / "trials.jsonl")] == said


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_of(0, "auto") is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1, "ended with status 1"), (-9, "was ended by SIGKILL (out of memory?)"), (-11, "was ended by SIGSEGV")],
)
def test_what_a_process_died_of(code: int, expected: str) -> None:
    assert workers._cause(code) == expected


# -- stubs of trials ---------------------------------------------------------------------------------------------------


def begun(notes: Path) -> dict[int, int]:
    """How often each seed was begun."""
    return {int(file.stem): len(file.read_text(encoding="utf-8").split()) for file in notes.glob("*.txt")}


def seeds(results: Path) -> list[int]:
    return sorted(row["seed"] for row in read_rows(results / "trials.jsonl"))


@pytest.mark.slow
def test_workers_share_the_trials(stubs: Any, notes: Path, tmp_path: Path) -> None:
    """Neither ends a trial before each has begun one."""
    tally = run_study(stubs.study(8), tmp_path, data_path=str(notes), workers=2, run=stubs.together)
    assert tally == Tally(8, 0, 0)
    assert seeds(tmp_path) == list(range(8))
    assert begun(notes) == dict.fromkeys(range(8), 1)
    assert len(stubs.pids(notes)) == 2
    assert os.getpid() not in stubs.pids(notes)


@pytest.mark.slow
def test_studies_in_one_queue_have_the_same_processes(stubs: Any, notes: Path, tmp_path: Path) -> None:
    one = stubs.study(8)
    trials = tuple(replace(trial, study=("even", "odd")[trial.seed % 2]) for trial in one.trials)
    folders = {name: tmp_path / name for name in ("even", "odd")}
    paths = {"colored_fashion": str(notes)}
    tally = run_study(replace(one, trials=trials), folders, data_path=paths, workers=2, run=stubs.together)
    assert tally == Tally(8, 0, 0)
    assert len(stubs.pids(notes)) == 2
    assert [seeds(folder) for folder in folders.values()] == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.slow
def test_workers_share_the_cores(stubs: Any, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(workers, "cores", lambda: 3)
    run_study(stubs.study(2), tmp_path, data_path=str(notes), workers=2, run=stubs.threads)
    assert [row["threads"] for row in read_rows(tmp_path / "trials.jsonl")] == [1, 1]


@pytest.mark.slow
def test_a_failing_trial_does_not_stop_the_others(
    stubs: Any, notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = stubs.study(4)
    tally = run_study(study, tmp_path, data_path=str(notes), workers=2, run=stubs.failing)
    assert tally == Tally(3, 1, 0)
    assert seeds(tmp_path) == [0, 2, 3]
    assert begun(notes) == dict.fromkeys(range(4), 1)  # not tried again by this runner
    error = Store(tmp_path).error_file(study.trials[1].key)
    assert "study_stubs.py" in error.read_text(encoding="utf-8")
    assert f"failed: RuntimeError: seed 1 is not to be had (see {error})" in capsys.readouterr().out


@pytest.mark.slow
def test_the_trial_of_a_killed_worker_is_taken_up_again(
    stubs: Any, notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = run_study(stubs.study(5), tmp_path, data_path=str(notes), workers=2, run=stubs.dying_once)
    assert tally == Tally(5, 0, 0)
    assert seeds(tmp_path) == list(range(5))
    assert begun(notes) == {0: 1, 1: 2, 2: 1, 3: 1, 4: 1}
    assert "its process was ended by SIGKILL (out of memory?); another goes on with it" in capsys.readouterr().out


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_trials_that_lacked_memory_beside_others_are_run_once_more_alone(
    stubs: Any, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    processes: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(runner, "Job", partial(Job, sharing=2))  # on one GPU, that is
    monkeypatch.setattr(runner, "sharing", lambda count, device: 2)
    monkeypatch.setattr(runner, "suitable_workers", lambda device: 1)
    study = stubs.study(4)
    tally = run_study(study, tmp_path, data_path=str(notes), workers=processes, run=stubs.crowded)
    assert (tally, tally.failures) == (Tally(3, 1, 0), {study.trials[2].key})
    assert sorted(seeds(tmp_path)) == [0, 1, 3]
    assert begun(notes) == {0: 1, 1: 2, 2: 2, 3: 1}
    said = capsys.readouterr().out
    assert said.count("it lacked memory beside others; it comes again when they are done") == 2
    assert "2 trials lacked memory beside others: now each alone" in said
    assert said.count("failed: OutOfMemoryError: out of memory with --batch 128") == 1
    again = (notes / "1.txt").read_text(encoding="utf-8").split()[1]
    assert int(again) == os.getpid()  # which has the GPU to itself, the others being gone


def test_a_trial_that_has_no_company_is_not_run_again_for_lack_of_memory(
    stubs: Any, notes: Path, tmp_path: Path
) -> None:
    study = stubs.study(3)
    assert run_study(study, tmp_path, data_path=str(notes), workers=1, run=stubs.crowded) == Tally(1, 2, 0)
    assert begun(notes) == {0: 1, 1: 1, 2: 1}


@pytest.mark.slow
def test_a_trial_that_kills_every_worker_is_given_up(
    stubs: Any, notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = stubs.study(4)
    tally = run_study(study, tmp_path, data_path=str(notes), workers=2, run=stubs.dying)
    assert tally == Tally(3, 1, 0)
    assert begun(notes) == {0: 1, 1: 3, 2: 1, 3: 1}
    line = "3 processes died at it, the last was ended by SIGKILL (out of memory?)"
    assert Store(tmp_path).error_file(study.trials[1].key).read_text(encoding="utf-8") == f"{line}\n"
    assert f"failed: {line}" in capsys.readouterr().out


def is_there(pid: int) -> bool:
    """Whether a process lives; one that only waits to be counted out does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_of_a_killed_runner_stop_and_their_trials_are_taken_up(
    template: Template, stubs: Any, notes: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    runner = template.start(stubs.__file__, results, notes, "waiting", "4", "2", log=tmp_path / "log")
    stubs.wait_for(lambda: len(stubs.pids(notes)) == 2)
    runner.kill()
    runner.wait(120)
    stubs.wait_for(lambda: not any(map(is_there, stubs.pids(notes))))
    assert read_rows(results / "trials.jsonl") == []
    (notes / "go").touch()
    assert run_study(stubs.study(4), results, data_path=str(notes), workers=2, run=stubs.waiting) == Tally(4, 0, 0)
    assert seeds(results) == list(range(4))
    assert begun(notes) == {0: 2, 1: 2, 2: 1, 3: 1}


# -- real training -----------------------------------------------------------------------------------------------------

STUDY = """
dataset = "colored_fashion"
seeds = 2
[base]
epochs = 4
batch = 1024
pairs = 8
held_out_pairs = 8
every = 2
precision = "fp32"
[[arm]]
method = "ipg"
protocol = "paper"
"""


def ipg_study(template: Template, folder: Path, workers: int) -> Forked:
    """Run the study there; what it says is in `out` and `err`, after what another has said there."""
    (folder / "tiny.toml").write_text(STUDY, encoding="utf-8")
    line = ["study", "tiny.toml", "--results", "results", "--workers", workers, "--device", "cpu"]
    return template.start("-m", "ipg", *line, folder=folder, log=folder / "err", out=folder / "out")


def ended(runner: Forked, seconds: float = 300) -> tuple[int, str, str]:
    """Its exit status and what it said."""
    code = runner.wait(seconds)
    out, err = runner.log.with_name("out"), runner.log
    said = code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
    out.unlink()
    err.unlink()
    return said


def outcomes(file: Path) -> dict[str, Any]:
    """What has to be the same however often a trial was stopped."""
    names = ("config", "metrics", "last_metrics", "predictions", "curve", "selected_epoch")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: {name: row[name] for name in names} for row in rows}


@pytest.fixture(scope="module")
def unbroken(template: Template, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows of a study that nobody disturbed, in one process."""
    folder = tmp_path_factory.mktemp("unbroken")
    code, out, err = ended(ipg_study(template, folder, 1))
    assert (code, err) == (0, ""), out
    return outcomes(folder / "results" / "trials.jsonl")


def epochs(results: Path) -> list[int]:
    """How many epochs each trial under way has behind it."""
    files = results.glob("trials/*/run/metrics.jsonl")
    return [len(file.read_text(encoding="utf-8").splitlines()) for file in files]


def children(pid: int) -> list[int]:
    """The worker processes of a runner."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and "spawn_main" in command:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
def test_a_killed_worker_leaves_the_rows_of_an_unbroken_study(
    template: Template, stubs: Any, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    runner = ipg_study(template, tmp_path, 2)
    stubs.wait_for(lambda: sum(epochs(tmp_path / "results")) >= 2)
    os.kill(children(runner.pid)[0], signal.SIGKILL)
    code, out, err = ended(runner)
    assert (code, err) == (0, ""), out
    assert out.count("its process was ended by SIGKILL") == 1
    assert outcomes(tmp_path / "results" / "trials.jsonl") == unbroken
    assert not list((tmp_path / "results").rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "number", "whom"),
    [(1, signal.SIGINT, "runner"), (2, signal.SIGTERM, "runner"), (2, signal.SIGINT, "group")],
    ids=["one process", "workers", "workers at a terminal"],
)
def test_a_stopped_study_goes_on_to_the_same_rows(
    template: Template, stubs: Any, unbroken: dict[str, Any], tmp_path: Path,
    count: int, number: signal.Signals, whom: str,
) -> None:  # fmt: skip
    """A terminal sends Ctrl-C to the whole group of processes; workers must not take that for a second one."""
    results = tmp_path / "results"
    runner = ipg_study(template, tmp_path, count)
    stubs.wait_for(lambda: len(epochs(results)) == count and min(epochs(results)) >= 1)
    helpers = children(runner.pid)
    assert len(helpers) == (0 if count == 1 else count)
    begun = time.time()
    if whom == "group":
        os.killpg(runner.pid, number)
    else:
        runner.send_signal(number)
    code, out, err = ended(runner, 120)
    assert code == 130, out + err
    said = r"ipg: stopped, \d of 2 trials are done; run the same command again to go on\n"
    assert re.fullmatch(said, err)
    assert not any(map(is_there, helpers))
    assert not list(results.rglob("*.tmp"))
    for checkpoint in results.rglob("checkpoint.safetensors"):
        assert checkpoint.stat().st_mtime > begun - 0.1  # saved since, not at the end of the last epoch
    code, out, err = ended(ipg_study(template, tmp_path, count))
    assert (code, err) == (0, ""), out
    assert outcomes(results / "trials.jsonl") == unbroken


@pytest.mark.parametrize(("processes", "before", "after", "said"), [
    (1, 0, 0, {}),
    (1, 3 * 2**30, 0, {"others": True}),
    (1, 0, 3 * 2**30, {"others": True}),
    (4, 3 * 2**30, 0, {"sharing": 4}),
])  # fmt: skip
def test_a_row_says_that_strangers_were_at_work_on_its_gpu(
    stubs: Any, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    processes: int, before: int, after: int, said: dict[str, Any],
) -> None:  # fmt: skip
    found = iter((before, after))
    monkeypatch.setattr("ipg.training.memory.memory_of_others", lambda device: next(found))
    (trial,) = stubs.study(1).trials
    here = trial.on("cpu", data_path=str(notes))
    Job({"stub": Store(tmp_path)}, "test", stubs.quick, processes).attempt(here, lambda share: None)
    (row,) = read_rows(tmp_path / "trials.jsonl")
    assert {name: row[name] for name in ("sharing", "others") if name in row} == said
    assert is_timed(row) is not bool(said)
