"""Pages and figures as they are read by tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from ipg.report.figures import SVG

__all__ = ["Reader", "words"]

LOADING = {"src", "href", "srcset", "poster", "data", "action", "background", "xlink:href"}
VOID = {"meta", "link", "img"}


class Reader(HTMLParser):
    """Collects tags, what they would load, and text; fails on tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in LOADING:
                self.loads.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def words(svg: str) -> list[str]:
    """The texts of a figure, in their order."""
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{{{SVG}}}text")]
