"""The rows that tables are made from, each with where it comes from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipg.experiments.arms import Arm, Row, arms_of
from ipg.experiments.store import TIMES, read_rows
from ipg.experiments.study import STUDIES, Study, load_study

__all__ = [
    "MeasuredStudy", "ProvenanceError", "check_provenance", "measured", "measured_of", "trial_rows", "with_times",
]  # fmt: skip

ORIGIN = ("hardware", "versions", "commit", "date")
"""What a row says of its origin."""

KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("dataset", "method", "protocol", "split", "hardware", "commit", "date"), str),
    **dict.fromkeys(("config", "metrics", "last_metrics", "versions"), dict),
    "seed": int,
    "seconds": (int, float),
}
"""What is in a row, and of which kind."""


class ProvenanceError(ValueError):
    """A row does not say where it comes from, so no table may quote it."""


@dataclass(frozen=True)
class MeasuredStudy:
    """A study and what was measured of it."""

    name: str
    split: str
    arms: Sequence[Arm]
    unknown: Sequence[Row]
    """Rows that no arm asks for."""
    decides: str | None = None

    def of(self, dataset: str) -> list[Arm]:
        """The arms on one data set."""
        return [arm for arm in self.arms if arm.dataset == dataset]


def measured(results: Path, studies: Path = STUDIES) -> list[MeasuredStudy]:
    """Every study that has a file in `studies`, with its rows in `results`."""
    found = [load_study(file) for file in sorted(studies.glob("*.toml"))]
    return [
        with_times(
            measured_of(study, results / study.name / "trials.jsonl"),
            measured_of(study, results / TIMES / study.name / "trials.jsonl"),
        )
        for study in found
    ]


def with_times(study: MeasuredStudy, timed: MeasuredStudy) -> MeasuredStudy:
    """A study whose arms also have the rows of the same study run again for its seconds (`ipg study --timed`)."""
    arms = [replace(arm, timed=again.rows) for arm, again in zip(study.arms, timed.arms, strict=True)]
    return replace(study, arms=arms, unknown=[*study.unknown, *timed.unknown])


def measured_of(study: Study, file: Path) -> MeasuredStudy:
    """A study with its rows in `file`.

    Raises:
        ProvenanceError: a row does not say where it comes from.
        ValueError: a row is no row of a trial.
    """
    rows = trial_rows(file)
    try:
        return MeasuredStudy(study.name, study.metrics_split, *arms_of(study, rows), decides=study.decides)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def trial_rows(file: Path, *, optional: Collection[str] = ()) -> list[Row]:
    """The rows in a `trials.jsonl`, each of which says where it comes from and is as a trial writes it.

    Args:
        file: where they are; none where there is no file.
        optional: what a row may do without.

    Raises:
        ProvenanceError: a row does not say where it comes from.
        ValueError: a row is no row of a trial.
    """
    rows: list[Row] = [*read_rows(file)]
    check_provenance(rows, file)
    for row in rows:
        if wrong := _misshapen(row, optional):
            raise ValueError(
                f"{file}: the row of {row.get('method')}, seed {row.get('seed')}, is damaged ({wrong} is not what a "
                f"trial writes there); take the line out and run the trial again"
            )
    return rows


def check_provenance(rows: Iterable[Row], file: Path) -> None:
    """Refuse rows that lack hardware, versions, commit or date."""
    for row in rows:
        if lacking := [name for name in ORIGIN if not row.get(name)]:
            of = f"{row.get('method')}, seed {row.get('seed')}," if "case" not in row else row["case"]
            raise ProvenanceError(
                f"{file}: the row of {of} does not name its "
                f"{' and '.join(lacking)}, so that no table may quote it; take it out of the file and run the trial "
                "again"
            )


def _misshapen(row: Row, optional: Collection[str]) -> str | None:
    """What is of another kind than a trial writes, or absent and not optional; None where nothing is."""
    for name, kind in KINDS.items():
        if not isinstance(row.get(name), kind) and (name in row or name not in optional):
            return name
    if not isinstance(row.get("key", ""), str):
        return "key"
    for name in ("seconds", "preparing_seconds", "sharing"):
        if not _is_number(row.get(name, 1)):
            return name
    for name in ("others", "first"):
        if not isinstance(row.get(name, True), bool):
            return name
    quoted = dict.fromkeys(("python", "torch")) | row["versions"]
    if not all(isinstance(version, str) for version in quoted.values()):
        return "versions"
    return next((name for name in ("metrics", "last_metrics") if not _are_metrics(row.get(name, {}))), None)


def _are_metrics(metrics: Mapping[str, Any]) -> bool:
    """Whether all values are numbers or missing, those of groups and environments within."""
    plain = {name: value for name, value in metrics.items() if name not in ("groups", "environments")}
    parts = [metrics.get(name) or {} for name in ("groups", "environments")]
    return (
        all(value is None or _is_number(value) for value in plain.values())
        and all(isinstance(part, dict) for part in parts)
        and all(_is_share(group) for part in parts for group in part.values())
    )


def _is_share(group: Any) -> bool:
    if not isinstance(group, dict) or not {"accuracy", "count"} <= group.keys():
        return False
    return _is_number(group["count"]) and (group["accuracy"] is None or _is_number(group["accuracy"]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63 and not math.isnan(value)
