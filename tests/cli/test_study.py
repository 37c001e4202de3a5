"""The study files that the help and the guide show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ipg.cli.study import EXAMPLES
from ipg.experiments.study import STUDIES, Study, load_study


@pytest.fixture
def guide(repo_root: Path, tmp_path: Path) -> Path:
    """The file of docs/scale.md."""
    (text,) = re.findall(r"```toml\n(.*?)```", (repo_root / "docs" / "scale.md").read_text("utf-8"), re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def arms(study: Study) -> list[tuple[str, str, int]]:
    return [(trial.method, trial.protocol, trial.seed) for trial in study.trials]


def test_the_file_of_the_help_is_a_study(tmp_path: Path) -> None:
    (text,) = re.findall(r"```\n(.*?)```", EXAMPLES, re.DOTALL)
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    study = load_study(tmp_path / "mine.toml")
    assert arms(study) == [(method, "mine", seed) for method in ("erm", "ipg") for seed in range(3)]
    assert {trial.config.alpha for trial in study.trials if trial.method == "ipg"} == {0.2}


def test_the_file_of_the_guide_has_every_key(guide: Path) -> None:
    from ipg.experiments.study import _ARM_KEYS, _KEYS

    study = load_study(guide)
    assert arms(study) == [
        ("erm", "plain", 0), ("erm", "plain", 1), ("ipg", "guided", 0), ("ipg", "guided", 1), ("jtt", "plain", 0),
    ]  # fmt: skip
    assert (study.metrics_split, study.decides) == ("validation", "worst_group")
    assert study.trials[-1].config.options == {"copies": 5}
    text = guide.read_text(encoding="utf-8")
    assert [key for key in (*_KEYS, *_ARM_KEYS) if not re.search(rf"^\[*{key}\b", text, re.MULTILINE)] == []


def test_a_list_without_a_study_names_the_projects_own(ipg, tmp_path: Path) -> None:
    done = ipg("study", "--list", "--results", tmp_path)
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == sorted(path.stem for path in STUDIES.glob("*.toml"))
    (margin,) = [line for line in lines if line.startswith("margin: ")]
    assert re.fullmatch(r"margin: \d+ trials on colored_fashion(, \w+)*, 0 done", margin)
    assert lines[-1] == "ipg study NAME --list shows the trials of one, ipg study NAME runs what is missing of it."


def test_a_study_has_to_be_named_to_be_run(ipg) -> None:
    done = ipg("study")
    assert (done.code, done.out) == (2, "")
    assert done.err == "ipg: say which study to run, e.g. ipg study margin; ipg study --list shows all\n"


@pytest.mark.parametrize("extra", [["--only", "seed=0"], ["--weights", "w.pth"]])
def test_a_list_of_all_studies_leaves_none_out(ipg, extra: list[str]) -> None:
    done = ipg("study", "--list", *extra)
    assert done.code == 2
    assert "are for the trials of one study; name it, e.g. ipg study margin --list" in done.err


def test_trials_run_again_for_their_seconds_have_rows_of_their_own(ipg, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipg.experiments import runner
    from ipg.experiments.runner import Tally
    from ipg.experiments.timed import run_timed
    from ipg.experiments.trial import run_trial

    asked: list[tuple[Path, object, object]] = []

    def run_study(study: Study, results: Path, *, workers: object, run: object, **others: object) -> Tally:
        asked.append((results, workers, run))
        return Tally(len(study.trials), 0, 0)

    monkeypatch.setattr(runner, "run_study", run_study)
    monkeypatch.setattr("ipg.experiments.workers.suitable_workers", lambda device: 1)
    assert ipg("study", "margin", "--timed", "--workers", "3").code == 0
    assert ipg("study", "margin", "--workers", "3").code == 0
    assert asked == [(Path("results/times/margin"), 1, run_timed), (Path("results/margin"), 3, run_trial)]
    Path("all/margin/trials").mkdir(parents=True)
    for options in (["--timed"], []):
        assert ipg("study", "margin", "--results", "all", *options).code == 0
    assert [folder for folder, *_ in asked[2:]] == [Path("all/times/margin"), Path("all/margin")]
    count = len(load_study(STUDIES / "margin.toml").trials)
    assert f"{count} trials, 0 done" in " ".join(ipg("study", "margin", "--timed", "--list").out.split())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "own_random_state")
def test_the_file_of_the_guide_runs(ipg, guide: Path) -> None:
    done = ipg("study", guide, "--results", "here", "--workers", "1")
    assert done.code == 0, done
    rows = [json.loads(line) for line in Path("here/trials.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted((row["method"], row["protocol"], row["seed"]) for row in rows) == sorted(arms(load_study(guide)))
    assert {row["split"] for row in rows} == {"validation"}
    assert "5 trials, 5 done" in " ".join(ipg("study", guide, "--results", "here", "--list").out.split())
    assert ipg("table", guide, "--results", "here").out.startswith("| method |")
