"""The figures of a report. Each is two functions: one returns the data, one draws it as SVG.

An SVG made here stands alone and also inside a page: its colours are CSS variables with the light theme as fallback
(`fill: var(--after, #0069b4)`), its text takes the font of the page, and equal data gives equal bytes. Nothing here
touches pyplot or the reader's matplotlib settings.
"""

from __future__ import annotations

import base64
import io
import math
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib.style
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image
from torch import Tensor

__all__ = [
    "GroupBars",
    "Line",
    "PairGrid",
    "Panel",
    "RunView",
    "Tile",
    "curves_data",
    "draw_curves",
    "draw_group_bars",
    "draw_pair_grid",
    "group_bars_data",
    "image_uri",
    "pair_grid_data",
]

INK, MUTED, TRACK = "#1b1f24", "#5b6470", "#e8ebef"
SERIES = {
    "before": "#c2540a",
    "after": "#0069b4",
    "other-1": "#00876a",
    "other-2": "#b04a86",
    "other-3": "#8a6d00",
    "other-4": "#5f57b8",
    "other-5": "#6b7280",
    "other-6": "#3f8fb5",
}
"""Colours of the runs on a light ground, apart from each other also without red or green vision."""
THEME = {INK: "ink", MUTED: "muted", TRACK: "track"} | {colour: name for name, colour in SERIES.items()}
"""Colour to the CSS variable that a page may set in its place."""
MARKERS = {
    "before": "o", "after": "s", "other-1": "^", "other-2": "D", "other-3": "v", "other-4": "P", "other-5": "X",
    "other-6": "*",
}  # fmt: skip
FIRST_CHANNEL, SECOND_CHANNEL = (224, 62, 38), (0, 152, 117)
"""Red and green of two-channel images: a yellowish red and a bluish green, told apart also without red-green vision."""
LARGEST_PIXEL_ART = 64
"""Images up to this side are shown pixel by pixel; larger ones are smoothed, and stored as JPEG."""
LARGEST_STORED = 192
"""Side to which large images are reduced."""

SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True)
class RunView:
    """One training run, as a report sees it."""

    name: str
    """What the reader calls it, e.g. `Plain training (ERM)`."""
    method: str
    """Its name in `ipg.methods`, e.g. `erm`."""
    config: Mapping[str, object]
    epochs: Sequence[Mapping[str, Any]]
    """The rows of its `metrics.jsonl`."""
    result: Mapping[str, Any]
    """Its `result.json`."""
    role: Literal["before", "after", "reference"]
    """The headline compares the first `before` with the first `after`."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """On the test split at the selected epoch; where that is missing at the last one."""
        found = self.result.get("metrics") or self.result.get("last_metrics")
        if not found and self.epochs:
            found = {
                "pair_disagreement": self.epochs[-1].get("pair_disagreement"),
                **(self.epochs[-1].get("test") or {}),
            }
        return found or {}


def number(value: object) -> float | None:
    """`value` as a finite float; None for whatever is not one."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as per cent, a dash where there is none. Without digits, 99.6 does not become 100, nor 0.4 zero."""
    if value is None:
        return "–"
    if digits == 0 and round(100 * value) in (0, 100) and value not in (0, 1):
        digits = 1
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def series(runs: Sequence[RunView]) -> tuple[str, ...]:
    """The name of each run's colour: `before`, `after` for the two compared, `other-1` … for the rest."""
    names: list[str] = []
    others = 0
    for run in runs:
        if run.role != "reference" and run.role not in names:
            names.append(run.role)
        else:
            names.append(f"other-{others % 6 + 1}")
            others += 1
    return tuple(names)


