"""A search as one HTML page: everything inline, nothing fetched, with its figures beside it as files."""

from __future__ import annotations

from pathlib import Path

from ipg.experiments.search.result import OBJECTIVES, Found
from ipg.experiments.search.space import describe
from ipg.experiments.search.trial import in_words
from ipg.files import write_text
from ipg.report.figures.search import draw_shares, draw_worth, history_data, importance_data, slices_data
from ipg.report.html import inline, rendered, write_page
from ipg.report.views import percent

__all__ = ["render_search", "write_search"]

FEW = 10
"""Of fewer trials it is not told which settings decide: the best tenth of them is none."""
STATES = {"wrong": "went wrong", "pruned": "given up", "failed": "failed", "running": "under way"}


def write_search(folder: Path, found: Found) -> Path:
    """Write `report.html`, `history.svg` and `importance.svg` to `folder`; the page."""
    for name, svg in _figures(found).items():
        if svg:
            write_text(folder / f"{name}.svg", svg)
    return write_page(folder / "report.html", render_search(found))


def _figures(found: Found) -> dict[str, str]:
    return {
        "history": draw_worth(history_data(found)),
        "importance": draw_shares(importance_data({} if _are_few(found) else found.importances)),
    }


def _are_few(found: Found) -> bool:
    return found.count("complete", "wrong") < FEW


def render_search(found: Found) -> str:
    """The page as a string; equal searches give equal pages."""
    plan, best, other = found.plan, found.best, found.best_without_groups
    figures = [*_figures(found).values(), *(draw_worth(panel) for panel in slices_data(found))]
    return rendered(
        "search.html",
        plan=plan,
        objective=OBJECTIVES[plan.objective],
        best=best,
        in_vain=found.in_vain,
        value=percent(None if best is None else best.value),
        other=None if plan.objective == "pairs" else other,
        other_rule=OBJECTIVES["pairs"],
        settings=[
            (name, describe(range_), "–" if best is None else in_words({name: best.settings[name]}).partition(" ")[2])
            for name, range_ in plan.space.items()
        ],
        figures=[inline(svg) for svg in figures if svg],
        few=FEW if _are_few(found) else None,
        counts={words: found.count(state) for state, words in STATES.items() if found.count(state)},
        done=found.done,
        trials=[
            {
                "number": trial.number,
                "value": percent(trial.value),
                "settings": in_words(trial.settings),
                "note": _note(trial.state, trial.about.get("error"), trial.about.get("as")),
                "is_best": trial == best,
            }
            for trial in found.trials
        ],
        origin=[]
        if best is None
        else [(name, str(best.about.get(name) or "–")) for name in ("commit", "hardware", "date")],
    )


def _note(state: str, error: str | None, twin: int | None) -> str:
    said = f"as trial {twin}" if twin is not None else STATES.get(state, "")
    return f"{said}: {error}" if error else said
