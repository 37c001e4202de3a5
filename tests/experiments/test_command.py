"""`ipg study` as its user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipg.cli import app
from ipg.cli.study import rows_folder
from ipg.experiments import runner
from ipg.experiments.cluster import Cluster
from ipg.experiments.runner import Tally
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import Study, load_study

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


def ipg(*arguments: str) -> Finished:
    result = CliRunner().invoke(app, arguments, prog_name="ipg")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Finished(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: dict[str, Any]) -> Path:
    """A folder with the study `quick.toml`, of whose three trials the last fails."""
    monkeypatch.chdir(tmp_path)
    base = "".join(f"{name} = {json.dumps(value)}\n" for name, value in small.items() if name != "data")
    arms = (
        '[[arm]]\nmethod = "erm"\nprotocol = "paper"\nseeds = 2\n'
        '[[arm]]\nmethod = "erm"\nprotocol = "wild"\nseeds = [7]\n'
        'config = { pairs = "nowhere" }\n'
    )
    (tmp_path / "quick.toml").write_text(f'dataset = "bars"\n[base]\n{base}{arms}', encoding="utf-8")
    return tmp_path


def test_a_study_is_run_and_listed(files: Path) -> None:
    listed = ipg("study", "quick.toml", "--list")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["missing"] * 3 + ["quick:"]
    assert not (files / "results").exists()
    done = ipg("study", "quick.toml", "--device", "cpu", "--workers", "1")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0] == "quick: 3 trials, 0 done"
    assert lines[1].startswith("[1/3] erm (paper), seed 0: ")
    assert lines[3].startswith("[3/3] erm (wild), seed 7: failed: ")
    assert lines[4] == "quick: 2 of 3 trials done; 1 failed, tried again when the command is given again"
    assert len(read_rows(files / "results" / "quick" / "trials.jsonl")) == 2
    keys = [trial.key for trial in load_study(files / "quick.toml").trials]
    assert ipg("study", "quick.toml", "--list").out == (
        f"done     {keys[0]}  bars: erm (paper), seed 0\n"
        f"done     {keys[1]}  bars: erm (paper), seed 1\n"
        f"failed   {keys[2]}  bars: erm (wild), seed 7\n"
        "quick: 3 trials, 2 done, 0 running, 0 begun, 1 failed, 0 missing\n"
    )
    with Store(files / "results" / "quick").claim(keys[2]):
        assert f"running  {keys[2]}" in ipg("study", "quick.toml", "--list").out


def test_trials_that_have_begun_are_listed_with_how_far_they_are(files: Path) -> None:
    keys = [trial.key for trial in load_study(files / "quick.toml").trials]
    epochs = load_study(files / "quick.toml").trials[0].config.epochs
    store = Store(files / "results" / "quick", "test")
    for key, done in zip(keys[:2], (1, epochs + 1), strict=True):  # the second has been fitted once more
        run = store.trials / key / "run"
        run.mkdir(parents=True)
        (run / "checkpoint.safetensors").write_bytes(b"")
        (run / "metrics.jsonl").write_text("{}\n" * done, encoding="utf-8")
    (store.trials / keys[2] / "run" / "first_stage").mkdir(parents=True)
    (store.trials / keys[2] / "run" / "first_stage" / "checkpoint.safetensors").write_bytes(b"")
    lines = ipg("study", "quick.toml", "--list").out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:3]] == ["begun"] * 3
    assert [line.partition("seed ")[2] for line in lines[:3]] == [
        f"0, 1 of {epochs} epochs", f"1, {epochs} of {epochs} epochs", f"7, 0 of {epochs} epochs",
    ]  # fmt: skip
    assert lines[3] == "quick: 3 trials, 0 done, 0 running, 3 begun, 0 failed, 0 missing"
    with store.claim(keys[0]):
        (line,) = [line for line in ipg("study", "quick.toml", "--list").out.splitlines() if line.startswith("running")]
    assert line.endswith(f"seed 0, 1 of {epochs} epochs")
    store.fail(keys[1], "no memory")
    (store.trials / keys[2] / "run" / "failure.json").write_text("{}")  # so it begins anew
    assert "1 begun, 1 failed, 1 missing" in ipg("study", "quick.toml", "--list").out


@pytest.mark.parametrize(
    ("rules", "seeds"),
    [
        (["seed=1,7"], ["1", "7"]),
        (["protocol=paper", "seed=0,7"], ["0"]),
        (["pairs=nowhere"], ["7"]),
        (["alpha=1e-1", "seed=7.0"], ["7"]),
    ],
)
def test_a_part_of_a_study(files: Path, rules: list[str], seeds: list[str]) -> None:
    listed = ipg("study", "quick.toml", "--list", *(word for rule in rules for word in ("--only", rule)))
    assert [line.split()[-1] for line in listed.out.splitlines()[:-1]] == seeds
    assert listed.out.splitlines()[-1].startswith(f"quick: {len(seeds)} trial")


def test_the_list_is_of_the_split_that_is_asked_for(files: Path) -> None:
    text = (files / "quick.toml").read_text(encoding="utf-8").partition('[[arm]]\nmethod = "erm"\nprotocol = "wild"')[0]
    for number, split in enumerate(("validation", "test")):
        (files / "one.toml").write_text(f'metrics_split = "{split}"\n{text}', encoding="utf-8")
        listed = ipg("study", "one.toml", "--list")
        assert listed.out.endswith("one: 2 trials, 0 done, 0 running, 0 begun, 0 failed, 2 missing\n")
        assert ipg("study", "one.toml", "--device", "cpu", "--workers", "1").code == 0
        assert ipg("study", "one.toml", "--list").out.endswith("2 done, 0 running, 0 begun, 0 failed, 0 missing\n")
        assert len(read_rows(files / "results" / "one" / "trials.jsonl")) == 2 * (number + 1)


def test_what_is_done_is_in_the_table(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a study that names no network, and of an arm that differs from another in an option alone."""
    monkeypatch.setenv("IPG_COMMIT", "0123456789abcdef")
    text = (files / "quick.toml").read_text(encoding="utf-8").partition("[[arm]]")[0]
    plain = '[[arm]]\nmethod = "joint"\nprotocol = "tuned"\nseeds = 1\n'
    file = files / "two.toml"
    file.write_text(f'{text}{plain}config = {{ options = {{ order = "sum" }} }}\n', encoding="utf-8")
    assert ipg("study", "two.toml", "--device", "cpu", "--workers", "1").code == 0

    def seeds() -> list[int]:
        shown = json.loads(ipg("table", "two.toml", "--format", "json").out)
        return [arm["seeds"] for arm in shown["arms"]]

    assert seeds() == [1]
    file.write_text(f"{file.read_text(encoding='utf-8')}{plain}", encoding="utf-8")
    assert "1 done, 0 running, 0 begun, 0 failed, 1 missing" in ipg("study", "two.toml", "--list").out
    assert seeds() == [1, 0]
    assert ipg("study", "two.toml", "--device", "cpu", "--workers", "1").code == 0
    assert seeds() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"workers": None, "cluster": None, "device": "auto", "data_path": None, "limit": None}),
        (["--limit", "1.5m"], {"limit": 90.0}),
        (["--workers", "3", "--data-path", "here", "--device", "cpu"], {"workers": 3, "data_path": "here"}),
        (["--cluster", "auto"], {"cluster": Cluster("auto", 1, None)}),
        (["--cluster", "head:6379", "--cpus", "4", "--gpus", "0.5"], {"cluster": Cluster("head:6379", 4, 0.5)}),
    ],
)
def test_options_reach_the_runner(
    files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: dict[str, Any]
) -> None:
    given: dict[str, Any] = {}

    def keep(study: Any, results: Path, **options: Any) -> Tally:
        given.update(options, results=results)
        return Tally(3, 0, 0)

    monkeypatch.setattr(runner, "run_study", keep)
    assert ipg("study", "quick.toml", "--results", "there", *arguments).code == 0
    assert given == given | expected | {"results": Path("there")}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--cpus", "2"],
            "--cpus and --gpus say what a trial takes of a cluster; give --cluster, or use --workers",
        ),
        (
            ["--gpus", "0"],
            "--cpus and --gpus say what a trial takes of a cluster; give --cluster, or use --workers",
        ),
        (
            ["--cluster", "auto", "--workers", "2"],
            "--workers is for one machine; on a cluster say with --cpus and --gpus what a trial takes",
        ),
        (["--workers", "0"], "0 workers are asked for; expected at least 1"),
        (["--device", "gpu"], "device='gpu': expected one of auto, cpu, cuda, mps"),
        (["--limit", "0s"], "--limit 0s: expected a time such as 90s, 30m or 2h"),
        (["--limit", "90"], "--limit 90: expected a time such as 90s, 30m or 2h"),
        (["--only", "seed"], "--only seed: expected NAME=VALUE, or several values with commas between"),
        (["--only", "sed=1"], "--only sed=1: did you mean seed?"),
        (["--only", "lr=1"], "--only lr=1: did you mean learning_rate?"),
        (["--only", "weather=fine"], "--only weather=fine: no trial of quick has 'weather'"),
        (["--only", "seed=1,4"], "--only seed=1,4: no trial has 4; of seed there are 0, 1 and 7"),
        (["--only", "protocol=wild", "--only", "seed=0"], "--only seed=0: no trial is left; of seed there is 7"),
        (
            ["--cluster", "auto", "--cpus", "-1"],
            "a trial cannot take -1 CPUs and 0 GPUs; expected 0 or more",
        ),
    ],
)
def test_mistakes_are_one_clear_line(files: Path, arguments: list[str], expected: str) -> None:
    done = ipg("study", "quick.toml", *arguments)
    assert (done.code, done.err) == (2, f"ipg: {expected}\n")
    assert not (files / "results").exists()


