"""What all figures share: colours, a canvas in pixels, text that fits, and SVG that takes the colours of its page."""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator

__all__ = [
    "INK", "MARKERS", "MUTED", "NARROW", "PAPER", "ROUND", "SERIES", "SVG", "THEME", "TRACK", "WIDE", "bar", "bare",
    "canvas", "clean", "fit", "inset", "percent_ticks", "restyled", "root", "standalone", "style", "text_width",
    "themed", "titled", "to_svg", "whisker", "wrapped",
]  # fmt: skip

INK, MUTED, TRACK, PAPER = "#1b1f24", "#5b6470", "#e8ebef", "#fbfbfa"
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
THEME = {INK: "ink", MUTED: "muted", TRACK: "track", PAPER: "paper"} | {colour: name for name, colour in SERIES.items()}
"""Colour to the CSS variable that a page may set in its place."""
MARKERS = {
    "before": "o", "after": "s", "other-1": "^", "other-2": "D", "other-3": "v", "other-4": "P", "other-5": "X",
    "other-6": "*",
}  # fmt: skip
SVG = "http://www.w3.org/2000/svg"
WIDE, NARROW = 520, 340
"""Widths in pixels: of a figure that stands alone, and of one beside others."""
ROUND = [1, 2, 2.5, 5, 10]
"""Steps between numbers on an axis, up to powers of ten."""


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib as this module needs it, whatever the reader's settings; names with `$` or rare letters are fine."""
    own = {"svg.fonttype": "none", "svg.hashsalt": "ipg", "text.parse_math": False, "font.family": "DejaVu Sans"}
    with warnings.catch_warnings(), matplotlib.style.context(["default", own]):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def canvas(width: int, height: int) -> tuple[Figure, Axes]:
    """A figure of that many pixels, and axes over all of it whose unit is the pixel, y downwards."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def inset(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Axes of their own, so many pixels from the edges of a canvas."""
    width, height = figure.get_size_inches() * figure.dpi
    return figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )


def percent_ticks(axes: Axes, most: int, digits: str = ".4g") -> None:
    """Round numbers of per cent on the left, at most so many steps apart."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=most, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:{digits}}\N{NO-BREAK SPACE}%"))


def bare(axes: Axes, *, grid: Literal["y", "both"] | None = "y", pad: float = 8) -> None:
    """Axes with quiet numbers and lines behind what is drawn, and no frame, ticks or ground."""
    axes.tick_params(length=0, labelsize=12, labelcolor=MUTED, pad=pad)
    if grid is not None:
        axes.grid(axis=grid, color=TRACK, linewidth=1)
    axes.patch.set_visible(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def bar(axes: Axes, y: float, length: float, thickness: float, colour: str) -> None:
    """A bar from the left edge."""
    axes.add_patch(Rectangle((0, y), length, thickness, linewidth=0, color=colour, clip_on=False))


def whisker(axes: Axes, y: float, low: float, high: float) -> None:
    """An interval from `low` to `high`, on a rim that sets it off from the bar beneath."""
    for colour, width in ((PAPER, 4.0), (INK, 1.5)):
        axes.plot([low, high], [y, y], color=colour, linewidth=width, solid_capstyle="butt", clip_on=False)
        for x in (low, high):
            axes.plot([x, x], [y - 4, y + 4], color=colour, linewidth=width, solid_capstyle="butt", clip_on=False)


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of `text` in pixels, in a font wider than most."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) if text else 0.0


def clean(text: str) -> str:
    """`text` on one line, without the characters that XML forbids."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(letter) in ("Cc", "Cs", "Cn") else letter
        for letter in " ".join(text.split())
    )


def fit(text: str, room: float, size: float, weight: str = "normal") -> str:
    """`text` on one line, cut to `room` pixels."""
    text = clean(text)[:200]
    if text_width(text, size, weight) <= room:
        return text
    while text and text_width(text + "…", size, weight) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def titled(title: str, detail: str, width: int, height: int) -> tuple[Figure, Axes, int]:
    """A canvas with a title and, in small, one or two lines beneath it; the pixels they take, with `height` below."""
    lines = wrapped(detail, width, 12, most=2)
    head = 20 + 18 * len(lines)
    figure, ground = canvas(width, head + height)
    ground.text(0, 14, fit(title, width, 13, "bold"), color=INK, fontsize=13, fontweight="bold")
    for row, line in enumerate(lines):
        ground.text(0, 32 + 18 * row, line, color=MUTED, fontsize=12)
    return figure, ground, head


