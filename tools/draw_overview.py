"""Draw the method at a glance: `python tools/draw_overview.py` writes docs/overview.svg.

Everything in it is drawn by code. The picture brings its own light card, so that it reads the same on a dark page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

INK, MUTED, RULE, CARD, PANEL = "#1b1f24", "#5b6470", "#cfd6de", "#ffffff", "#f5f7f9"
CORRECT, TASK = "#0069b4", "#6b4fa0"
RED, GREEN = "#e03e26", "#009875"

SHIRT = "M10 4 L16 1 Q20 5 24 1 L30 4 L38 12 L32 18 L29 15 L29 37 L11 37 L11 15 L8 18 L2 12 Z"
SHOE = "M3 11 Q8 14 13 9 Q17 18 29 20 Q38 22 38 28 L38 31 L3 31 Z M3 33 L38 33 L38 36 L3 36 Z"


def glyph(path: str, x: float, y: float, colour: str, size: float = 32) -> str:
    """A garment or a shoe on a white tile."""
    scale = (size - 6) / 40
    return (
        f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="5" fill="#ffffff" stroke="{RULE}"/>'
        f'<path d="{path}" transform="translate({x + 3} {y + 3}) scale({scale:.3f})" fill="{colour}"/>'
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    colour: str = INK,
    bold: bool = False,
    at: str = "start",
    note: str = "",
    note_colour: str = INK,
) -> str:
    """A line of text; `_C` and `_T` become subscripts. A note follows wherever the words end in the reader's font."""
    words = re.sub(r"_([CT])(.*)", rf'<tspan dy="3" font-size="{size - 3}">\1</tspan><tspan dy="-3">\2</tspan>', words)
    words = words.replace('<tspan dy="-3"></tspan>', "")
    weight = ' font-weight="600"' if bold else ""
    if note:
        words += f'<tspan dx="8" font-size="13" font-weight="400" fill="{note_colour}">{note}</tspan>'
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{at}"{weight}>{words}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 2) -> str:
    """A straight arrow."""
    return (
        f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{colour}" stroke-width="{width}" fill="none" '
        f'marker-end="url(#head-{colour[1:]})"/>'
    )


