"""All findings on a run, the worst first, and its key numbers.

Each finding is a function of the log that returns None where all is well. They go by the values that a method logs, so
that one about pairs or scales is silent for a method without. docs/doctor.md is the user's table of them.
"""

from __future__ import annotations

from ipg.evaluation.doctor import pairs, training
from ipg.evaluation.doctor.finding import Check, Finding, Severity
from ipg.evaluation.doctor.log import RunLog

__all__ = ["FINDINGS", "diagnose", "key_numbers"]

FINDINGS: tuple[Check, ...] = (
    training.loss_not_finite,
    training.representation_collapsed,
    training.run_begun_again,
    training.learnt_and_lost,
    training.one_class_predicted,
    training.validation_at_chance,
    training.line_misplaced,
    training.task_hardly_learnt,
    training.task_gradient_scaled_to_nothing,
    training.clip_on_most_steps,
    training.floor_on_most_steps,
    pairs.pairs_memorised,
    pairs.disagreement_never_falls,
    pairs.shortcut_in_use,
    pairs.margin_never_met,
    pairs.margin_always_met,
    pairs.margin_far_below_scale,
    pairs.margin_far_above_scale,
    pairs.batch_norm_drifts,
    pairs.held_out_pairs_absent,
)
"""Every finding there is."""


def diagnose(log: RunLog) -> list[Finding]:
    """All that is wrong, the worst first."""
    order: tuple[Severity, ...] = ("error", "warning", "note")
    found = [finding for check in FINDINGS if (finding := check(log)) is not None]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def key_numbers(log: RunLog) -> dict[str, float | None]:
    """The few numbers that say how a run went."""
    last = log.rows[-1] if log.rows else {}
    return {
        "epochs": log.epochs,
        "task_loss": last.get("train", {}).get("task_loss"),
        "validation": log.validation.get("average"),
        "validation_worst_group": log.validation.get("worst_group"),
        "pair_disagreement": last.get("pair_disagreement"),
        "train_pair_disagreement": last.get("train_pair_disagreement"),
    }