@dataclass(frozen=True)
class GroupBars:
    """Accuracy of every run in every group."""

    runs: tuple[str, ...]
    series: tuple[str, ...]
    groups: tuple[str, ...]
    counts: tuple[int | None, ...]
    """Test images of each group."""
    accuracy: tuple[tuple[float | None, ...], ...]
    """By run, then by group; None where it was not measured."""

    def take(self, groups: Sequence[int]) -> GroupBars:
        """The given groups alone."""
        return replace(
            self,
            groups=tuple(self.groups[g] for g in groups),
            counts=tuple(self.counts[g] for g in groups),
            accuracy=tuple(tuple(row[g] for g in groups) for row in self.accuracy),
        )


def group_bars_data(runs: Sequence[RunView]) -> GroupBars:
    """Accuracy by group on the test split at the selected epoch; groups in the order in which the runs name them."""
    tables = [run.metrics.get("groups") or {} for run in runs]
    groups = tuple(dict.fromkeys(group for table in tables for group in table))
    counts = []
    for group in groups:
        known = [number((table.get(group) or {}).get("count")) for table in tables]
        counts.append(next((int(count) for count in known if count is not None), None))
    return GroupBars(
        runs=tuple(run.name for run in runs),
        series=series(runs),
        groups=groups,
        counts=tuple(counts),
        accuracy=tuple(tuple(number((table.get(group) or {}).get("accuracy")) for group in groups) for table in tables),
    )


def draw_group_bars(data: GroupBars, *, width: int = 400, legend: bool = True) -> str:
    """A block of bars a group, a bar a run, the number at its end. Empty where no group was measured."""
    shown = [g for g in range(len(data.groups)) if any(row[g] is not None for row in data.accuracy)]
    if not shown:
        return ""
    bar, gap, head, between = 14, 5, 22, 16  # pixels
    entries = list(zip(data.runs, data.series, strict=True)) if legend else []
    top = 22 * len(entries) + (8 if entries else 0)
    block = head + len(data.runs) * (bar + gap) - gap
    height = top + len(shown) * (block + between) - between + 2
    full = width - 60  # length of 100 %

    with _style():
        figure, axes = _canvas(width, height)
        for i, (name, slot) in enumerate(entries):
            _bar(axes, 22 * i + 2, 12, 12, SERIES[slot])
            axes.text(20, 22 * i + 13, _fit(name, width - 20, 13), color=INK, fontsize=13)
        y = top
        for g in shown:
            count = "" if data.counts[g] is None else f"n = {data.counts[g]:,}"
            room = width - _width(count, 12) - 12
            axes.text(0, y + 13, _fit(data.groups[g], room, 13, "bold"), color=INK, fontsize=13, fontweight="bold")
            axes.text(width, y + 13, count, color=MUTED, fontsize=12, ha="right")
            y += head
            for row, slot in zip(data.accuracy, data.series, strict=True):
                value = row[g]
                _bar(axes, y, full, bar, TRACK)
                if value is not None:
                    _bar(axes, y, max(2.0, full * min(1.0, max(0.0, value))), bar, SERIES[slot])
                axes.text(
                    width, y + 11.5, percent(value), color=MUTED if value is None else INK, fontsize=12, ha="right"
                )
                y += bar + gap
            y += between - gap
        spoken = "; ".join(
            f"{run}: " + ", ".join(f"{data.groups[g]} {percent(row[g])}" for g in shown)
            for run, row in zip(data.runs, data.accuracy, strict=True)
        )
        return _svg(figure, "bars", f"Accuracy by group. {spoken}.")


@dataclass(frozen=True)
class Line:
    """One metric of one run, by epoch."""

    run: str
    series: str
    epochs: tuple[int, ...]
    values: tuple[float | None, ...]
    selected: int | None
    """The epoch whose model was kept."""


@dataclass(frozen=True)
class Panel:
    """One metric of all runs that have it."""

    key: str
    title: str
    lines: tuple[Line, ...]


