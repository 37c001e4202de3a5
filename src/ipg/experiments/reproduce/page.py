"""The page of the results: under every heading of a reproduction its table so far, between markers, and how it stands.

A page says where one goes by `<!-- reproduce:NAME -->` and `<!-- /reproduce:NAME -->`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ipg.experiments.arms import Figure, Spread
from ipg.experiments.reproduce.plan import Reproduction, load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure
from ipg.experiments.reproduce.runtime import step_table, with_cost
from ipg.experiments.reproduce.search import found_settings, search_table
from ipg.experiments.reproduce.table import FACTORS, table_of

__all__ = ["filled", "verdict"]


def filled(page: str, results: Path) -> str:
    """`page` with what stands between the markers of each reproduction replaced by what the rows give.

    Raises:
        ValueError: a marker is not closed, or names nothing that is reproduced.
    """
    for name in re.findall(r"<!-- reproduce:(\w+) -->", page):
        start, end = f"<!-- reproduce:{name} -->", f"<!-- /reproduce:{name} -->"
        before, _, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not closed:
            raise ValueError(f"the page does not say where {name!r} ends; put {end} there")
        page = f"{before}{start}\n{_section(load_reproduction(name), results)}\n{end}{after}"
    return page


def _section(reproduction: Reproduction, results: Path) -> str:
    kind = "dynamics" if reproduction.kind == "dynamics" else None
    measured = measure(reproduction, all_rows(results, kind))
    parts = [
        f"*The paper* (`{reproduction.paper}`): {reproduction.claim}" if reproduction.paper else reproduction.claim
    ]
    if "cost" in reproduction.metrics:
        measured = with_cost(measured)
    if measured:
        parts += [f"*How it stands*: {verdict(measured)}", table_of(reproduction, measured).markdown()]
    if reproduction.kind == "search":
        parts.append(search_table(reproduction, found_settings(reproduction, results / reproduction.name)).markdown())
    if reproduction.kind == "runtime" and (steps := step_table(results)) is not None:
        parts += ["Single steps, measured by `ipg bench`:", steps]
    return "\n\n".join([*parts, f"```console\n$ ipg reproduce {reproduction.name}\n```"])


def verdict(measured: Sequence[Measured]) -> str:
    """How many of the paper's cells are measured, and how ours lie to them.

    Ours and the paper's agree where their means differ by no more than two standard errors of the difference, which
    needs the spread and the number of trials of both.
    """
    counts: Counter[str] = Counter()
    for found in measured:
        for metric, figure in found.cell.figures.items():
            if not found.cell.trials and found.cell.needs == "":
                continue  # a bound, nothing to measure
            counts[_stands(found.spread(metric), figure, metric)] += 1
    ours = sum(bool(found.rows) for found in measured if not found.cell.figures)
    total = counts.total()
    if not total:
        asked = sum(bool(found.cell.trials) for found in measured)
        return f"{ours} of {asked} settings are measured; the paper has no figures for them."
    names = ("within two standard errors", "ours above", "ours below", "without a spread to compare")
    told = ", ".join(f"{counts[name]} {name}" for name in names if counts[name])
    have = total - counts["not run"]
    return f"measured of the paper's figures: {have} of {total}" + (f" ({told})." if told else ".")


def _stands(ours: Spread | None, figure: Figure, metric: str) -> str:
    if ours is None:
        return "not run"
    if ours.deviation is None or figure.spread is None or figure.count is None:
        return "without a spread to compare"
    scale = 1.0 if metric in FACTORS else 100.0
    error = math.sqrt((scale * ours.deviation) ** 2 / ours.count + figure.spread**2 / figure.count)
    difference = scale * ours.mean - figure.mean
    return (
        "within two standard errors"
        if abs(difference) <= 2 * error
        else "ours above"
        if difference > 0
        else "ours below"
    )
