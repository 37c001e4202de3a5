"""A network that the user's own code makes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

__all__ = ["from_python"]


def from_python(text: str, normalization: str | None) -> nn.Module:
    """`package.module:function` or `file.py:function`: what the function returns, for images in [0, 1]."""
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ValueError(
            f"python:{text} names no function; expected python:package.module:function, or file.py:function"
        )
    if normalization is not None:
        raise ValueError(
            f"python:{text} is given images in [0, 1]; normalise them in your model, not with normalization="
        )
    module = _imported(where)
    if not hasattr(module, name):
        raise ValueError(f"{where} has no {name!r}; name the function in it that returns the network")
    made = getattr(module, name)
    if not isinstance(made, nn.Module):
        made = _function(made, text)()
    if not isinstance(made, nn.Module):
        raise ValueError(f"python:{text} returned a {type(made).__name__}; expected an nn.Module")
    return made


def _function(made: Any, text: str) -> Callable[[], Any]:
    """What is called for the network; ValueError where it cannot be called as it is."""
    if not callable(made):
        raise ValueError(f"python:{text} is of type {type(made).__name__}; name a function that returns the network")
    try:
        needed = [
            parameter.name
            for parameter in signature(made).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []  # of code that is not Python nothing is known
    if needed:
        raise ValueError(
            f"python:{text} needs {', '.join(needed)}, and is called without arguments; name a function that needs none"
        )
    return cast("Callable[[], Any]", made)


def _imported(where: str) -> ModuleType:
    """A module by its dotted name, in the current folder too, or by its file."""
    if where.endswith(".py") and not Path(where).is_file():
        raise ValueError(f"python:{where} cannot be imported: there is no file {where}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        if not where.endswith(".py"):
            return import_module(where)
        spec = spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None:
            raise ImportError("it is no Python file")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (ImportError, FileNotFoundError) as error:
        raise ValueError(f"python:{where} cannot be imported: {error}") from None
    finally:
        sys.path.remove(here)
