"""What is said of the rows in words has the figures that they give."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

import pytest

from ipg.experiments.arms import Row
from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure

PERCENT = re.compile(r"(?<![\w.])\d\d\.\d(?!\d)")

ELSEWHERE = {
    ("accuracy_waterbirds100", "87.5"): "pairs",
    ("few_pairs", "84.6"): "sparse",
}
"""Figures of other sections that a section quotes, and in whose table they stand."""
OF_CURVES = {"dynamics"}
"""Sections whose figures are of curves over the epochs."""


def section(page: str, name: str) -> str:
    return page.partition(f"<!-- reproduce:{name} -->")[2].partition(f"<!-- /reproduce:{name} -->")[0]


def figures_of_table(page: str, name: str) -> set[str]:
    lines = section(page, name).splitlines()
    return set(PERCENT.findall(" ".join(line for line in lines if line.startswith(("|", "!")))))


def figures_of_rows(cells: Iterable[Measured]) -> Iterator[str]:
    """Of every row, and of every cell over the seeds that it shares with another one on the same data."""
    known = [cell.rows for cell in cells if cell.rows]
    for rows, others in itertools.product(known, known):
        if rows[0]["dataset"] != others[0]["dataset"]:
            continue
        shared = {row["seed"] for row in rows} & {row["seed"] for row in others}
        for counted in ([row for row in rows if row["seed"] in shared], *([row] for row in rows)):
            yield from means(counted)


def means(rows: list[Row]) -> Iterator[str]:
    for place, metric in itertools.product(("metrics", "last_metrics"), ("average", "worst_group")):
        values = [(row.get(place) or {}).get(metric) for row in rows]
        if values and None not in values:
            yield f"{100 * fmean(values):.1f}"


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return all_rows(request.config.rootpath / "results")


@pytest.mark.parametrize("name", sorted(set(reproduce_plan.names()) - OF_CURVES))
def test_figures_in_words_are_those_of_the_rows(name: str, rows: list[Row], repo_root: Path) -> None:
    page = (repo_root / "docs" / "results.md").read_text(encoding="utf-8")
    reproduction = load_reproduction(name)
    told = set(PERCENT.findall(" ".join([reproduction.short, *reproduction.seen])))
    known = figures_of_table(page, name) | set(figures_of_rows(measure(reproduction, rows)))
    quoted = {figure for figure in told - known if figure in figures_of_table(page, ELSEWHERE.get((name, figure), ""))}
    assert sorted(told - known - quoted) == []
