"""The report as one HTML page: everything inline, nothing fetched, light and dark, on a screen, a phone and paper."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ipg.evaluation.groups import is_constant
from ipg.report import figures
from ipg.report.html import inline, rendered, write_page
from ipg.report.results import card, compared, headline, short, table
from ipg.report.settings import SELECTIONS, made, settings, total_time
from ipg.report.verdict import Evidence, verdict
from ipg.report.views import RunView, percent, series
from ipg.words import listed

__all__ = ["Flip", "Look", "PageData", "RunView", "render", "write"]

GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖", "*": "★"}
"""Markers of the line plots as letters, for the legend."""


@dataclass(frozen=True)
class Flip:
    """An image in two versions that differ in the shortcut alone, and what every run says of both."""

    first: Tensor  # (C, H, W), uint8
    second: Tensor  # (C, H, W), uint8
    label: str
    predictions: Mapping[str, tuple[str, str]]
    """Name of the run to the class it gives the first and the second version."""


@dataclass(frozen=True)
class Look:
    """Images of one label, and where the runs look in each."""

    label: str
    images: Sequence[Tensor]  # (C, H, W), uint8
    heat: Mapping[str, Sequence[Tensor]]  # (H, W), from 0 to 1
    """Name of the run to a map an image."""


@dataclass(frozen=True)
class PageData:
    """All that stands on the page. Whatever is empty or missing is left out."""

    title: str
    """Where the accuracies were measured, as the headline begins: `On clothes whose colour changed`."""
    shortcut: str
    """What the shortcut is and where it fails, in a sentence or two."""
    runs: Sequence[RunView]
    pairs: Sequence[tuple[Tensor, Tensor, str]]
    """A sample of the pairs for the gallery: first, second (C, H, W, uint8), name of the label."""
    pair_count: int
    """How many pairs guided the training."""
    train_count: int
    """How many images it had."""
    flips: Sequence[Flip]
    command: str
    environment: Mapping[str, str]
    """Versions, hardware, commit, date."""
    pairs_of: str = ""
    """Whose pairs these are, where several runs have some."""
    evidence: Evidence = field(default_factory=Evidence)
    """What the test images can tell."""
    looks: Sequence[Look] = ()
    looks_install: str = ""
    """The command that installs what is needed to see where models look, where it is missing."""


def write(path: Path, data: PageData) -> Path:
    """Write the page to `path` in one go: a reader finds the old page or the new one, never half of it."""
    return write_page(path, render(data))


def render(data: PageData) -> str:
    """The page as a string; equal data gives equal pages."""
    slots = series(data.runs)
    bars = figures.group_bars_data(data.runs)
    pair_bars = figures.pair_bars_data(data.runs)
    curves = figures.curves_data(data.runs)
    chosen = compared(data.runs)
    shared, differing = settings(data.runs)
    two = [data.runs[i] for i in chosen]
    group = "group" if data.evidence.grouped else "class"
    folders = {run.name: run.folder for run in data.runs}
    return rendered(
        "template.html",
        data=data,
        group=group,
        headline=headline(two, [slots[i] for i in chosen]),
        verdict=verdict(two, bars.of(chosen), data.evidence, others=[run for run in data.runs if run not in two]),
        cards=[card(data.runs[i], i, slots[i], bars) for i in chosen],
        constant=[run for run in data.runs if is_constant(run.metrics)],
        left_out={
            "cards": _left_out(data.runs, [run.name for run in two]),
            "pairs": _left_out(data.runs, pair_bars.runs),
            "flips": _left_out(data.runs, data.flips[0].predictions if data.flips else ()),
            "looks": _left_out(data.runs, data.looks[0].heat if data.looks else ()),
        },
        legend=[
            {"name": run.name, "folder": run.folder, "series": slot, "glyph": GLYPHS[figures.MARKERS[slot]]}
            for run, slot in zip(data.runs, slots, strict=True)
        ],
        pair_share=percent(data.pair_count / data.train_count) if data.train_count else None,
        tiles=figures.pair_grid_data(data.pairs).tiles,
        bars=[inline(svg) for part in _columns(bars) if (svg := figures.draw_bars(part))],
        table=list(table(data.runs, bars, group=group)),
        pair_bars=[
            inline(svg)
            for b, name in enumerate(("changes", "right"))
            if (svg := figures.draw_bars(pair_bars.take([b]), name=name))
        ],
        pair_runs=[
            {"name": name, "folder": folders.get(name, ""), "series": slot}
            for name, slot in zip(pair_bars.runs, pair_bars.series, strict=True)
        ],
        curves=[inline(figures.draw_curves(panel)) for panel in curves],
        refits=any(line.refit for panel in curves for line in panel.lines),
        flips=[_flip(flip, data.runs) for flip in data.flips],
        flip_counts=_flip_counts(data.flips, two),
        looks=[_look(look, data.runs) for look in data.looks],
        heat_stops=figures.heat_stops(),
        made=[made(run) for run in data.runs],
        total_seconds=total_time(data.runs),
        blind=bool(data.runs) and all(run.result.get("selection") in SELECTIONS for run in data.runs),
        shared=shared,
        differing=differing,
    )


def _left_out(runs: Sequence[RunView], shown: Collection[str]) -> str:
    """The runs that a part of the page does not show, by name and folder, in a list; nothing where it shows all."""
    return listed(
        f"{short(run.name)} ({run.folder})" if run.folder else short(run.name) for run in runs if run.name not in shown
    )


def _columns(bars: figures.Bars) -> list[figures.Bars]:
    """One column of bars, with room for the table beside it; two where there are many groups or runs."""
    groups = len(bars.blocks)
    if groups < 2 or (groups <= 8 and len(bars.runs) <= 3):
        return [bars]
    return [bars.take(range((groups + 1) // 2)), bars.take(range((groups + 1) // 2, groups))]


def _slots(runs: Sequence[RunView]) -> dict[str, str]:
    """The colour of each run by its name, in their order; none where two are of one name."""
    slots = dict(zip((run.name for run in runs), series(runs), strict=True))
    return slots if len(slots) == len(runs) else {}


def _flip(flip: Flip, runs: Sequence[RunView]) -> dict[str, object]:
    """One image of the last gallery: its two versions, and a line a run with two answers."""
    slots = _slots(runs)
    names = sorted(flip.predictions, key=lambda name: list(slots).index(name) if name in slots else len(slots))
    return {
        "tile": figures.pair_grid_data([(flip.first, flip.second, flip.label)]).tiles[0],
        "answers": [
            {
                "run": short(name),
                "series": slots.get(name, "other-5"),
                "said": [{"text": said, "right": said == flip.label} for said in flip.predictions[name]],
            }
            for name in names
        ],
    }


def _flip_counts(flips: Sequence[Flip], runs: Sequence[RunView]) -> list[dict[str, object]]:
    """On how many of the images shown each run changes its answer."""
    counts: list[dict[str, object]] = []
    for run in runs:
        answers = [flip.predictions[run.name] for flip in flips if run.name in flip.predictions]
        if answers:
            counts.append({"name": short(run.name), "changed": sum(a != b for a, b in answers), "of": len(answers)})
    return counts


def _look(look: Look, runs: Sequence[RunView]) -> dict[str, object]:
    """Images beside what counts in them, a line a run."""
    slots = _slots(runs)
    return {
        "label": look.label,
        "pixelated": max(look.images[0].shape[1:]) <= figures.LARGEST_PIXEL_ART,
        "images": [figures.image_uri(image) for image in look.images],
        "runs": [
            {
                "name": short(name),
                "series": slots.get(name, "other-5"),
                "maps": [figures.heat_uri(image, heat) for image, heat in zip(look.images, maps, strict=True)],
            }
            for name, maps in look.heat.items()
        ],
    }