def test_a_study_that_nobody_knows(files: Path) -> None:
    done = ipg("study", "quack")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("ipg: there is no study 'quack': expected a TOML file, or one of ")
    assert " colored_mnist, " in done.err


def test_rows_of_the_project_count_as_done(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo_root)
    done = ipg("study", "colored_mnist_tuned", "--list")
    assert done.out.endswith("colored_mnist_tuned: 30 trials, 30 done, 0 running, 0 begun, 0 failed, 0 missing\n")


def test_interrupted(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Tally:
        raise KeyboardInterrupt("stopped, 1 of 3 trials are done; run the same command again to go on")

    monkeypatch.setattr(runner, "run_study", interrupted)
    done = ipg("study", "quick.toml")
    assert (done.code, done.err) == (
        130,
        "ipg: stopped, 1 of 3 trials are done; run the same command again to go on\n",
    )


def test_help_loads_neither_torch_nor_ray() -> None:
    code = """
import sys
from typer.testing import CliRunner
from ipg.cli import app
from ipg.cli.study import rows_folder
done = CliRunner().invoke(app, ["study", "--help"])
print(done.exit_code, sorted({"torch", "numpy", "ray", "filelock"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "0 []\n"), done.stderr


def test_a_worker_begins_before_torch_is_loaded() -> None:
    """So that it is told of Ctrl-C by its runner from its first moment."""
    code = "import sys, ipg.experiments.workers; print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_study_by_another_network_has_trials_and_rows_of_its_own(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (files / "quick.toml").read_text(encoding="utf-8").replace("[base]\n", '[base]\nweights = "a.safetensors"\n')
    (files / "quick.toml").write_text(text, encoding="utf-8")
    given: list[Study] = []

    def keep(study: Study, results: Path, **options: Any) -> Tally:
        given.append(study)
        return Tally(3, 0, 0)

    monkeypatch.setattr(runner, "run_study", keep)
    other = ("--model", "resnet50", "--weights", "b.safetensors", "--normalization", "half")
    assert ipg("study", "quick.toml").code == ipg("study", "quick.toml", *other).code == 0
    plain, changed = ({trial.key for trial in study.trials} for study in given)
    assert not plain & changed
    settings = {(trial.config.model, trial.config.weights, trial.config.normalization) for trial in given[1].trials}
    assert settings == {("resnet50", "b.safetensors", "half")}
    (files / "results" / "quick").mkdir(parents=True)
    (files / "results" / "quick" / "trials.jsonl").write_text(
        f"{json.dumps({'key': min(changed)})}\n", encoding="utf-8"
    )
    assert ", 0 done, " in ipg("study", "quick.toml", "--list").out
    assert ", 1 done, " in ipg("study", "quick.toml", "--list", *other).out
    for verb in ("study", "table"):
        done = ipg(verb, "quick.toml", "--model", "resnet50")
        assert (done.code, done.err) == (
            2, "ipg: --model resnet50: say with --weights where its weights are, a file or pretrained\n",
        )  # fmt: skip


def test_the_folder_of_all_studies_will_do(files: Path, tmp_path: Path) -> None:
    """Of rows beside it, or in a folder by the name of the study."""
    assert rows_folder(None, "quick") == Path("results") / "quick"
    assert rows_folder(tmp_path, "quick") == tmp_path  # to begin in
    (tmp_path / "all" / "quick").mkdir(parents=True)
    rows = tmp_path / "all" / "quick" / "trials.jsonl"
    rows.write_text(json.dumps({"key": load_study(files / "quick.toml").trials[0].key}) + "\n", encoding="utf-8")
    for folder in ("all", "all/quick"):
        assert ", 1 done, " in ipg("study", "quick.toml", "--list", "--results", str(tmp_path / folder)).out
    assert rows_folder(tmp_path / "all", "other") == tmp_path / "all" / "other"  # beside those that are there
    (tmp_path / "all" / "trials.jsonl").write_text("", encoding="utf-8")
    assert rows_folder(tmp_path / "all", "quick") == tmp_path / "all"
