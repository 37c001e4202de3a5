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


def spoilt(finished: Path, *place: str, value: object = ...) -> Path:
    """A run that is not done, of whose second row a part has another value, or none; its metrics."""
    (finished / "done").unlink()
    file = finished / "metrics.jsonl"
    row = json.loads(file.read_text(encoding="utf-8"))
    good, part = json.dumps(row), row
    for name in place[:-1]:
        part = part[name]
    if value is ...:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    file.write_text(f"{good}\n{json.dumps(row)}\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (["train"], None, "row 2: train is null; expected an object"),
        (["train", "task_loss"], "0.3", 'row 2: train, task_loss is "0.3"; expected a number, or null'),
        (["train", "alignment"], 10**400, "row 2: train, alignment is a number of 401 digits; expected a number, or"),
        (["validation"], [1], "row 2: validation is [1]; expected an object, or null"),
        (["validation", "balanced"], 7, "row 2: validation, balanced is 7; expected a number from 0 to 1, or null"),
        (["validation", "groups"], "none", 'row 2: validation, groups is "none"; expected an object, or null'),
        (["pair_disagreement"], {}, "row 2: pair_disagreement is {}; expected a number from 0 to 1, or null"),
        (["restarts"], True, "row 2: restarts is true; expected a whole number, at least 0"),
        (["epoch"], ..., "row 2: it has no epoch"),
        (["step"], "many words " * 20, 'row 2: step is "many words many words many words many words many words'),
    ],
)
def test_a_row_that_no_run_writes_is_named(
    assert_refused, finished: Path, place: list[str], value: object, says: str
) -> None:
    file = spoilt(finished, *place, value=value)
    remedy = "Run the command that trained it again: it writes the file anew from its checkpoint."
    for line in ([], ["--json"]):
        assert_refused("doctor", finished, *line, says=(f"ipg: {file} is damaged: {says}", remedy))


def test_a_line_that_is_no_row_is_named(assert_refused, finished: Path) -> None:
    (finished / "done").unlink()
    file = finished / "metrics.jsonl"
    row = file.read_text(encoding="utf-8").strip()
    for wrong in ("[3]", "null", "{", row[:40]):
        file.write_text(f"{row}\n{wrong}\n", encoding="utf-8")
        assert_refused(
            "doctor", finished, says=(f"{file} is damaged", "row 2 is no JSON object", "writes the file anew")
        )


def test_what_is_said_of_damaged_rows_helps(ipg, bars: list[str], finished: Path) -> None:
    file = finished / "metrics.jsonl"
    before = file.read_text(encoding="utf-8")
    spoilt(finished, "train", value=3)
    assert ipg("train", *bars, "--output", finished).code == 0
    assert file.read_text(encoding="utf-8") == before
    assert ipg("doctor", finished).code == 0


def test_rows_of_a_time_without_digests_are_checked(assert_refused, finished: Path) -> None:
    file = spoilt(finished, "train", value=3)
    (finished / "done").write_text("", encoding="utf-8")
    for line in (["doctor"], ["evaluate"], ["report"]):
        says = (f"{file} is damaged: row 2: train is 3; expected an object", f"Delete {finished / 'done'} and run")
        assert_refused(*line, finished, says=says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("metrics", {"groups": {"a": 3}}, "metrics, groups, a is 3; expected an object"),
        ("metrics", {"groups": {"a": {"accuracy": 0.5}}}, "it has no metrics, groups, a, count"),
        ("versions", [], "versions is []; expected an object"),
        ("selection", {}, "selection is {}; expected a text, or null"),
    ],
)
def test_a_result_of_a_time_without_digests_is_checked(
    assert_refused, finished: Path, name: str, value: object, says: str
) -> None:
    file = finished / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), name: value}), encoding="utf-8")
    (finished / "done").write_text("", encoding="utf-8")
    for line in (["evaluate"], ["report"]):
        assert_refused(*line, finished, says=(f"{file} is damaged: {says}", f"Delete {finished / 'done'} and run"))


def test_damage_to_a_finished_run_comes_with_its_remedy(assert_refused, finished: Path) -> None:
    for text in ("{", ""):
        (finished / "metrics.jsonl").write_text(text, encoding="utf-8")
        assert_refused("doctor", finished, says=("metrics.jsonl is damaged", f"Delete {finished / 'done'} and run"))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([], "expected an object, got a list"),
        ({"kind": "CollapseError", "message": "it fell", "step": 3, "restarts": "2"}, 'restarts is "2"; expected a'),
        ({"kind": "CollapseError", "message": "it fell"}, "it has no step"),
        ({"kind": 3, "step": 3}, "kind is 3; expected a text"),
    ],
)
def test_an_end_that_no_run_tells_of(assert_refused, finished: Path, said: object, says: str) -> None:
    file = finished / "failure.json"
    file.write_text(json.dumps(said), encoding="utf-8")
    assert_refused("doctor", finished, says=(f"{file} is damaged", says, f"Delete {file}: it only says how"))


def test_restarts_beyond_all_measure(ipg, finished: Path) -> None:
    said = {"kind": "CollapseError", "message": "it fell", "step": 3, "restarts": 10**6}
    (finished / "failure.json").write_text(json.dumps(said), encoding="utf-8")
    assert "the last attempt had 0" in " ".join(ipg("doctor", finished).out.split())


@pytest.mark.parametrize(("name", "value"), [("margin", "wide"), ("epochs", "two"), ("learning_rate", [])])
def test_settings_that_no_run_has(assert_refused, finished: Path, name: str, value: object) -> None:
    file = finished / "config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    stored["config"][name] = value
    file.write_text(json.dumps(stored), encoding="utf-8")
    (finished / "done").unlink()
    assert_refused("doctor", finished, says=(f"{file} is damaged or not of a run",))
