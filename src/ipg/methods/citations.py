"""Where a method comes from, read in the docstring of its file: there, and nowhere else, stands its citation."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipg.methods.base import Method

__all__ = ["citation"]

_NAME = r"(?:[Vv]an |[Dd]e )?[A-Z][\w'’-]+"
_CITATION = rf'{_NAME}(?:(?:,| and) {_NAME})*(?: et al\.)?, "[^"]+"(?: \([^)]*\))?, [^.;:()"]*?\d{{4}}'
"""`Authors, "Title", venue year`."""


def citation(method: type[Method]) -> str | None:
    """The paper of a method: authors, title, venue and year; None where its docstring names none.

    A paragraph that begins with a citation, or with "After" one, wins over those that mention one. An ablation that
    names no paper is of that of the method it is made from.
    """
    for kind in method.__mro__:
        paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(_text(kind)).split("\n\n")]
        for pattern in (f"^(?:After )?({_CITATION})", f"({_CITATION})"):
            for part in paragraphs:
                if found := re.search(pattern, part):
                    return found[1]
    return None


def _text(kind: type) -> str:
    return sys.modules[kind.__module__].__doc__ or ""
