"""The page of the results: under every heading of a reproduction its table so far, between markers, and how it stands.

A page says where one goes by `<!-- reproduce:NAME -->` and `<!-- /reproduce:NAME -->`, and by `<!-- overview -->` and
`<!-- /overview -->` where a table goes that tells of all of them whether the claim holds. Figures lie in a folder of
the page's name beside it: those of `docs/results.md` are `docs/results/NAME-DATASET.svg`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipg.data.load import DATASETS
from ipg.experiments.arms import Figure, Spread
from ipg.experiments.pages import between
from ipg.experiments.reproduce.cells import KEPT_TABLE
from ipg.experiments.reproduce.dynamics import CURVES
from ipg.experiments.reproduce.figures import Drawing, drawings_of, search_drawings
from ipg.experiments.reproduce.plan import Reproduction, load_reproduction
from ipg.experiments.reproduce.rows import Measured, all_rows, measure
from ipg.experiments.reproduce.runtime import step_table, with_cost
from ipg.experiments.reproduce.search import search_table, whole_searches
from ipg.experiments.reproduce.table import FACTORS, table_of
from ipg.report.figures.drawing import standalone
from ipg.words import number_of

__all__ = ["Filled", "filled", "filled_page", "verdict"]


@dataclass(frozen=True)
class Filled:
    """A page as the rows give it, and its figures: SVG by the name of the file."""

    text: str
    figures: dict[str, str]


def filled_page(page: Path, results: Path) -> dict[Path, str | None]:
    """What the rows give, by file: the figures of `page`, then the page itself; None for figures that no row gives.

    Those are told by their names.

    Raises:
        OSError: there is no such page.
        ValueError: see `filled`.
    """
    found = filled(page.read_text(encoding="utf-8"), results, page.stem)
    folder = page.with_suffix("")
    gone = (path for path in sorted(folder.glob("*-*.svg")) if _NAMED.fullmatch(path.stem))
    return {**dict.fromkeys(gone), **{folder / name: svg for name, svg in found.figures.items()}, page: found.text}


def filled(page: str, results: Path, folder: str = "results") -> Filled:
    """`page` with what stands between the markers of each reproduction replaced by what the rows give.

    It shows its figures from `folder`.

    Raises:
        ValueError: a marker is missing, or names nothing that is reproduced.
    """
    figures: dict[str, str] = {}
    rows = all_rows(results)
    known: list[tuple[Reproduction, Sequence[Measured]]] = []
    for name in re.findall(r"<!-- reproduce:(\w+) -->", page):
        reproduction = load_reproduction(name)
        measured = measure(reproduction, rows)
        known.append((reproduction, measured))
        section, drawings = _section(reproduction, measured, results, folder)
        page = between(page, f"reproduce:{name}", section)
        figures |= {f"{stem}.svg": standalone(drawing.svg) for stem, drawing in drawings.items()}
    if "<!-- overview -->" in page:
        page = between(page, "overview", _overview(known, results))
    return Filled(page, figures)


def _overview(known: Iterable[tuple[Reproduction, Sequence[Measured]]], results: Path) -> str:
    """Of every claim whether it holds, in a sentence, and how much was measured."""
    lines = ["| section | does it hold? | in short | measured |", "| --- | --- | --- | --- |"]
    for reproduction, measured in known:
        if reproduction.holds is not None:
            title = f"[{reproduction.title}](#{_anchor(reproduction.title)})"
            extent = _searched(reproduction, results) if reproduction.kind == "search" else _extent(measured)
            lines.append(f"| {title} | {reproduction.holds} | {reproduction.short} | {extent} |")
    return "\n".join(lines)


def _anchor(title: str) -> str:
    """Where a heading is found on a page."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _extent(measured: Sequence[Measured]) -> str:
    """How many of the settings that are run have rows, and of how many seeds."""
    asked = [found for found in measured if found.cell.trials]
    seeds = sorted(len({row["seed"] for row in found.rows}) for found in asked if found.rows)
    if not seeds:
        return f"0 of {number_of(len(asked), 'setting')}" if asked else "–"
    span = str(seeds[-1]) if seeds[0] == seeds[-1] else f"{seeds[0]} to {seeds[-1]}"
    return f"{len(seeds)} of {number_of(len(asked), 'setting')}, {span} {'seed' if span == '1' else 'seeds'}"


def _searched(reproduction: Reproduction, results: Path) -> str:
    """How many of the data sets have been searched to the end."""
    done, asked = whole_searches(reproduction, results / reproduction.name)
    return f"{done} of {number_of(asked, 'data set')} searched"


def _seen(reproduction: Reproduction) -> list[str]:
    """What our rows say of the claim: whether it holds, in short, then one thing after the other."""
    told = " ".join(filter(None, (_HOLDS.get(reproduction.holds or ""), reproduction.short)))
    points = "\n".join(f"- {text}" for text in reproduction.seen)
    return [text for text in (f"*What we saw*: {told}" if told else "", points) if text]


