"""Findings on what ended a run, and on the task: whether it is learnt, and what corrections leave of its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ipg.evaluation.doctor.finding import DISAGREES, Finding, falls, longer, percent, shortcut_remedy
from ipg.evaluation.doctor.log import RunLog
from ipg.evaluation.selection import is_refit, pairs
from ipg.evaluation.statistics import at_chance
from ipg.models.explainable import is_explainable
from ipg.models.small import MODELS
from ipg.restarts import rate_after
from ipg.words import are, number_of, times

__all__ = [
    "clip_on_most_steps", "floor_on_most_steps", "learnt_and_lost", "line_misplaced", "loss_not_finite",
    "one_class_predicted", "one_class_remedy", "representation_collapsed", "run_begun_again",
    "task_gradient_scaled_to_nothing", "task_hardly_learnt", "validation_at_chance",
]  # fmt: skip

MOST = 0.5
"""Share of the steps that counts as most."""
TINY_SCALE = 0.01
"""Mean factor on the task gradient below which it has all but vanished."""
LEARNT, HARDLY_LEARNT = 0.5, 0.9
"""Task loss, as a share of what guessing has, below which the training images are learnt, and above which they are not.
A quarter of wrong labels puts a floor of 0.81 under it."""
DIVERGED = 1.5
"""Task loss, as a share of what guessing has, above which steps are too large for a network that learns nothing."""
POOR = 1 / 3
"""Share of the way from guessing to all right below which validation accuracy is poor."""
FEW_STEPS = 100
"""Iterations below which a run is short above all else."""
LOST = 0.25
"""How far the merit of an epoch by `--selection pairs` must lie above that of the last for something to be lost."""
SPLIT, FEW_IMAGES = 0.5, 10
"""Gap in accuracy between groups of one class from which something else than the class decides, and images below which
a group, or a class, says nothing."""
APART = 0.9
"""Area under the ROC curve from which a network tells the classes apart, wherever the line between them lies."""
MOVE_LINE = "Train again with another --output and --decision balanced, which moves the line between the classes"

# -- failures --------------------------------------------------------------------------------------------------------


def loss_not_finite(log: RunLog) -> Finding | None:
    """The loss or a gradient became NaN or infinite."""
    losses = [row.get("train", {}).get("task_loss") for row in log.rows]
    recorded = log.failure is not None and log.failure.get("kind") == "NonFiniteError"
    if not recorded and all(loss is None or math.isfinite(loss) for loss in losses):
        return None
    when = f"by iteration {log.failure.get('step')}" if recorded and log.failure else "in the epochs logged"
    return Finding(
        "loss not finite",
        "error",
        f"The loss or a gradient became NaN or infinite {when}, and nothing can be learnt from there.",
        f"Lower the learning rate (now {log.config.get('learning_rate')}) or {_warm_up(log)}; if that does not help, "
        f"look for NaN in the images.",
    )


def representation_collapsed(log: RunLog) -> Finding | None:
    """All images of the pairs stand on one point."""
    margins, separations, alignments = (log.of_steps(name) for name in ("margin", "separation", "alignment"))
    recorded = log.failure is not None and log.failure.get("kind") == "CollapseError"
    flat = bool(margins and margins[-1] > 0 and log.of_steps("uniformity")[-1] > 0) and (
        max(separations[-1], alignments[-1]) <= 1e-3 * margins[-1]
    )
    if not (recorded or flat):
        return None
    when = f"by iteration {log.failure.get('step')}" if recorded and log.failure else f"by epoch {log.epochs}"
    rate = log.config.get("learning_rate")
    now = f"now {rate}"
    if restarts := (log.failure or {}).get("restarts", 0):
        when += f", also after it had begun again {times(restarts)}"
        now = f"the last attempt had {rate_after(rate, restarts):g}" if isinstance(rate, int | float) else now
    return Finding(
        "representation collapsed",
        "error",
        f"All images of the pairs had fallen onto one point {when}: every gradient is zero there, and the pairs only "
        f"seem to agree.",
        f"Lower the learning rate ({now}), or use pairs that differ in the shortcut alone.",
    )


def run_begun_again(log: RunLog) -> Finding | None:
    """The run collapsed and began again with a lower learning rate."""
    restarts = max((row.get("restarts", 0) for row in log.rows), default=0)
    if not restarts or log.failure is not None:
        return None
    rate = log.config.get("learning_rate")
    now = f", {rate_after(rate, restarts):g} where {rate:g} was asked for" if isinstance(rate, int | float) else ""
    each = "" if restarts == 1 else "each "
    return Finding(
        "run begun again",
        "note",
        f"Training collapsed and began again {times(restarts)}, {each}with half the learning rate{now}. Nothing of the "
        f"attempts before is in the network; the time of all is counted.",
        "To save that time, give the lower --learning-rate from the start; other seeds may collapse as well.",
    )


# -- the task --------------------------------------------------------------------------------------------------------


def learnt_and_lost(log: RunLog) -> Finding | None:
    """The last epoch is kept, and an earlier one was far better on validation images and pairs together."""
    epochs = [row for row in log.rows if not is_refit(row, log.config)]
    kept = not log.unfinished and log.failure is None and log.config.get("selection", "last") == "last"
    if not kept or len(epochs) < len(log.rows):
        return None
    known = [(merit, row) for row in epochs if (merit := _merit(row)) is not None]
    if not known or known[-1][1] is not epochs[-1]:
        return None
    (best, then), (merit, now) = max(known, key=lambda each: each[0]), known[-1]
    if best - merit < LOST:
        return None
    constant = log.validation.get("predicted_classes") == 1
    left = "every image gets the same class" if constant else f"it is {_of_both(now)}"
    return Finding(
        "learnt and lost",
        "error" if constant or _at_chance(log) else "warning",
        f"After epoch {then['epoch']} accuracy on validation images, averaged over classes, was {_of_both(then)}; "
        f"after epoch {now['epoch']}, which is kept, {left}.",
        f"Train again with another --output and keep the best epoch (--selection pairs), or lower the learning rate "
        f"(now {log.config.get('learning_rate')}), or train for fewer epochs.",
    )


def _merit(row: Mapping[str, Any]) -> float | None:
    """By what `--selection pairs` compares epochs; None where that was not measured."""
    measured = (row.get("validation") or {}).get("balanced") is not None and row.get("pair_disagreement") is not None
    return pairs(row)[0] if measured else None


def _of_both(row: Mapping[str, Any]) -> str:
    accuracy, disagreement = percent(row["validation"]["balanced"]), percent(row["pair_disagreement"])
    return f"{accuracy} with {disagreement} of the held-out pairs disagreeing"


def one_class_predicted(log: RunLog) -> Finding | None:
    """Every validation image gets the same class, and neither a collapse nor what was learnt before says why."""
    if log.validation.get("predicted_classes") != 1 or representation_collapsed(log) or learnt_and_lost(log):
        return None
    merit = ", so that pairs agree for no merit" if log.of_epochs("pair_disagreement") or log.guided else ""
    return Finding(
        "one class predicted",
        "error",
        f"Every validation image gets the same class after epoch {log.epochs}{merit}.",
        one_class_remedy(log),
    )


def one_class_remedy(log: RunLog) -> str:
    """What to do about a network that gives every image the same class."""
    if lost := learnt_and_lost(log):
        return lost.remedy
    if smaller := _smaller_steps(log):
        return smaller
    if short := _too_short(log):
        return short
    if _unanswered(log):
        return f"{MOVE_LINE}: the classes are told apart (AUROC {percent(log.validation['auroc'])}); or {longer(log)}."
    alpha = "; raise alpha, too, if the task loss does not fall" if log.guided else ""
    rate = log.config.get("learning_rate")
    return _after_weights(log, f"change the learning rate (now {rate}) or {_warm_up(log)}, and {longer(log)}{alpha}.")


def _warm_up(log: RunLog) -> str:
    """To warm the learning rate up; where a run has done so, for longer."""
    steps = log.config.get("warmup")
    if isinstance(steps, int) and steps > 0:
        return f"warm it up for longer (--warmup {2 * steps}, now {steps})"
    return "warm it up (--warmup 300)"


def _after_weights(log: RunLog, remedy: str) -> str:
    """What to do, as a sentence: first of all about random weights, where they are the likelier cause."""
    weights = _weights_remedy(log)
    return f"{weights}; or {remedy}" if weights else f"{remedy[0].upper()}{remedy[1:]}"


def _weights_remedy(log: RunLog) -> str:
    """What to do first where a network of timm started from random weights; nothing for all others."""
    name = log.config.get("model")
    if not isinstance(name, str) or any(log.config.get(given) is not None for given in ("weights", "start")):
        return ""
    if name in MODELS or is_explainable(name) or name != name.lower():  # made here, or a class of somebody's own
        return ""
    return f"Give {name}, which started from random weights, --weights pretrained or --weights FILE"


def validation_at_chance(log: RunLog) -> Finding | None:
    """Validation accuracy is what guessing would give, and pairs that disagree do not say why."""
    if not _at_chance(log) or _seen_in_pairs(log) or learnt_and_lost(log) or line_misplaced(log):
        return None
    images, chance = sum(group["count"] for groups in log.groups for group in groups), 1 / len(log.groups)
    leans, learnt = _split(log) >= SPLIT, _of_guessing(log) < LEARNT
    why, remedy = "", _chance_remedy(log)
    if leans:
        why = f", since the shortcut is broken there: groups of one class differ by {percent(_split(log))}"
        remedy = shortcut_remedy(log)
    elif learnt:
        why = f", though the training images are learnt (task loss {log.of_steps('task_loss')[-1]:.3g})"
        remedy = "Check that both splits have images and labels of one kind; use more training images or fewer epochs."
    return Finding(
        "validation at chance",
        "warning" if leans else "error",
        f"Accuracy on {images:,} validation images, averaged over classes, is {percent(log.validation['balanced'])}; "
        f"guessing gives {percent(chance)}{why}.",
        remedy,
    )


def _seen_in_pairs(log: RunLog) -> bool:
    """Whether accuracy is at chance for the shortcut, which held-out pairs show: a finding on these says so."""
    held_out = log.of_epochs("pair_disagreement")
    if not held_out or held_out[-1] < DISAGREES:
        return False
    return held_out[-1] > MOST or _split(log) >= SPLIT or _of_guessing(log) < LEARNT


def _at_chance(log: RunLog) -> bool:
    """Whether validation accuracy is what guessing gives, within two standard errors."""
    balanced, images = log.validation.get("balanced"), sum(group["count"] for found in log.groups for group in found)
    if balanced is None or not images or log.validation.get("predicted_classes") == 1:
        return False
    return at_chance(balanced, len(log.groups), images)


def _too_short(log: RunLog) -> str:
    """What to do first about a run of so few iterations that a warm-up would fill it; nothing of others."""
    steps = log.rows[-1].get("step") if log.rows else None
    if steps is None or steps >= FEW_STEPS:
        return ""
    batch, rate = log.config.get("batch"), log.config.get("learning_rate")
    smaller = f", use a smaller --batch (now {batch})" if batch != 1 else ""
    few = f"{number_of(steps, 'iteration')} {are(steps)} few"
    return _after_weights(log, f"{few}: {longer(log)}{smaller}, or change the learning rate (now {rate}).")


def _chance_remedy(log: RunLog) -> str:
    """What to do about a task that is not learnt at all."""
    if smaller := _smaller_steps(log):
        return smaller
    if short := _too_short(log):
        return short
    alpha = "; if --method erm learns the task and this run does not, raise alpha" if log.guided else ""
    return _after_weights(log, f"use another learning rate, or {longer(log)}; check labels and images{alpha}.")


def _smaller_steps(log: RunLog) -> str:
    """What to do about a loss far above that of guessing, which steps that are too large leave; nothing of others."""
    if not _of_guessing(log) > DIVERGED:
        return ""
    loss, rate = log.of_steps("task_loss")[-1], log.config.get("learning_rate")
    high = f"the task loss is {loss:.3g}, where guessing has {math.log(len(log.groups)):.3g}"
    return _after_weights(log, f"lower the learning rate (now {rate}) or {_warm_up(log)}: {high}.")


def _split(log: RunLog) -> float:
    """The largest gap in accuracy between groups of one class."""
    found = [[group["accuracy"] for group in groups if group["count"] >= FEW_IMAGES] for groups in log.groups]
    return max((max(shares) - min(shares) for shares in found if shares), default=0.0)


def _of_guessing(log: RunLog) -> float:
    """The last task loss as a share of the one that guessing has, ln K; NaN where either is not known."""
    losses, classes = log.of_steps("task_loss"), len(log.groups)
    return losses[-1] / math.log(classes) if losses and classes > 1 else math.nan


def line_misplaced(log: RunLog) -> Finding | None:
    """The classes are told apart, and yet one of them is right less often than guessing would have it."""
    if log.validation.get("predicted_classes") == 1 or learnt_and_lost(log) or (worst := _unanswered(log)) is None:
        return None
    share, count = worst
    return Finding(
        "line misplaced",
        "warning",
        f"The network tells the classes apart (AUROC {percent(log.validation['auroc'])} on validation images), and yet "
        f"of the {count:,} images of one class only {percent(share)} are right, where guessing gives "
        f"{percent(1 / len(log.groups))}: it answers the others too often.",
        f"{MOVE_LINE}, or {longer(log)}.",
    )


def _unanswered(log: RunLog) -> tuple[float, int] | None:
    """Accuracy and number of the images of the worst class, where it is below chance though classes are told apart."""
    area = log.validation.get("auroc")
    if area is None or area < APART or log.config.get("decision", "argmax") != "argmax":
        return None
    counts = [sum(group["count"] for group in groups) for groups in log.groups]
    rights = [sum(group["count"] * (group["accuracy"] or 0) for group in groups) for groups in log.groups]
    known = [(right / count, count) for right, count in zip(rights, counts, strict=True) if count >= FEW_IMAGES]
    share, count = min(known, default=(1.0, 0))
    below = bool(count) and share < 1 / len(counts) and not at_chance(share, len(counts), count)
    return (share, count) if below else None


def task_hardly_learnt(log: RunLog) -> Finding | None:
    """After its last epoch the task loss is near that of guessing, and validation accuracy is poor."""
    balanced, share = log.validation.get("balanced"), _of_guessing(log)
    if balanced is None or not share > HARDLY_LEARNT or log.epochs < max(log.config.get("epochs", 0), 2):
        return None
    chance = 1 / len(log.groups)
    if balanced >= chance + POOR * (1 - chance) or log.validation.get("predicted_classes") == 1:
        return None
    if any(check(log) for check in (validation_at_chance, learnt_and_lost, line_misplaced)):
        return None
    if task_gradient_scaled_to_nothing(log):
        return None
    held_out = log.of_epochs("pair_disagreement")
    agree = not held_out or held_out[-1] < DISAGREES  # where they do not, alpha had better be lowered
    alpha = f"raise alpha (now {log.config.get('alpha')}), " if log.guided and agree else ""
    higher = f"use a higher learning rate (now {log.config.get('learning_rate')}), {alpha}or {longer(log)}."
    return Finding(
        "task hardly learnt",
        "warning",
        f"The task loss is {log.of_steps('task_loss')[-1]:.3f} after {log.epochs} epochs, guessing has "
        f"{math.log(len(log.groups)):.3f}, and validation accuracy, averaged over classes, is {percent(balanced)}.",
        _smaller_steps(log) or _after_weights(log, higher),
    )


def task_gradient_scaled_to_nothing(log: RunLog) -> Finding | None:
    """The condition leaves nothing of the task gradient, and the task is not learnt."""
    scales, losses = log.of_steps("scale"), log.of_steps("task_loss")
    if len(scales) < 2 or _mean(scales) > TINY_SCALE or falls(losses):
        return None
    return Finding(
        "task gradient scaled to nothing",
        "error",
        f"The task gradient was scaled by {_mean(scales):.1e} on average, and the task loss went from {losses[0]:.3g} "
        f"to {losses[-1]:.3g} in {len(losses)} epochs.",
        f"Raise alpha (now {log.config.get('alpha')}) or tau (now {log.config.get('tau')}), or use --optimizer adam, "
        f"which does not mind short gradients.",
    )


def clip_on_most_steps(log: RunLog) -> Finding | None:
    """The task gradient is cut to twice the correction on most steps."""
    clipped, floored = log.of_steps("clipped"), log.of_steps("floored")
    if not clipped or _mean(clipped) <= MOST or _mean(floored) > MOST:
        return None
    return Finding(
        "clip on most steps",
        "note" if falls(log.of_steps("task_loss")) else "warning",
        f"The condition was met, yet on {percent(_mean(clipped))} of the steps the task gradient was cut to twice the "
        f"correction's length, so that corrections set the pace of the task.",
        "Lower tau so that alpha sets the length, or accept it if the task loss falls; a larger margin makes "
        "corrections longer.",
    )


def floor_on_most_steps(log: RunLog) -> Finding | None:
    """The task gradient is cut to the floor on most steps."""
    floored = log.of_steps("floored")
    if not floored or _mean(floored) <= MOST:
        return None
    return Finding(
        "floor on most steps",
        "note" if falls(log.of_steps("task_loss")) else "warning",
        f"On {percent(_mean(floored))} of the steps the correction was shorter than the floor, and the task gradient "
        f"was cut to twice the floor ({log.config.get('floor')}).",
        f"Raise --floor if the task loss does not fall; or lower tau (now {log.config.get('tau')}), or use a larger "
        f"margin so that corrections have something to do.",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
