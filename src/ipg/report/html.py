"""Pages from templates: everything a user gave is escaped, and a page is written whole or not at all."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ipg.files import write_text
from ipg.report.figures import SVG

__all__ = ["inline", "rendered", "write_page"]


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


def write_page(path: Path, page: str) -> Path:
    """Write the page to `path` in one go: a reader finds the old page or the new one, never half of it."""
    return write_text(path, page.encode("utf-8", "replace").decode("utf-8"))  # lone surrogates become `?`
