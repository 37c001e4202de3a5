"""Which epoch to keep: rules over the rows of `metrics.jsonl`, none of which reads the test split.

Every rule maximises a key; ties go to the higher mean of groups (where the rule may see groups) and then to the
earlier epoch. A key of None (nothing to measure) loses against every number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["SELECTIONS", "Row", "last", "pairs", "select", "training_environments", "worst_group"]

Row = Mapping[str, Any]


def last(row: Row) -> tuple[float | None, ...]:
    """The last epoch."""
    return (float(row["epoch"]),)


def training_environments(row: Row) -> tuple[float | None, ...]:
    """Best mean validation accuracy over the training environments: the paper's rule for ColoredMNIST.

    It rewards use of the colour, which helps in those environments.
    """
    accuracies = [environment["accuracy"] for environment in row["validation"]["environments"].values()]
    return (sum(accuracies) / len(accuracies) if accuracies else None,)


def worst_group(row: Row) -> tuple[float | None, ...]:
    """Best worst-group validation accuracy: the paper's rule for Waterbirds-100 and CelebA; needs group labels."""
    return row["validation"]["worst_group"], row["validation"]["group_mean"]


def pairs(row: Row) -> tuple[float | None, ...]:
    """Balanced validation accuracy times the share of held-out pairs that agree: needs no group label.

    The product is the chance that a validation image is classified rightly and would be again with the other
    attribute, were the two independent. A collapsed model agrees on every pair and has the accuracy of chance.
    """
    accuracy, disagreement = row["validation"]["balanced"], row["pair_disagreement"]
    return (None if accuracy is None or disagreement is None else accuracy * (1 - disagreement),)


SELECTIONS: dict[str, Callable[[Row], tuple[float | None, ...]]] = {
    "last": last,
    "training_environments": training_environments,
    "worst_group": worst_group,
    "pairs": pairs,
}


def select(rule: str, rows: Sequence[Row]) -> int:
    """Position in `rows` of the epoch that `rule` keeps."""
    if rule not in SELECTIONS:
        raise ValueError(f"there is no selection rule {rule!r}; there are {', '.join(SELECTIONS)}")
    if not rows:
        raise ValueError("there is no epoch to select from")
    keys = [tuple(-1.0 if part is None else part for part in SELECTIONS[rule](row)) for row in rows]
    return max(range(len(rows)), key=lambda position: (keys[position], -position))
