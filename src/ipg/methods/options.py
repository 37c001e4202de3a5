"""The options of a method's own: a frozen dataclass, its fields checked and brought to their types.

A field is a choice between words (`Literal`), text, a number, or yes and no. A number's range stands in its metadata:

    weight: float = option(1.0, least=0)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ipg.words import did_you_mean

if TYPE_CHECKING:
    from ipg.methods.base import Method

__all__ = ["option", "option_defaults", "parse_options"]


def option(default: float, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf) -> Any:
    """A number with its default and its range: at least `least`, more than `above`, at most `most`."""
    return dataclasses.field(default=default, metadata={"least": least, "above": above, "most": most})


def parse_options(method: type[Method], given: Mapping[str, Any]) -> Any:
    """The method's `Options` from names and values; unknown names and impossible values are all named at once."""
    types = get_type_hints(method.Options)
    ranges = {field.name: field.metadata for field in dataclasses.fields(method.Options)}
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in types:
            known = did_you_mean(name, types) or f"it has {', '.join(types) or 'none'}"
            problems.append(f"method {method.name!r} has no option {name!r}; {known}")
            continue
        try:
            values[name] = _coerce(value, types[name], ranges[name])
        except ValueError as error:
            problems.append(f"option {name}={value!r}: expected {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return method.Options(**values)


def option_defaults(method: type[Method]) -> dict[str, Any]:
    """The method's own options with their defaults, for result rows and help."""
    return {field.name: field.default for field in dataclasses.fields(method.Options)}


def _coerce(value: Any, kind: Any, limits: Mapping[str, float]) -> Any:
    """`value` as `kind`; a ValueError says what was expected."""
    if choices := get_args(kind):
        if value not in choices:
            raise ValueError(f"one of {', '.join(map(str, choices))}")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise ValueError("text")
        return value.strip()
    if kind is bool:
        told = {"true": True, "false": False}.get(str(value).lower())
        if told is None:
            raise ValueError("true or false")
        return told
    what = "a whole number" if kind is int else "a number"
    words = {"least": "at least", "above": "above", "most": "at most"}
    bounds = [f"{words[name]} {limit:g}" for name, limit in limits.items() if math.isfinite(limit)]
    expected = ", ".join([what, *bounds])
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(expected) from None
    low, above, high = (
        limits.get(name, end) for name, end in (("least", -math.inf), ("above", -math.inf), ("most", math.inf))
    )
    whole = kind is not int or number == number // 1
    if isinstance(value, bool) or not (math.isfinite(number) and whole and low <= number <= high and number > above):
        raise ValueError(expected)
    return kind(number)
