"""The time of ten trials, with stand-ins for the trials."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from experiments.study_stubs import failing, quick, study
from modules import load_file


@pytest.fixture
def script(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on four trials that are done at once."""
    module = load_file(repo_root / "benchmarks" / "ten_trials.py")
    monkeypatch.setattr(module, "find_study", lambda name: study(4))
    monkeypatch.setattr(module, "run_trial", quick)
    return module


def arguments(folder: Path, *further: str) -> list[str]:
    return ["--mnist", str(folder), "--results", str(folder / "ten"), "--device", "cpu", *further]


def test_every_process_is_warm_before_the_trials_are_timed(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "speed.jsonl"
    assert script.main(arguments(tmp_path, "--workers", "2", "--write", str(rows))) == 0
    assert sorted(int(note.stem) for note in tmp_path.glob("*.txt")) == [0, 1, 2, 3, 1000, 1001]
    kept = [json.loads(line)["seed"] for line in (tmp_path / "ten" / "trials.jsonl").read_text().splitlines()]
    assert sorted(kept) == [0, 1, 2, 3]  # the shorter trials leave nothing
    found = {row["case"]: row["value"] for row in map(json.loads, rows.read_text().splitlines())}
    assert set(found) == {"ten colored_mnist trials", "compiling and capturing for them"}
    assert all(value > 0 for value in found.values())
    assert "ten colored_mnist trials: " in capsys.readouterr().out


def test_trials_one_after_the_other_say_so(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(arguments(tmp_path, "--workers", "1")) == 0
    assert "ten colored_mnist trials, one after the other: " in capsys.readouterr().out


def test_failed_trials_are_no_result(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "run_trial", failing)
    with pytest.raises(SystemExit):
        script.main(arguments(tmp_path, "--workers", "1"))
    assert "1 trial failed: there is nothing to report" in capsys.readouterr().err