def box(x: float, y: float, width: float, height: float, fill: str = CARD, stroke: str = RULE) -> str:
    """A rounded box."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="{fill}" stroke="{stroke}"/>'


def rationale(x: float, y: float, strengths: list[tuple[float, float]], colour: str) -> str:
    """A rationale as a small matrix, features down, classes across; the stronger, the darker."""
    cells = []
    for d, row in enumerate(strengths):
        for k, strength in enumerate(row):
            cells.append(
                f'<rect x="{x + 13 * k}" y="{y + 13 * d}" width="12" height="12" rx="2" '
                f'fill="{colour}" fill-opacity="{0.10 + 0.85 * strength:.2f}"/>'
            )
    return "".join(cells)


def draw() -> str:
    """The whole picture."""
    heads = "".join(
        f'<marker id="head-{colour[1:]}" markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" '
        f'refX="7" refY="5" orient="auto"><path d="M0 0.8 L9 5 L0 9.2 Z" fill="{colour}"/></marker>'
        for colour in (CORRECT, TASK, MUTED)
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 470" width="800" height="470" role="img" '
        "aria-labelledby=\"title desc\" font-family=\"'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif\">",
        '<title id="title">Invariance Pair Guidance: two updates an iteration</title>',
        '<desc id="desc">A batch of pairs, each one thing in two colours, goes through the model. The rationales of a '
        "pair are pulled together, those of different classes pushed apart: the corrective update, made at every k-th "
        "step. A task batch goes through the same model. While pairs disagree its gradient is rescaled to a share "
        "alpha of the correction's length, then the task update is made. Both use one optimizer.</desc>",
        f"<defs>{heads}</defs>",
        f'<rect x="0.5" y="0.5" width="799" height="469" rx="14" fill="{CARD}" stroke="{RULE}"/>',
    ]
    add = parts.append

    # Two lanes: correct, then learn.
    for y, colour, title, note in (
        (18, CORRECT, "1 Correct", "at every k-th step"),
        (243, TASK, "2 Learn", "at every step"),
    ):
        add(f'<rect x="18" y="{y}" width="764" height="209" rx="10" fill="{PANEL}"/>')
        add(text(36, y + 29, title, size=16, colour=colour, bold=True, note=note, note_colour=MUTED))

    # What goes in.
    for i, (shape, colours) in enumerate(((SHIRT, (RED, GREEN)), (SHOE, (GREEN, RED)), (SHIRT, (GREEN, RED)))):
        add(glyph(shape, 36 + 40 * i, 66, colours[0]))
        add(glyph(shape, 36 + 40 * i, 104, colours[1]))
    add(text(36, 164, "Pair batch", bold=True))
    add(text(36, 182, "one thing, two colours:"))
    add(text(36, 199, "the answer must stay"))
    for i, (shape, colour) in enumerate(
        ((SHIRT, RED), (SHOE, GREEN), (SHIRT, RED), (SHOE, GREEN), (SHIRT, RED), (SHOE, GREEN))
    ):
        add(glyph(shape, 36 + 40 * (i % 3), 291 + 38 * (i // 3), colour))
    add(text(36, 389, "Task batch", bold=True))
    add(text(36, 407, "labelled, and the colour"))
    add(text(36, 424, "gives the label away"))

    # One model for both.
    add(arrow(168, 118, 207, 118, CORRECT))
    add(arrow(168, 325, 207, 325, TASK))
    add(box(212, 62, 92, 366))
    add(text(258, 222, "Model", size=15, bold=True, at="middle"))
    add(text(258, 242, "features z", colour=MUTED, at="middle"))
    add(text(258, 259, "head W", colour=MUTED, at="middle"))

    # Rationales.
    add(arrow(304, 118, 337, 118, CORRECT))
    add(box(342, 62, 252, 150))
    first = [(0.9, 0.1), (0.15, 0.2), (0.7, 0.1), (0.1, 0.25)]
    second = [(0.1, 0.9), (0.15, 0.2), (0.7, 0.1), (0.1, 0.25)]
    other = [(0.1, 0.2), (0.2, 0.9), (0.1, 0.15), (0.3, 0.75)]
    add(glyph(SHIRT, 360, 70, RED, 22))
    add(glyph(SHIRT, 434, 70, GREEN, 22))
    add(glyph(SHOE, 540, 70, GREEN, 22))
    add(rationale(358, 97, first, CORRECT))
    add(rationale(432, 97, second, CORRECT))
    add(rationale(538, 97, other, CORRECT))
    add(arrow(389, 122, 403, 122, CORRECT))
    add(arrow(427, 122, 413, 122, CORRECT))
    add(arrow(493, 122, 469, 122, MUTED))
    add(arrow(503, 122, 527, 122, MUTED))
    add(text(356, 170, "Rationales", bold=True, note="z ⊙ W"))
    add(text(356, 187, "pull a pair’s together,"))
    add(text(356, 203, "push classes apart up to a margin"))

    # Rescaling.
    add(arrow(304, 325, 337, 325, TASK))
    add(box(342, 287, 252, 150))
    add(arrow(360, 312, 560, 312, TASK, 3))
    add(arrow(360, 338, 420, 338, TASK, 3))
    add(text(432, 342, "α · ‖g_C‖", colour=TASK, bold=True))
    add(text(356, 376, "Task gradient g_T", bold=True))
    add(text(356, 394, "while pairs disagree:"))
    add(text(356, 411, "rescaled to a share of that length"))
    add(text(356, 428, "once they agree: only clipped", colour=MUTED))

    # What the first lane tells the second.
    add(arrow(468, 212, 468, 282, MUTED))
    add(text(480, 243, "how many pairs disagree,"))
    add(text(480, 260, "length of the correction"))

    # One optimizer for both.
    add(arrow(594, 137, 655, 137, CORRECT))
    add(text(622, 128, "g_C", colour=CORRECT, bold=True, at="middle"))
    add(arrow(594, 362, 655, 362, TASK))
    add(text(622, 353, "g_T", colour=TASK, bold=True, at="middle"))
    add(box(660, 62, 104, 366))
    add(text(712, 134, "corrective", colour=CORRECT, bold=True, at="middle"))
    add(text(712, 151, "update", colour=CORRECT, bold=True, at="middle"))
    add(text(712, 240, "One", size=15, bold=True, at="middle"))
    add(text(712, 258, "optimizer", size=15, bold=True, at="middle"))
    add(text(712, 359, "task", colour=TASK, bold=True, at="middle"))
    add(text(712, 376, "update", colour=TASK, bold=True, at="middle"))
    add("</svg>\n")
    return "\n".join(parts)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "overview.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(), encoding="utf-8")