def wrapped(text: str, room: float, size: float, weight: str = "normal", *, most: int) -> list[str]:
    """`text` in at most so many lines of `room` pixels, broken between words where it can be, the last one cut."""
    left = clean(text)[:500].rstrip()
    found: list[str] = []
    while left and len(found) < most - 1 and text_width(left, size, weight) > room:
        ends = [end for end in range(1, len(left)) if left[end] == " "]
        fits = [end for end in ends if text_width(left[:end], size, weight) <= room]
        end = fits[-1] if fits else _longest(left, room, size, weight)
        found.append(left[:end])
        left = left[end:].lstrip()
    return [*found, fit(left, room, size, weight)] if left else found


def _longest(text: str, room: float, size: float, weight: str) -> int:
    """How many letters of a word fit, one at least; those up to a mark that parts it, where one is far enough on."""
    end = max([1, *(n for n in range(1, len(text)) if text_width(text[:n], size, weight) <= room)])
    marks = [n for n in range(end // 2, end + 1) if n and text[n - 1] in "_-/.,"]
    return marks[-1] if marks else end


def themed(colour: str) -> str:
    """A colour of ours as CSS that a page may change."""
    return f"var(--{THEME[colour]}, {colour})"


def root(width: float, height: float, spoken: str) -> ET.Element:
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
            "aria-label": clean(spoken),
        },
    )


def to_svg(figure: Figure, name: str, spoken: str) -> str:
    """The figure as SVG: themed colours, the page's font, ids that start with `name`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawn = ET.fromstring(buffer.getvalue())
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    page = root(width, height, spoken)
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', buffer.getvalue()))
    page.extend(drawn)
    for parent in list(page.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):  # a style would reach into the whole page
                parent.remove(child)
    for element in page.iter():
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
            attributes["style"] = restyled(attributes["style"])
        element.attrib.clear()
        element.attrib.update(attributes)
        if element.tag != "text":
            element.text = None
        element.tail = None
    return ET.tostring(page, encoding="unicode")


def standalone(svg: str, margin: int = 16) -> str:
    """A figure of ours as a file: on a ground of its own, as a page may be dark, with room around it.

    Colours are plain, which every viewer knows, and places are tenths of a pixel, so that versions of matplotlib agree.
    """
    drawn = ET.fromstring(svg.replace(f' xmlns="{SVG}"', "", 1))
    width, height = (float(drawn.attrib[side]) + 2 * margin for side in ("width", "height"))
    ground = {"x": f"{-margin}", "y": f"{-margin}", "width": f"{width:g}", "height": f"{height:g}", "fill": PAPER}
    sizes = {"viewBox": f"{-margin} {-margin} {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    page = ET.Element("svg", {"xmlns": SVG, **drawn.attrib, **sizes})
    page.append(ET.Element("rect", ground))
    page.extend(drawn)
    markers = {path for defined in page.iter("defs") for path in defined.iter("path")}  # small: a tenth is seen
    for element in page.iter():
        for key in element.attrib.keys() & ({"d", "x", "y", "transform"} if element not in markers else set()):
            element.set(key, re.sub(r"-?\d+\.\d+", _tenths, element.attrib[key]))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        if "style" in element.attrib:
            plain = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", element.attrib["style"])
            element.set("style", "; ".join(sorted(plain.split("; "))))
    ET.indent(page, "")
    return ET.tostring(page, encoding="unicode") + "\n"


def _tenths(found: re.Match[str]) -> str:
    return f"{round(float(found[0]), 1):g}"


def restyled(style: str) -> str:
    """A style of matplotlib's with themed colours and the page's font (one property before 3.10, several since)."""
    style = re.sub(r"#[0-9a-f]{6}", lambda found: themed(found[0]) if found[0] in THEME else found[0], style)
    style = re.sub(r"font-family: [^;]+", "font-family: inherit", style)
    style = re.sub(r"font: (\d+) ([\d.]+px) [^;]+", r"font-weight: \1; font-size: \2; font-family: inherit", style)
    return re.sub(r"font: ([\d.]+px) [^;]+", r"font-size: \1; font-family: inherit", style)
