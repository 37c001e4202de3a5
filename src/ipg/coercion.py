"""Values of settings from TOML files and flags, brought to the types of their fields. Cheap to import: no torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from typing import Any, Literal, get_args, get_origin

__all__ = ["coerce"]


def coerce(value: Any, kind: Any) -> Any:
    """`value` as `kind`, from TOML or a flag; ValueError where it is something else."""
    if (options := get_args(kind)) and type(None) in options:
        return None if value is None else coerce(value, options[0])
    if words := [word for option in options if get_origin(option) is Literal for word in get_args(option)]:
        return _value_or_word(value, words, options[0])
    if set(options) == {int, str}:
        return _count_or_path(value)
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise ValueError("expected true or false")
        return value
    if kind is int:
        number = _number(value, "a whole number")
        if number != number // 1:
            raise ValueError("expected a whole number")
        return int(number)
    if kind is float:
        number = _number(value, "a number")
        if abs(number) > sys.float_info.max and number not in (math.inf, -math.inf):
            raise ValueError("expected a number of reasonable size")
        return float(number)
    if kind is str:
        if not isinstance(value, str | int | float | PathLike) or isinstance(value, bool):
            raise ValueError("expected text")
        return str(value).strip()
    if not isinstance(value, Mapping):
        raise ValueError("expected a table of names and values")
    return dict(value)


def _count_or_path(value: Any) -> int | str:
    """A whole number where it is one, else a path."""
    with suppress(ValueError):
        return int(coerce(value, int))
    path = value.strip() if isinstance(value, str) else ""
    if not path or path.replace(".", "").replace("-", "").isdigit():
        raise ValueError("expected a whole number, or a file")
    return path


def _value_or_word(value: Any, words: list[str], kind: type[int] | type[float] | type[bool]) -> int | float | str:
    """A value of that kind, or one of `words`."""
    if isinstance(value, str) and value.strip() in words:
        return value.strip()
    try:
        return kind(coerce(value, kind))
    except ValueError as error:
        raise ValueError(f"{error}, or {' or '.join(words)}") from None


def _number(value: Any, expected: str) -> int | float:
    """`value` as a number; whole ones keep all their digits."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        for kind in (int, float):
            with suppress(ValueError):
                return kind(value)
    raise ValueError(f"expected {expected}")
