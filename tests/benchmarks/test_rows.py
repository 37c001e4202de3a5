"""Rows on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ipg.benchmarks.measure import compare
from ipg.benchmarks.rows import append, key, newest, read, row


def test_a_row_says_where_it_comes_from_and_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "speed.jsonl"
    for value in (1.0, 1 / 3):
        (found,) = compare("steps", {"erm": [value]}, unit="ms", baselines={})
        append(file, row(found, torch.device("cpu")))
    first, second = read(file)
    assert (first["value"], second["value"]) == (1.0, 0.33333)
    assert first.keys() >= {"hardware", "versions", "commit", "date", "low", "high", "rounds", "ideal"}
    assert first["hardware"].endswith("threads")


def test_the_newest_of_each_case_counts_on_one_machine() -> None:
    def made(case: str, value: float, *, baseline: str | None = None, hardware: str = "here") -> dict[str, object]:
        names = {"benchmark": "steps", "case": case, "unit": "ms", "baseline": baseline}
        return {**names, "value": value, "hardware": hardware}

    rows = [made("a", 1), made("b", 2), made("a", 3), made("a", 4, hardware="there"), made("a", 5, baseline="b")]
    found = newest(rows, "here")
    assert [found[name]["value"] for name in found] == [3, 2, 5]
    assert key(rows[4]) == ("steps", "a", "ms", "b")


@pytest.mark.parametrize("line", ["not json", "[" * 100_000, "[]", json.dumps({"benchmark": "steps"})])
def test_what_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "speed.jsonl"
    file.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"speed\.jsonl, line 1 is not a row"):
        read(file)


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*ipg bench --write"):
        read(tmp_path / "none.jsonl")
