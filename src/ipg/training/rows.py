"""What readers of a run count on: in the rows of `metrics.jsonl`, in its result, and in what a failed run has to say.

Who reads them back may meet a file that a hand, a disk or another program has altered. What a row leaves out is not
missed, but for `epoch`, `step` and `train`; what it has must be of the kind that a run writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["wrong_in_failure", "wrong_in_result", "wrong_in_rows"]

Kind = tuple[Callable[[Any], bool], str]
"""Whether a value is of it, and what to call it."""
LONGEST = 60
"""Characters of a wrong value that are shown."""


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _is_number(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**1023
    return isinstance(value, float)


def _is_share(value: Any) -> bool:
    """Whether it lies between 0 and 1, but for how sums are rounded; NaN is what a network of NaN is worth."""
    return _is_number(value) and not (value < 0 or value > 1 + 1e-6)


def _or_null(kind: Kind) -> Kind:
    test, name = kind
    return lambda value: value is None or test(value), f"{name}, or null"


OBJECT: Kind = (lambda value: isinstance(value, dict), "an object")
TEXT: Kind = (lambda value: isinstance(value, str), "a text")
COUNT: Kind = (_is_whole, "a whole number, at least 0")
EPOCH: Kind = (lambda value: _is_whole(value, 1), "a whole number, at least 1")
NUMBER: Kind = _or_null((_is_number, "a number"))
SHARE: Kind = _or_null((_is_share, "a number from 0 to 1"))

ROW: Mapping[str, Kind] = {
    "epoch": EPOCH,
    "refitted": EPOCH,
    "restarts": COUNT,
    "step": COUNT,
    "seconds": NUMBER,
    "learning_rate": NUMBER,
    "train": OBJECT,
    "validation": _or_null(OBJECT),
    "test": _or_null(OBJECT),
    "pair_disagreement": SHARE,
    "train_pair_disagreement": SHARE,
    "batch_norm_gap": NUMBER,
}
NEEDED = ("epoch", "step", "train")
SPLIT: Mapping[str, Kind] = {
    **dict.fromkeys(("average", "average_reweighted", "group_mean", "worst_group", "balanced"), SHARE),
    **dict.fromkeys(("auroc", "calibration_error"), SHARE),
    "predicted_classes": _or_null(COUNT),
    "groups": _or_null(OBJECT),
    "environments": _or_null(OBJECT),
    "pair_disagreement": SHARE,
}
"""Of images of a split, in a row or in the result."""
PART: Mapping[str, Kind] = {"accuracy": SHARE, "count": COUNT}
RESULT: Mapping[str, Kind] = {
    "config": OBJECT,
    "selection": _or_null(TEXT),
    **dict.fromkeys(("selected_epoch", "refitted_epoch"), _or_null(EPOCH)),
    **dict.fromkeys(("metrics", "last_metrics"), _or_null(OBJECT)),
    **dict.fromkeys(("seconds", "preparing_seconds"), NUMBER),
    "restarted": COUNT,
    "versions": OBJECT,
    **dict.fromkeys(("hardware", "commit", "date"), _or_null(TEXT)),
}
FAILURE: Mapping[str, Kind] = {"kind": TEXT, "message": TEXT, "step": COUNT, "restarts": COUNT}


def wrong_in_rows(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the first row that no run writes: `row 2: train is "x"; expected an object`."""
    for number, row in enumerate(rows, start=1):
        if (found := next(_of_row(row), None)) is not None:
            return f"row {number}: {found}"
    return None


def wrong_in_result(result: Mapping[str, Any]) -> str | None:
    """The same of what a `result.json` says."""
    return next(_of_result(result), None)


def wrong_in_failure(said: Mapping[str, Any]) -> str | None:
    """The same of what a `failure.json` says."""
    return next(_of(said, FAILURE, needed=("kind", "step")), None)


def _of_row(row: Mapping[str, Any]) -> Iterator[str]:
    yield from _of(row, ROW, needed=NEEDED)
    yield from _of(row["train"], dict.fromkeys(row["train"], NUMBER), inside="train")
    for split in ("validation", "test"):
        yield from _of_split(row.get(split) or {}, split)


def _of_result(result: Mapping[str, Any]) -> Iterator[str]:
    yield from _of(result, RESULT, needed=("config", "metrics", "versions", "hardware", "commit", "date"))
    for name in ("metrics", "last_metrics"):
        yield from _of_split(result.get(name) or {}, name)


def _of_split(found: Mapping[str, Any], inside: str) -> Iterator[str]:
    yield from _of(found, SPLIT, inside=inside)
    for parts in ("groups", "environments"):
        named = found.get(parts) or {}
        yield from _of(named, dict.fromkeys(named, OBJECT), inside=f"{inside}, {parts}")
        for name, part in named.items():
            yield from _of(part, PART, inside=f"{inside}, {parts}, {name}", needed=tuple(PART))


def _of(
    values: Mapping[str, Any], kinds: Mapping[str, Kind], *, inside: str = "", needed: Sequence[str] = ()
) -> Iterator[str]:
    """What `values` lack, or have of a wrong kind."""
    where = f"{inside}, " if inside else ""
    yield from (f"it has no {where}{name}" for name in needed if name not in values)
    for name, (test, expected) in kinds.items():
        if name in values and not test(values[name]):
            yield f"{where}{name} is {_shown(values[name])}; expected {expected}"


def _shown(value: object) -> str:
    """A value as JSON has it, shortened."""
    import json

    if isinstance(value, int) and abs(value) >= 10**LONGEST:
        return f"a number of {math.floor(math.log10(abs(value))) + 1} digits"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"