def curves_data(runs: Sequence[RunView]) -> tuple[Panel, ...]:
    """Average accuracy, worst-group accuracy and pair disagreement by epoch; a metric that no run has is left out.

    Disagreement is that of held-out pairs; where no run has any, that of the training pairs, and the title says so.
    """

    def of_test(key: str) -> list[list[float | None]]:
        return [[number((row.get("test") or {}).get(key)) for row in run.epochs] for run in runs]

    def of_row(key: str) -> list[list[float | None]]:
        return [[number(row.get(key)) for row in run.epochs] for run in runs]

    def measured(columns: list[list[float | None]]) -> bool:
        return any(value is not None for column in columns for value in column)

    disagreement, pairs = of_row("pair_disagreement"), "Pair disagreement"
    if not measured(disagreement):
        disagreement, pairs = of_row("train_pair_disagreement"), "Disagreement of training pairs"
    panels = []
    for key, title, columns in (
        ("average", "Average accuracy", of_test("average")),
        ("worst_group", "Worst-group accuracy", of_test("worst_group")),
        ("disagreement", pairs, disagreement),
    ):
        lines = []
        for run, slot, values in zip(runs, series(runs), columns, strict=True):
            if any(value is not None for value in values):
                epochs = tuple(int(row.get("epoch", i)) for i, row in enumerate(run.epochs, start=1))
                selected = number(run.result.get("selected_epoch"))
                lines.append(Line(run.name, slot, epochs, tuple(values), None if selected is None else int(selected)))
        if lines:
            panels.append(Panel(key, title, tuple(lines)))
    return tuple(panels)


