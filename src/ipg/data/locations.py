"""Where data sets are looked for and where decoded images are kept."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from ipg.data.errors import MissingError

__all__ = ["cache_folder", "data_folder", "locate"]

_HOME = "~/.cache/ipg"


def cache_folder() -> Path:
    """Where decoded images and compiled kernels are kept: the environment variable `IPG_CACHE`, else `~/.cache/ipg`."""
    return Path(os.environ.get("IPG_CACHE") or _HOME).expanduser()


def data_folder() -> Path:
    """The folder that holds data sets by their names: the environment variable `IPG_DATA`, else `~/.cache/ipg`."""
    return Path(os.environ.get("IPG_DATA") or _HOME).expanduser()


def locate(name: str, path: str | PathLike[str] | None, remedy: str) -> Path:
    """The place of data set `name`: `path` where it is given, else a folder or zip of that name in `data_folder()`.

    Raises:
        MissingError: nothing is there; the message ends with `remedy`.
    """
    if path is not None:
        places = [Path(path).expanduser()]
    else:
        names = dict.fromkeys([name, name.replace("_", "-")])
        places = [data_folder() / (stem + suffix) for stem in names for suffix in ("", ".zip")]
    for place in places:
        if place.exists():
            return place
    hint = "" if path is not None else ". Say where it is with --data-path, or set IPG_DATA to the folder that holds it"
    raise MissingError(f"there is no {name} at {places[0]}{hint}; {remedy}")
