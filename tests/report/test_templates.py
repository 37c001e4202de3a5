"""What every page promises to those who hear it, or go through it with the keyboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ipg

PAGES = sorted(path for folder in ("report", "pairs") for path in (Path(ipg.__file__).parent / folder).glob("*.html"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_name_their_rows_and_columns_and_places_to_scroll_say_what_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    cells = re.findall(r"<th\b([^>]*)>(.*?)</th>", text, re.DOTALL)
    assert [about for about, said in cells if 'scope="' not in about or not said.strip()] == []
    scrolling = re.findall(r'<div class="(?:\w+ )*scroll"([^>]*)>', text)
    assert [about for about in scrolling if not re.search(r'tabindex="0" role="region" aria-label="[^"]', about)] == []


def test_there_are_tables_and_places_to_scroll() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert {name for name, text in texts.items() if "<th " in text and 'scroll"' in text} == {
        "compare.html", "search.html", "table.html", "template.html",
    }  # fmt: skip