def draw_curves(data: Panel, *, width: int = 340, height: int = 250, legend: bool = True) -> str:
    """One panel as a line plot over epochs; a ring marks the selected epoch, a gap a missing value."""
    entries = list(data.lines) if legend else []
    top, left, right, bottom = 44 + 22 * len(entries), 50, 12, 44  # pixels
    height += 22 * len(entries)
    with _style():
        figure, canvas = _canvas(width, height)
        canvas.text(0, 14, _fit(data.title, width, 13, "bold"), color=INK, fontsize=13, fontweight="bold")
        for i, line in enumerate(entries):
            y = 36 + 22 * i
            canvas.plot([0, 18], [y, y], color=SERIES[line.series], linewidth=2, clip_on=False)
            canvas.plot([9], [y], color=SERIES[line.series], marker=MARKERS[line.series], markersize=6, clip_on=False)
            canvas.text(26, y + 4.5, _fit(line.run, width - 26, 12), color=INK, fontsize=12)
        axes = figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
        )
        values = [value for line in data.lines for value in line.values if value is not None]
        largest = max(values, default=1.0)
        limit = 1.0 if largest > 0.5 or data.key != "disagreement" else max(0.01, 1.2 * largest)
        for line in data.lines:
            heights = [math.nan if value is None else value for value in line.values]
            axes.plot(
                line.epochs, heights, color=SERIES[line.series], linewidth=2, solid_capstyle="round", clip_on=False,
                marker=MARKERS[line.series], markersize=6, markevery=-(-len(heights) // 16), zorder=3,
            )  # fmt: skip
            at = [i for i, epoch in enumerate(line.epochs) if epoch == line.selected and not math.isnan(heights[i])]
            axes.plot(
                [line.epochs[i] for i in at], [heights[i] for i in at], linestyle="", clip_on=False, zorder=4,
                marker="o", markersize=13, markerfacecolor="none", markeredgecolor=SERIES[line.series],
                markeredgewidth=1.4,
            )  # fmt: skip
        epochs = [epoch for line in data.lines for epoch in line.epochs]
        alone = 0.5 if min(epochs) == max(epochs) else 0
        axes.set_xlim(min(epochs) - alone, max(epochs) + alone)
        axes.set_ylim(0, limit)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
        digits = 0 if limit > 0.05 else 1
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.{digits}f}\N{NO-BREAK SPACE}%"))
        axes.set_xlabel("Epoch", color=MUTED, fontsize=12, labelpad=6)
        axes.tick_params(length=0, labelsize=12, labelcolor=MUTED, pad=8)
        axes.grid(axis="y", color=TRACK, linewidth=1)
        axes.patch.set_visible(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        ends = []
        for line in data.lines:
            known = [value for value in line.values if value is not None]
            ends.append(f"{line.run} from {percent(known[0])} to {percent(known[-1])}")
        return _svg(figure, data.key, f"{data.title} by epoch. {'; '.join(ends)}.")


@dataclass(frozen=True)
class Tile:
    """One pair, ready to be shown."""

    first: str
    """Data URI."""
    second: str
    label: str
    pixelated: bool
    """Whether it is small enough to be shown pixel by pixel."""


@dataclass(frozen=True)
class PairGrid:
    """Pairs in the order in which they are shown."""

    tiles: tuple[Tile, ...]


def pair_grid_data(pairs: Sequence[tuple[Tensor, Tensor, str]]) -> PairGrid:
    """Images as data URIs; pairs are (first, second, label name), images (C, H, W) of uint8."""
    return PairGrid(
        tuple(
            Tile(image_uri(first), image_uri(second), label, max(first.shape[-2:]) <= LARGEST_PIXEL_ART)
            for first, second, label in pairs
        )
    )


def draw_pair_grid(data: PairGrid, *, columns: int = 10, size: int = 56) -> str:
    """Every pair as a column of two images, first over second, its label beneath. Empty without pairs."""
    if not data.tiles:
        return ""
    columns = min(columns, len(data.tiles))
    across, down = size + 12, 2 * size + 38
    width, height = columns * across - 12, -(-len(data.tiles) // columns) * down - 8
    labels = ", ".join(dict.fromkeys(tile.label for tile in data.tiles))
    root = _root(width, height, f"{len(data.tiles)} invariance pairs, first over second: {labels}.")
    with _style():
        for i, tile in enumerate(data.tiles):
            x, y = i % columns * across, i // columns * down
            for offset, uri in ((0, tile.first), (size + 4, tile.second)):
                box = {"x": str(x), "y": str(y + offset), "width": str(size), "height": str(size)}
                ET.SubElement(root, "rect", {**box, "style": "fill: none; stroke: " + _themed(TRACK)})
                image = ET.SubElement(root, "image", {**box, "href": uri})
                if tile.pixelated:
                    image.set("style", "image-rendering: pixelated")
            text = ET.SubElement(root, "text", {"x": f"{x + size / 2:g}", "y": str(y + 2 * size + 20)})
            text.set("style", f"font-size: 11px; text-anchor: middle; fill: {_themed(MUTED)}")
            text.text = _fit(tile.label, size + 10, 11)
    return ET.tostring(root, encoding="unicode")


def image_uri(image: Tensor) -> str:
    """An image as a data URI.

    One channel is grey, three are red, green, blue, of more the first three count. Two channels are colours on
    the page itself: the first red, the second green, the more opaque the larger the value.
    """
    if image.dtype != torch.uint8 or image.ndim != 3 or 0 in image.shape:
        raise ValueError(f"an image must be uint8 of shape (C, H, W), got {image.dtype} {tuple(image.shape)}")
    array = image.detach().permute(1, 2, 0).cpu().numpy()  # (H, W, C)
    if array.shape[2] == 1:
        picture = Image.fromarray(np.ascontiguousarray(array[:, :, 0]))
    elif array.shape[2] == 2:
        share = array / np.maximum(array.sum(2, keepdims=True, dtype=np.int64), 1)  # (H, W, 2)
        colour = share @ np.array([FIRST_CHANNEL, SECOND_CHANNEL])  # (H, W, 3)
        opaque = 255 * (array.max(2, keepdims=True) / 255) ** 0.7  # faint cloth stays visible on light and dark
        picture = Image.fromarray(np.rint(np.concatenate([colour, opaque], axis=2)).astype(np.uint8))
    else:
        picture = Image.fromarray(np.ascontiguousarray(array[:, :, :3]))
    stored, buffer = "PNG", io.BytesIO()
    if max(picture.size) > LARGEST_PIXEL_ART:
        picture.thumbnail((LARGEST_STORED, LARGEST_STORED))
        stored = "PNG" if picture.mode == "RGBA" else "JPEG"
    picture.save(buffer, stored, optimize=True, **({"quality": 88} if stored == "JPEG" else {}))
    return f"data:image/{stored.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


@contextmanager
def _style() -> Iterator[None]:
    """Matplotlib as this module needs it, whatever the reader's settings; names with `$` or rare letters are fine."""
    own = {"svg.fonttype": "none", "svg.hashsalt": "ipg", "text.parse_math": False, "font.family": "DejaVu Sans"}
    with warnings.catch_warnings(), matplotlib.style.context(["default", own]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _canvas(width: int, height: int) -> tuple[Figure, Axes]:
    """A figure of that many pixels, and axes over all of it whose unit is the pixel, y downwards."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def _bar(axes: Axes, y: float, length: float, thickness: float, colour: str) -> None:
    axes.add_patch(Rectangle((0, y), length, thickness, linewidth=0, color=colour, clip_on=False))


def _width(text: str, size: float, weight: str = "normal") -> float:
    """Width of `text` in pixels, in a font wider than most."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) if text else 0.0


def _clean(text: str) -> str:
    """`text` on one line, without the characters that XML forbids."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(letter) in ("Cc", "Cs", "Cn") else letter
        for letter in " ".join(text.split())
    )


def _fit(text: str, room: float, size: float, weight: str = "normal") -> str:
    """`text` on one line, cut to `room` pixels."""
    text = _clean(text)[:200]
    if _width(text, size, weight) <= room:
        return text
    while text and _width(text + "…", size, weight) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _themed(colour: str) -> str:
    return f"var(--{THEME[colour]}, {colour})"


def _root(width: float, height: float, spoken: str) -> ET.Element:
    """An empty SVG that scales with its surroundings."""
    return ET.Element(
        "svg",
        {
            "xmlns": SVG,
            "viewBox": f"0 0 {width:g} {height:g}",
            "width": f"{width:g}",
            "height": f"{height:g}",
            "font-family": "system-ui, sans-serif",
            "stroke-linejoin": "round",
            "role": "img",
            "aria-label": _clean(spoken),
        },
    )


def _svg(figure: Figure, name: str, spoken: str) -> str:
    """The figure as SVG: themed colours, the page's font, ids that start with `name`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawn = ET.fromstring(buffer.getvalue())
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    root = _root(width, height, spoken)
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', buffer.getvalue()))
    root.extend(drawn)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):  # a style would reach into the whole page
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if "id" in attributes and attributes["id"] in used:
            attributes["id"] = f"{name}-{attributes['id']}"
        else:
            attributes.pop("id", None)
        for key in ("href", "clip-path"):
            if key in attributes:
                attributes[key] = attributes[key].replace("#", f"#{name}-")
        if "style" in attributes:
            attributes["style"] = _restyled(attributes["style"])
        element.attrib.clear()
        element.attrib.update(attributes)
        if element.tag != "text":
            element.text = None
        element.tail = None
    return ET.tostring(root, encoding="unicode")


def _restyled(style: str) -> str:
    """A style of matplotlib's with themed colours and the page's font (one property before 3.10, several since)."""
    style = re.sub(r"#[0-9a-f]{6}", lambda found: _themed(found[0]) if found[0] in THEME else found[0], style)
    style = re.sub(r"font-family: [^;]+", "font-family: inherit", style)
    style = re.sub(r"font: (\d+) ([\d.]+px) [^;]+", r"font-weight: \1; font-size: \2; font-family: inherit", style)
    return re.sub(r"font: ([\d.]+px) [^;]+", r"font-size: \1; font-family: inherit", style)