_HOLDS = {
    "yes": "**It holds.**",
    "in part": "**It holds in part.**",
    "no": "**It does not hold.**",
    "open": "**It cannot be judged yet.**",
}


def _section(
    reproduction: Reproduction, measured: Sequence[Measured], results: Path, folder: str
) -> tuple[str, dict[str, Drawing]]:
    parts = [
        f"*The paper* (`{reproduction.paper}`): {reproduction.claim}" if reproduction.paper else reproduction.claim,
        *_seen(reproduction),
    ]
    if "cost" in reproduction.metrics:
        measured = with_cost(measured)
    if measured:
        parts += [f"*How it stands*: {verdict(measured)}", table_of(reproduction, measured).markdown()]
    drawings = drawings_of(reproduction, measured)
    if (kept := results / reproduction.name / KEPT_TABLE).is_file():
        parts.append(kept.read_text(encoding="utf-8").strip())
    if (picture := results / reproduction.name / f"{reproduction.name}.svg").is_file():
        parts.append(f"![{reproduction.title}](../{results.name}/{reproduction.name}/{picture.name})")
    if reproduction.kind == "search":
        home = results / reproduction.name
        parts.append(search_table(reproduction, home).markdown())
        if drawings := search_drawings(reproduction, home):
            parts.append("What each trial was worth, over every setting that was searched for; the best in blue:")
    shown = [f"![{drawing.alt}]({folder}/{stem}.svg)" for stem, drawing in drawings.items()]
    parts += ["\n".join(shown)] if reproduction.kind == "search" and shown else shown  # small ones side by side
    if reproduction.kind == "runtime" and (steps := step_table(results)) is not None:
        parts.append(steps.markdown())
    return "\n\n".join([*parts, f"```console\n$ ipg reproduce {reproduction.name}\n```"]), drawings


_NAMED = re.compile(rf"\w+-({'|'.join(map(re.escape, (*DATASETS, *CURVES)))})(-\w+)?")
"""How figures of a reproduction are called."""


def verdict(measured: Sequence[Measured]) -> str:
    """How many of the paper's figures are measured, and how ours lie to them.

    A figure counts once, however many settings stand beside it; those of the paper, on its data and network, decide
    where they are measured, and else the first. Ours and the paper's agree where their means differ by no more than two
    standard errors of the difference, which needs the spread and the number of trials of both.
    """
    beside: dict[Figure, list[tuple[Measured, str]]] = {}
    for found in measured:
        for metric, figure in found.cell.figures.items():
            if found.cell.trials or found.cell.needs != "":  # else a bound, nothing to measure
                beside.setdefault(figure, []).append((found, metric))
    if not beside:
        have = sum(bool(found.rows) for found in measured)
        asked = sum(bool(found.cell.trials) for found in measured)
        return f"{have} of {asked} settings are measured; the paper has no figures for them."
    counts: Counter[tuple[bool, str]] = Counter()
    by_the_paper = 0
    for figure, places in beside.items():
        done = [(not found.cell.by_the_paper, ours) for found, metric in places if (ours := found.spread(metric))]
        if not done:
            continue
        by_others, ours = min(done, key=lambda place: place[0])  # of equal ones the first
        by_the_paper += not by_others
        counts[_stands(ours, figure)] += 1
    if not (have := counts.total()):
        return f"figures of the paper measured: 0 of {len(beside)}."
    judged, open_ = (", ".join(f"{counts[name]} {name[1]}" for name in names if counts[name]) for names in _STANDINGS)
    left = f"not judged, for want of a spread or a number of trials: {open_}" if open_ else ""
    told = "; ".join(filter(None, (judged, left)))
    return (
        f"figures of the paper measured: {have} of {len(beside)}, {by_the_paper} of them by its own settings and "
        f"network ({told})."
    )


_SIDES = ("within two standard errors", "ours above", "ours below", "equal")
_STANDINGS = tuple([(judged, side) for side in _SIDES] for judged in (True, False))
"""Whether it can be judged, and how ours lies, in the order they are told in."""


def _stands(ours: Spread, figure: Figure) -> tuple[bool, str]:
    """Whether it can be judged, which takes spread and number of trials of both, and where ours lies."""
    scale = 1.0 if figure.metric in FACTORS else 100.0
    difference = scale * ours.mean - figure.mean
    side = "equal" if difference == 0 else "ours above" if difference > 0 else "ours below"
    if ours.deviation is None or figure.spread is None or figure.count is None:
        return False, side
    error = math.sqrt((scale * ours.deviation) ** 2 / ours.count + figure.spread**2 / figure.count)
    return True, "within two standard errors" if abs(difference) <= 2 * error else side
