"""Small things that sentences are made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["are", "bytes_in_words", "did_you_mean", "listed", "number_of", "ranges", "times"]

NEAR = 0.55
"""How much of a name has to be there for another to be meant: less than difflib asks for, for names of few letters."""


def number_of(number: int, what: str) -> str:
    """So many of something: `1 run`, `2 runs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """How often: `once`, `2 times`."""
    return "once" if number == 1 else f"{number:,} times"


def bytes_in_words(number: float) -> str:
    """A size: `340 bytes`, `12 kB`, `8.6 MB`, `1.8 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.0f} {unit}" if number >= 10 * size else f"{number / size:.1f} {unit}"
    return number_of(int(number), "byte")


def are(number: int) -> str:
    """`is` or `are`, for so many."""
    return "is" if number == 1 else "are"


def listed(names: Iterable[object], last: str = " and ") -> str:
    """`a`, `a and b`, `a, b and c`; nothing of none."""
    words = [str(name) for name in names]
    return f"{', '.join(words[:-1])}{last}{words[-1]}" if len(words) > 1 else "".join(words)


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in order, what follows one another in few words: `3`, `0 and 1`, `0, 2 and 5 to 9`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return listed(part for span in spans for part in (span if len(span) < 3 else [f"{span[0]} to {span[-1]}"]))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME?` of the nearest name there is, whatever its case; nothing where none is near."""
    plain = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(plain), n=1, cutoff=NEAR)
    return f"did you mean {plain[near[0]]}?" if near else ""
