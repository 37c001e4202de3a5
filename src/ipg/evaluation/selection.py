"""Which epoch to keep: rules over the rows of `metrics.jsonl`, none of which reads the test split.

Every rule maximises a key; ties go to the higher mean of groups (where the rule may see groups) and then to the
earlier epoch. A key of None (nothing to measure) loses against every number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "SELECTIONS", "Row", "is_refit", "kept_epoch", "last", "pairs", "select", "training_environments", "worst_group",
]  # fmt: skip

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


# -- a network that is fitted anew after the last epoch --------------------------------------------------------------


def is_refit(row: Row, config: Mapping[str, Any]) -> bool:
    """Whether a row is no epoch: it tells of the kept network, fitted anew when training was over."""
    if "refitted" in row:
        return True
    epoch, epochs = row.get("epoch"), config.get("epochs")  # of a run from before rows said so
    return isinstance(epoch, int) and isinstance(epochs, int) and epoch > epochs


def kept_epoch(result: Mapping[str, Any]) -> tuple[int | None, bool]:
    """The epoch whose network a run has kept, by its `result.json`, and whether that was fitted anew afterwards.

    The epoch is None where the result does not tell.
    """
    selected = result.get("selected_epoch")
    if not isinstance(selected, int):
        return None, False
    if "refitted_epoch" in result:
        return result["refitted_epoch"], True
    return (None, True) if is_refit({"epoch": selected}, result.get("config") or {}) else (selected, False)
