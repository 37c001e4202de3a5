"""`ipg doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_a_healthy_run(ipg, bars: list[str]) -> None:
    ipg("train", *bars, "--epochs", "8", "--learning-rate", "0.01", "--every", "1", "--output", "healthy")
    done = ipg("doctor", "healthy")
    assert done.code == 0
    assert done.out.startswith("healthy: ipg, finished, 8 of 8 epochs\n")
    assert not any(line.endswith(" ") for line in done.out.splitlines())
    assert max(map(len, done.out.splitlines())) <= 80
    assert "✓ nothing wrong found" in done.out
    row = json.loads(Path("healthy/metrics.jsonl").read_text().splitlines()[-1])
    out, validation = " ".join(done.out.split()), row["validation"]
    assert f"validation {100 * validation['average']:.1f} %" in out
    assert f"worst group of the validation images {100 * validation['worst_group']:.1f} %" in out


def test_runs_as_json(ipg, embedded_runs: Path) -> None:
    names = [str(embedded_runs / name) for name in ("guided", "plain")]
    done = ipg("doctor", *names, "--json")
    assert done.code == 0
    guided, plain = (json.loads(done.out)[name] for name in names)
    assert [finding["name"] for finding in guided["findings"]] == ["pairs memorised"]  # eight pairs are too few
    assert guided["state"] == plain["state"] == "finished"
    (finding,) = plain["findings"]
    assert set(finding) == {"name", "severity", "meaning", "remedy"}
    assert finding["name"] == "shortcut in use"
    assert plain["numbers"]["train_pair_disagreement"] is None


def test_a_failed_run(ipg, bars: list[str]) -> None:
    trained = ipg("train", *bars, "--optimizer", "sgd", "--learning-rate", "1e30", "--output", "[a run] to mourn")
    assert trained.code == 2
    done = ipg("doctor", "[a run] to mourn")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.out.startswith("[a run] to mourn: ipg, failed, 0 of 1 epochs\n  ✗ loss not finite\n")
    assert "Remedy: Lower the learning rate (now 1e+30)" in " ".join(done.out.split())


def test_an_unfinished_run(ipg, finished: Path) -> None:
    (finished / "done").unlink()
    assert "unfinished, 1 of 1 epochs" in " ".join(ipg("doctor", finished).out.split())
    (finished / "metrics.jsonl").unlink()
    done = ipg("doctor", finished)
    assert done.code == 0
    assert "No epoch has ended yet" in done.out
    assert "nothing wrong" not in done.out


def test_every_finding_has_a_mark_meaning_and_remedy(ipg, bars: list[str], tmp_path: Path) -> None:
    ipg("train", *bars, "--held-out-pairs", "0", "--margin", "1000", "--output", tmp_path / "odd")
    out = ipg("doctor", tmp_path / "odd", tmp_path / "odd").out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("! margin never met") == out.count("· held-out pairs absent") == 2
    assert out.count("Remedy: ") == sum(line.startswith(("  ✗", "  !", "  ·")) for line in out.splitlines())


def test_what_cannot_be_read_is_said_in_a_line(assert_refused, finished: Path, tmp_path: Path) -> None:
    assert_refused("doctor", tmp_path / "nowhere", says=("is not the folder of a run",))
    (finished / "metrics.jsonl").write_text("{", encoding="utf-8")
    assert_refused("doctor", finished, says=("metrics.jsonl is damaged",))
    for wrong in ({}, {"config": []}, {"config": {"data": 3}}):
        (finished / "config.json").write_text(json.dumps(wrong), encoding="utf-8")
        assert_refused("doctor", finished, says=("config.json is damaged or not of a run",))


@pytest.mark.parametrize("wrong", [[], {"classes": 3}, {"classes": [3]}, {"shape": 3}, {"shape": [1]}, {"network": 3}])
def test_a_record_that_no_run_writes(assert_refused, finished: Path, wrong: object) -> None:
    file = finished / "config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    origin = {**stored["origin"], **wrong} if isinstance(wrong, dict) else wrong
    file.write_text(json.dumps({**stored, "origin": origin}), encoding="utf-8")
    (finished / "done").write_text("", encoding="utf-8")  # as runs ended that kept no digests yet
    for line in (["doctor"], ["evaluate"], ["export"], ["report"]):
        assert_refused(*line, finished, says=(f"{file} is damaged or not of a run",))
