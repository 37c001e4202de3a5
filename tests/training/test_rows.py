"""What readers of `metrics.jsonl` count on."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.doctor.diagnosis import diagnose, key_numbers
from ipg.evaluation.doctor.log import RunLog
from ipg.notebook import fit
from ipg.training.folder import RunFolder, read_json
from ipg.training.rows import wrong_in_failure, wrong_in_result, wrong_in_rows

ODD: list[Any] = [None, True, -1, 2.5, math.nan, math.inf, 10**400, "text", "", [], ["x"], {}, {"a": 1}]


@pytest.fixture
def logged(make_table: Callable[..., ImageTable], tmp_path: Path) -> RunFolder:
    settings = {"epochs": 2, "batch": 32, "model": "small_cnn", "held_out_pairs": 8, "restarts": 0}
    fit(data=make_table(), pairs=8, folder=tmp_path / "run", **settings)
    return RunFolder(tmp_path / "run")


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a value, that which is inside others included."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*place, key)
        yield from places(value[key], (*place, key))


def test_what_a_run_writes_is_right(logged: RunFolder) -> None:
    rows = logged.logged()
    assert len(rows) == 2
    assert wrong_in_rows(rows) is None


def test_no_alteration_is_told_in_the_words_of_python(logged: RunFolder) -> None:
    """Whatever is put in the place of anything, or left out: it is named, or the findings do without it."""
    config, rows = logged.recorded().config, logged.logged()
    named = 0
    for *path, last in places(rows):
        for value in [..., *ODD]:
            altered = copy.deepcopy(rows)
            part: Any = altered
            for key in path:
                part = part[key]
            if value is ...:
                del part[last]
            else:
                part[last] = value
            if not all(isinstance(row, dict) for row in altered):
                continue  # which `read_jsonl` names
            if (wrong := wrong_in_rows(altered)) is not None:
                named += 1
                assert wrong.startswith("row ")
                assert len(wrong) < 200
                continue
            for unfinished in (False, True):
                log = RunLog(config, altered, classes=2, unfinished=unfinished)
                assert all(isinstance(finding.meaning, str) for finding in diagnose(log))
                json.dumps(key_numbers(log))
    assert named > 500


def test_a_result_is_told_from_what_is_none(logged: RunFolder) -> None:
    result = read_json(logged.result)
    assert wrong_in_result(result) is None
    assert wrong_in_result({**result, "metrics": None}) is None
    for name in ("config", "metrics", "versions", "hardware", "commit", "date"):
        assert wrong_in_result({key: value for key, value in result.items() if key != name}) == f"it has no {name}"
    altered = copy.deepcopy(result)
    group = next(iter(altered["metrics"]["groups"]))
    altered["metrics"]["groups"][group]["accuracy"] = "all"
    expected = f'metrics, groups, {group}, accuracy is "all"; expected a number from 0 to 1, or null'
    assert wrong_in_result(altered) == expected


@pytest.mark.parametrize("step", [3, 0])
def test_an_end(step: int) -> None:
    assert wrong_in_failure({"kind": "NonFiniteError", "message": "m", "step": step}) is None
    assert wrong_in_failure({"kind": "NonFiniteError", "message": "m", "step": -1}) == (
        "step is -1; expected a whole number, at least 0"
    )


def test_a_configuration_is_read_as_it_was(logged: RunFolder) -> None:
    config, record = logged.configured()
    assert isinstance(config, RunConfig)
    assert (config.epochs, config.model) == (2, "small_cnn")
    assert record == logged.recorded()
