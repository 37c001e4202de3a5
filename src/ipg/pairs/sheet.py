"""Pairs to look at: a contact sheet, one HTML file with everything in it, or a PNG.

Pairs are marked on the page by clicks, and it shows the commands that reject or accept those that are. It runs no
script: each mark is a checkbox, and its number in a command shows while it is checked.
"""

from __future__ import annotations

import base64
import io
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
from PIL import Image, ImageDraw, ImageFont

from ipg.data.errors import DataError
from ipg.data.parallel import in_order
from ipg.files import replacing, write_text
from ipg.pairs.audit import summary
from ipg.pairs.references import References, to_rgb
from ipg.pairs.rows import NAMES, Manifest, Pair

__all__ = ["Card", "cards", "write"]

SIDE = 192
"""Pixels to which large images are reduced."""
PIXEL_ART = 64
"""Images up to this side are shown pixel by pixel."""
COLUMNS, GAP, TEXT = 5, 10, 34
"""Pairs in a row of a PNG, pixels between them, and pixels for the text under each."""
COLORS = {"ok": (0, 117, 92), "rejected": (179, 64, 10), "": (91, 100, 112)}


@dataclass(frozen=True)
class Member:
    """One image of a pair, or why it cannot be shown."""

    side: str
    picture: Image.Image | None
    problem: str = ""

    @property
    def uri(self) -> str:
        """The image as part of a page."""
        if self.picture is None:
            return ""
        small = max(self.picture.size) <= PIXEL_ART
        buffer = io.BytesIO()
        if small:
            self.picture.save(buffer, format="PNG")
        else:
            self.picture.save(buffer, format="JPEG", quality=88)
        return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@dataclass(frozen=True)
class Card:
    """A pair as it is shown."""

    number: int
    """From 1, as `ipg pairs reject` takes it."""
    total: int
    pair: Pair
    members: tuple[Member, Member]

    @property
    def verb(self) -> str:
        """What a mark on it asks for."""
        return "accept" if self.pair.status == "rejected" else "reject"

    @property
    def state(self) -> str:
        """Status and score."""
        score = [] if self.pair.score is None else [f"{self.pair.score:.2f}"]
        return " ".join([self.pair.status, *score])

    @property
    def names(self) -> str:
        """What the members are called."""
        return f"{self.pair.first} | {self.pair.second}"


def cards(manifest: Manifest, references: References, *, count: int = 100, worst: bool = False) -> list[Card]:
    """The pairs to show: every so many of the manifest, or those with the lowest scores first."""
    if count < 1:
        raise ValueError(f"count={count} is out of range: expected at least 1 pair to show")
    rows = list(range(len(manifest)))
    if worst:
        scores = [2.0 if pair.score is None else pair.score for pair in manifest.pairs]  # those without one come last
        rows = sorted(rows, key=scores.__getitem__)[:count]
    elif len(rows) > count:
        rows = [row * len(rows) // count for row in range(count)]

    def card(row: int) -> Card:
        pair = manifest.pairs[row]
        first, second = (_member(side, getattr(pair, side), references) for side in ("first", "second"))
        return Card(row + 1, len(manifest), pair, (first, second))

    return list(in_order(card, rows))


def write(path: Path, manifest: Manifest, shown: Sequence[Card]) -> Path:
    """Write the sheet: a PNG where its name says so, else HTML."""
    if path.suffix.lower() == ".png":
        with replacing(path) as temporary:
            _png(shown).save(temporary, format="PNG")
        return path
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path} is neither .html nor .png; name the sheet by one of these")
    return write_text(path, _html(manifest, shown).encode("utf-8", "replace").decode("utf-8"))


def _member(side: str, reference: str, references: References) -> Member:
    try:
        image = references.image(reference)
    except DataError as error:
        return Member(side, None, str(error))
    picture = Image.fromarray(to_rgb(image).permute(1, 2, 0).numpy())
    if max(picture.size) > SIDE:
        picture = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return Member(side, picture)


def _html(manifest: Manifest, shown: Sequence[Card]) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(resources.files("ipg.pairs").joinpath("sheet.html").read_text("utf-8"))
    pictures = [member.picture for card in shown for member in card.members if member.picture is not None]
    labels = Counter(pair.label for pair in manifest.pairs)
    reasons = summary(manifest)
    judged = any(pair.status for pair in manifest.pairs)
    place = manifest.folder if manifest.path.name in NAMES else manifest.path
    lines = ["By label: " + ", ".join(f"{label}: {count:,}" for label, count in sorted(labels.items()))]
    if judged:
        lines.append("Verdicts: " + ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common()))
    return template.render(
        title=f"{len(manifest):,} pairs of {manifest.folder.resolve().name}",
        about=f"{len(shown):,} of them are shown. Left and right should differ in the shortcut alone. Click a pair to "
        "reject it, or a rejected one to accept it: the command that does so appears at the bottom.",
        place=shlex.quote(str(place)),
        verbs=sorted({card.verb for card in shown}, reverse=True),
        lines=lines,
        cards=shown,
        rejected=any(card.pair.status == "rejected" for card in shown),
        pixelated=bool(pictures) and max(picture.width for picture in pictures) <= PIXEL_ART,
        width=300 if any(picture.width > PIXEL_ART for picture in pictures) else 220,
    )


def _png(shown: Sequence[Card]) -> Image.Image:
    side = SIDE
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    width, height = 2 * side + GAP, side + TEXT + GAP
    sheet = Image.new("RGB", (columns * width + GAP, rows * height + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for place, card in enumerate(shown):
        left, top = GAP + place % columns * width, GAP + place // columns * height
        for number, member in enumerate(card.members):
            corner = (left + number * side, top)
            if member.picture is None:
                draw.rectangle((*corner, corner[0] + side - 1, top + side - 1), fill=(217, 221, 227))
            else:
                small = max(member.picture.size) <= PIXEL_ART
                how = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
                sheet.paste(member.picture.resize((side - 1, side), how), corner)
        color = COLORS[card.pair.status]
        draw.text((left, top + side + 2), f"{card.number}  {card.pair.label}  {card.state}"[:60], fill=color, font=font)
        draw.text((left, top + side + 17), card.pair.reason[:64], fill=color, font=font)
    return sheet
