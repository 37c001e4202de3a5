"""That the benchmarks run and say what they have to; no time is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KEYS = {"benchmark", "case", "value", "unit", "baseline", "ratio", "hardware", "versions", "commit", "date"}


def run(repo_root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(repo_root / "benchmarks" / "run.py"), "--threads", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_quick_run_measures_everything_once(repo_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "speed.jsonl"
    done = run(repo_root, "--quick", "--device", "cpu", "--write", str(file))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert all(row.keys() >= KEYS for row in rows)
    assert {row["benchmark"] for row in rows} == {"distances", "distances memory", "steps", "startup", "evaluation"}
    cases = [(row["benchmark"], row["case"]) for row in rows]
    assert len(set(cases)) == len(cases)
    assert all(row["value"] > 0 for row in rows)
    assert all((row["benchmark"], row["baseline"]) in cases for row in rows if row["baseline"])
    assert all((row["baseline"] is None) == (row["ratio"] is None) for row in rows)
    ideals = {row["case"]: row["ideal"] for row in rows if row["ideal"]}
    expected = {"ipg b8": 3.0, "ipg b2": 1.5, "ipg b2 every4": 1.125}  # 1 + 2 B_I / (k B_D) at B_D = 8
    assert ideals == {
        f"{model} {kind}": ideal for model in ("small_cnn", "mnist_cnn") for kind, ideal in expected.items()
    }
    assert all(row["case"] in done.stdout for row in rows)
    memory = {row["case"]: row["value"] * 2**20 for row in rows if row["unit"] == "MiB"}
    assert memory["B16 D32 K8 naive"] >= 16 * 32 * 8 * 4  # built rationales hold at least B·D·K numbers
    assert memory["B16 D32 K8 scaled features"] < memory["B16 D32 K8 naive"]


def test_quick_figures_stay_out_of_the_results(repo_root: Path) -> None:
    done = run(repo_root, "--quick", "--write")
    assert done.returncode == 2
    assert "mean nothing" in done.stderr
