"""Pages from templates: everything a user gave is escaped, and a page is written whole or not at all."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ipg.files import write_text
from ipg.report.figures import SVG

__all__ = ["check_page", "inline", "is_page", "rendered", "write_page"]

GENERATOR = '<meta name="generator" content="ipg">'
"""What every page has in its head, by which it is known again."""
FOOTER = "<footer>Invariance Pair Guidance."
"""What pages had at their end before they had that."""


def rendered(template: str, **values: Any) -> str:
    """The template of that name, filled in; equal values give equal pages."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: resources.files("ipg.report").joinpath(name).read_text("utf-8")),
    )
    return environment.get_template(template).render(**values)


def inline(svg: str) -> Markup:
    """An SVG of ours as part of a page, where it needs no namespace."""
    return Markup(svg.replace(f' xmlns="{SVG}"', "", 1))  # escaped by figures


def is_page(path: Path) -> bool:
    """Whether the file at `path` is a page of ours."""
    content = path.read_bytes()
    return any(mark.encode() in content for mark in (GENERATOR, FOOTER))


def check_page(path: Path, *, remedy: str) -> None:
    """ValueError where a file is at `path` that is no page of ours, which a page would replace.

    Args:
        path: where a page is to be written.
        remedy: what to do then.
    """
    if path.is_file() and not is_page(path):
        raise ValueError(f"{path} exists and is no page of ipg; {remedy}")


def write_page(path: Path, page: str) -> Path:
    """Write the page to `path` in one go: a reader finds the old page or the new one, never half of it."""
    return write_text(path, page.encode("utf-8", "replace").decode("utf-8"))  # lone surrogates become `?`
