import html
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ipg.pairs.audit import audit
from ipg.pairs.background import plan
from ipg.pairs.by_eye import reject
from ipg.pairs.masks import Masks
from ipg.pairs.plan import of_pair_set, write
from ipg.pairs.recolored import build
from ipg.pairs.references import References
from ipg.pairs.rows import Manifest
from ipg.pairs.sheet import cards
from ipg.pairs.sheet import write as write_sheet


@pytest.fixture
def manifest(shapes, tmp_path: Path) -> Manifest:
    masks = Masks(shapes.masks, shapes.listing, size=48)
    return audit(write(plan(shapes.table, 8, masks=masks), tmp_path / "pairs", settings={}), shapes.table)


class Tags(HTMLParser):
    """Counts what is on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(path: Path, manifest: Manifest, references: References, **options) -> str:
    return write_sheet(path, manifest, cards(manifest, references, **options)).read_text(encoding="utf-8")


def test_a_page_with_everything_in_it(manifest: Manifest, shapes, tmp_path: Path) -> None:
    text = page(tmp_path / "sheet.html", manifest, References(manifest.folder, shapes.table))
    tags = Tags(text)
    assert len(tags.of("article")) == 8
    assert len(tags.of("img")) == 16
    assert all(str(image["src"]).startswith("data:image/") for image in tags.of("img"))
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "<h1>8 pairs of pairs</h1>" in text
    assert "By label: cross: 4, disc: 4" in text
    assert "Verdicts: ok: 8" in text
    assert {box["type"] for box in tags.of("input")} == {"checkbox"}  # nothing is rejected: nothing to choose from


def test_reasons_are_shown_and_escaped(manifest: Manifest, shapes, tmp_path: Path) -> None:
    pairs = list(manifest.pairs)
    pairs[0] = replace(pairs[0], label="<b>disc", status="rejected", reason="<script>alert(1)</script>")
    pairs[1] = replace(pairs[1], second="none.png", status="rejected", reason="image missing")
    text = page(tmp_path / "s.html", manifest.with_pairs(pairs), References(manifest.folder, shapes.table))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;disc" in text
    assert "none.png: there is no such file" in text
    assert len(Tags(text).of("img")) == 15
    assert [box["type"] for box in Tags(text).of("input")].count("radio") == 3


def test_marks_ask_for_the_opposite_of_what_a_pair_is(manifest: Manifest, shapes, tmp_path: Path) -> None:
    """Each pair has a mark, and its number stands once, hidden, in the command that the mark belongs to."""
    pairs = [replace(pair, status="rejected") if row == 2 else pair for row, pair in enumerate(manifest.pairs)]
    text = page(tmp_path / "s.html", manifest.with_pairs(pairs), References(manifest.folder, shapes.table))
    marks = [box for box in Tags(text).of("input") if box["type"] == "checkbox"]
    assert [box["id"] for box in marks] == [f"pair-{number}" for number in range(1, 9)]
    assert [box["aria-label"] for box in marks][1:4] == ["reject pair 2", "accept pair 3", "reject pair 4"]
    commands = [re.sub("<[^>]*>", "", line) for line in re.findall(r"<code>(ipg pairs [ra].*?)</code>", text)]
    assert commands == [f"ipg pairs reject {manifest.folder} 1 2 4 5 6 7 8", f"ipg pairs accept {manifest.folder} 3"]


def test_commands_name_the_manifest_as_a_shell_reads_it(manifest: Manifest, shapes, tmp_path: Path) -> None:
    elsewhere = replace(manifest, path=manifest.folder / "my 'own' & <b>.csv")
    text = page(tmp_path / "s.html", elsewhere, References(manifest.folder, shapes.table))
    (command,) = re.findall(r"<code>ipg pairs reject (.*?)<span", text)
    assert shlex.split(html.unescape(command)) == [str(elsewhere.path)]
    assert "<b>.csv" not in text


def test_which_pairs_are_shown(manifest: Manifest, shapes) -> None:
    references = References(manifest.folder, shapes.table)
    assert [card.number for card in cards(manifest, references, count=3)] == [1, 3, 6]
    scored = manifest.with_pairs(
        [replace(pair, score=None if n == 5 else 0.1 * n) for n, pair in enumerate(reversed(manifest.pairs))]
    )
    worst = cards(scored, references, count=8, worst=True)
    assert [card.number for card in worst] == [1, 2, 3, 4, 5, 7, 8, 6]
    assert worst[0].state == "ok 0.00"
    with pytest.raises(ValueError, match="count=0 is out of range"):
        cards(manifest, references, count=0)


def test_a_picture(manifest: Manifest, shapes, tmp_path: Path) -> None:
    references = References(manifest.folder, shapes.table)
    pairs = [replace(pair, second="none.png") if n == 2 else pair for n, pair in enumerate(manifest.pairs)]
    path = write_sheet(tmp_path / "s.png", manifest, cards(manifest.with_pairs(pairs), references))
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width > image.height > 400
        assert len(np.unique(np.asarray(image.convert("L").resize((64, 64))))) > 50
    with pytest.raises(ValueError, match=r"is neither \.html nor \.png"):
        write_sheet(tmp_path / "s.pdf", manifest, cards(manifest, references))


def test_small_images_are_shown_pixel_by_pixel(fashion, tmp_path: Path) -> None:
    manifest = write(of_pair_set(fashion, build(fashion, 4)), tmp_path / "p", settings={})
    text = page(tmp_path / "s.html", manifest, References(manifest.folder, fashion))
    assert "image-rendering: pixelated" in text
    assert "Verdicts" not in text
    text = page(tmp_path / "s.html", reject(manifest, [2]), References(manifest.folder, fashion))
    assert "Verdicts: not judged: 3, by eye: 1" in text  # one word by hand is no audit of the others
