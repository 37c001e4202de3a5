"""What went wrong in a run, and what to do about it, from its log alone.

Each finding is a function of the log that returns None where all is well; `FINDINGS` holds them all. They go by the
values that a method logs, so that one about pairs or scales is silent for a method without. docs/doctor.md is the
user's table of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ipg.evaluation.selection import is_refit
from ipg.restarts import rate_after
from ipg.words import times

__all__ = ["FINDINGS", "Finding", "RunLog", "diagnose", "key_numbers", "one_class_remedy", "run_begun_again"]

AGREES, DISAGREES = 0.02, 0.10
"""Shares of disagreeing pairs that count as (nearly) none and as many."""
MOST = 0.5
"""Share of the steps that counts as most."""
TINY_SCALE = 0.01
"""Mean factor on the task gradient below which it has all but vanished."""
FALLS = 0.05
"""Share by which a value must fall to have fallen."""
FAR_BELOW, FAR_ABOVE = 30.0, 0.2
"""Distance between labels, in margins, above which the margin does nothing, and below which it does everything."""
FAR_STATISTICS = 1.0
"""Gap between pair and task batches, in standard deviations, from which they are unlike."""

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    name: str
    severity: Severity
    meaning: str
    """One sentence, with the numbers."""
    remedy: str
    """One sentence."""


@dataclass(frozen=True)
class RunLog:
    """What a run has left: settings, a row an epoch, and how it failed if it did."""

    config: Mapping[str, Any]
    """The flat configuration."""
    rows: Sequence[Mapping[str, Any]] = ()
    """As in `metrics.jsonl`; none in a run that never ended an epoch."""
    failure: Mapping[str, Any] | None = field(default=None)
    """As in `failure.json`."""

    def of_steps(self, name: str) -> list[float]:
        """The means by epoch of a value that steps log; empty where the method does not log it."""
        found = [row.get("train", {}).get(name) for row in self.rows]
        return [value for value in found if value is not None and math.isfinite(value)]

    def of_epochs(self, name: str) -> list[float]:
        """A value of each epoch's end; empty where it was not measured."""
        return [value for row in self.rows if (value := row.get(name)) is not None]

    @property
    def epochs(self) -> int:
        """How many epochs have ended; a refit after the last is none."""
        return sum(not is_refit(row, self.config) for row in self.rows)

    @property
    def guided(self) -> bool:
        """Whether the method was guided by pairs, as far as the log tells."""
        return bool(self.of_steps("disagreement"))

    @property
    def validation(self) -> Mapping[str, Any]:
        """The metrics of the last epoch on validation images."""
        found: Mapping[str, Any] = (self.rows[-1].get("validation") or {}) if self.rows else {}
        return found


Check = Callable[[RunLog], Finding | None]


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
        f"Lower the learning rate ({log.config.get('learning_rate')}) or warm it up with --warmup; if that does not "
        f"help, look for NaN in the images.",
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
    if restarts := (log.failure or {}).get("restarts", 0):
        when += f", also after it had begun again {times(restarts)}"
        rate = f"the last attempt had {rate_after(rate, restarts):g}" if isinstance(rate, int | float) else rate
    return Finding(
        "representation collapsed",
        "error",
        f"All images of the pairs had fallen onto one point {when}: every gradient is zero there, and the pairs only "
        f"seem to agree.",
        f"Warm the learning rate up (--warmup 300), lower it ({rate}), use a larger margin "
        f"({log.config.get('margin')}), or pairs that differ in the shortcut alone.",
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
        "To save that time, give the lower --learning-rate from the start, or warm it up with --warmup 300; other "
        "seeds may collapse as well.",
    )


# -- the task --------------------------------------------------------------------------------------------------------


def one_class_predicted(log: RunLog) -> Finding | None:
    """Every validation image gets the same class."""
    if log.validation.get("predicted_classes") != 1:
        return None
    return Finding(
        "one class predicted",
        "error",
        f"Every validation image gets the same class after epoch {log.epochs}, so that pairs agree for no merit.",
        one_class_remedy(log),
    )


def one_class_remedy(log: RunLog) -> str:
    """What to do about a network that gives every image the same class."""
    return (
        f"Warm the learning rate up or change it ({log.config.get('learning_rate')}), and {_longer(log)}; in a "
        f"guided run raise alpha, too, if the task loss does not fall."
    )


def validation_at_chance(log: RunLog) -> Finding | None:
    """Validation accuracy is what guessing would give."""
    groups: Mapping[str, Mapping[str, Any]] = log.validation.get("groups") or {}
    balanced, images = log.validation.get("balanced"), sum(group["count"] for group in groups.values())
    if balanced is None or not images or log.validation.get("predicted_classes") == 1:
        return None
    chance = 1 / len({name.rsplit(", ", 1)[0] for name in groups})  # a group is a class and an attribute
    noise = 2 * math.sqrt(chance * (1 - chance) / images)
    if abs(balanced - chance) > noise:
        return None
    return Finding(
        "validation at chance",
        "error",
        f"Accuracy on {images:,} validation images, averaged over classes, is {_percent(balanced)}; guessing gives "
        f"{_percent(chance)}.",
        f"Use another learning rate, or {_longer(log)}; check labels and images; if --method erm learns the task and "
        f"this run does not, raise alpha.",
    )


def task_gradient_scaled_to_nothing(log: RunLog) -> Finding | None:
    """The condition leaves nothing of the task gradient, and the task is not learnt."""
    scales, losses = log.of_steps("scale"), log.of_steps("task_loss")
    if len(scales) < 2 or _mean(scales) > TINY_SCALE or _falls(losses):
        return None
    return Finding(
        "task gradient scaled to nothing",
        "error",
        f"The task gradient was scaled by {_mean(scales):.1e} on average, and the task loss went from {losses[0]:.3g} "
        f"to {losses[-1]:.3g} in {len(losses)} epochs.",
        f"Raise alpha ({log.config.get('alpha')}) or tau ({log.config.get('tau')}), or use --optimizer adam, which "
        f"does not mind short gradients.",
    )


def clip_on_most_steps(log: RunLog) -> Finding | None:
    """The task gradient is cut to twice the correction on most steps."""
    clipped, floored = log.of_steps("clipped"), log.of_steps("floored")
    if not clipped or _mean(clipped) <= MOST or _mean(floored) > MOST:
        return None
    return Finding(
        "clip on most steps",
        "note" if _falls(log.of_steps("task_loss")) else "warning",
        f"The condition was met, yet on {_percent(_mean(clipped))} of the steps the task gradient was cut to twice the "
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
        "note" if _falls(log.of_steps("task_loss")) else "warning",
        f"On {_percent(_mean(floored))} of the steps the correction was shorter than the floor, and the task gradient "
        f"was cut to twice the floor ({log.config.get('floor')}).",
        f"Raise --floor if the task loss does not fall; or lower tau ({log.config.get('tau')}), or use a larger margin "
        f"so that corrections have something to do.",
    )


# -- the pairs -------------------------------------------------------------------------------------------------------


def pairs_memorised(log: RunLog) -> Finding | None:
    """Training pairs agree and held-out pairs do not."""
    trained, held_out = log.of_epochs("train_pair_disagreement"), log.of_epochs("pair_disagreement")
    if not trained or not held_out or trained[-1] > AGREES or held_out[-1] < DISAGREES:
        return None
    return Finding(
        "pairs memorised",
        "warning",
        f"{_percent(trained[-1])} of the training pairs disagree but {_percent(held_out[-1])} of the held-out ones: "
        f"the pairs were learnt by heart, not what they have in common.",
        f"Use more and more varied pairs (--pairs, now {log.config.get('pairs')}), fewer epochs, or keep the best "
        f"epoch with --selection pairs.",
    )


def disagreement_never_falls(log: RunLog) -> Finding | None:
    """The training pairs disagree as much at the end as in the first epoch."""
    first, ends = log.of_steps("disagreement"), log.of_epochs("train_pair_disagreement")
    if len(log.rows) < 2 or not first or not ends or min(ends) < DISAGREES or min(ends) < (1 - FALLS) * first[0]:
        return None
    return Finding(
        "disagreement never falls",
        "warning",
        f"{_percent(first[0])} of the training pairs disagreed in the first epoch and {_percent(ends[-1])} after the "
        f"last: the corrections do not get through.",
        f"Correct more often (--every 1, now {_pace(log)}), lower alpha ({log.config.get('alpha')}), "
        f"check that the members of a pair differ in the shortcut alone, or {_longer(log)}.",
    )


def shortcut_in_use(log: RunLog) -> Finding | None:
    """Held-out pairs disagree, and no other finding says why."""
    held_out = log.of_epochs("pair_disagreement")
    if not held_out or held_out[-1] < DISAGREES or pairs_memorised(log) or disagreement_never_falls(log):
        return None
    remedy = (
        f"Use more pairs, correct more often (--every 1), lower alpha, or {_longer(log)}."
        if log.guided
        else "Train with --method ipg, which pairs guide."
    )
    return Finding(
        "shortcut in use",
        "warning",
        f"{_percent(held_out[-1])} of the held-out pairs disagree: the network leans on what their members differ in.",
        remedy,
    )


def held_out_pairs_absent(log: RunLog) -> Finding | None:
    """Nothing measures the shortcut."""
    if not log.rows or log.of_epochs("pair_disagreement"):
        return None
    return Finding(
        "held-out pairs absent",
        "note",
        "There are no held-out pairs, so that nothing can be said about the shortcut; agreement of the training pairs "
        "may be learnt by heart.",
        _more_held_out(log),
    )


def _more_held_out(log: RunLog) -> str:
    """How to get held-out pairs."""
    build = "`ipg pairs build … --split validation`"
    pairs, wanted = log.config.get("pairs"), log.config.get("held_out_pairs")
    if wanted == 0:
        return "Train with --held-out-pairs 200, which needs validation images."
    if isinstance(pairs, str):
        return f"{pairs} has no validation pairs; build them with {build}."
    return f"Build pairs of validation images with {build} and name their folder with --pairs."


# -- margin and BatchNorm --------------------------------------------------------------------------------------------


def margin_never_met(log: RunLog) -> Finding | None:
    """Images of different labels never come as far apart as the margin asks."""
    met, margins = log.of_steps("met"), log.of_steps("margin")
    if not met or margins[-1] <= 0 or max(met) > 0.01:
        return None
    return Finding(
        "margin never met",
        "warning",
        f"At most {_percent(max(met))} of the distances between labels ever reached the margin of {margins[-1]:.3g} "
        f"(their mean is {log.of_steps('separation')[-1]:.3g}): corrections push apart and hardly align.",
        f"Lower the margin (now {log.config.get('margin')}), e.g. to 0.5x.",
    )


def margin_always_met(log: RunLog) -> Finding | None:
    """The uniformity term never acts while corrections draw everything together and the task is not learnt."""
    met, margins, separations = (log.of_steps(name) for name in ("met", "margin", "separation"))
    if len(met) < 2 or margins[-1] <= 0 or min(met) < 1 or separations[-1] <= 0:
        return None
    if separations[-1] > 0.5 * separations[0] or _falls(log.of_steps("task_loss")):
        return None  # a margin that is met because the task itself keeps the classes apart is what one wants
    return Finding(
        "margin always met",
        "warning",
        f"All distances between labels exceeded the margin of {margins[-1]:.3g} at every step (their mean went from "
        f"{separations[0]:.3g} to {separations[-1]:.3g}): nothing kept corrections from shrinking all features, and "
        f"the task loss does not fall.",
        f"Raise the margin (now {log.config.get('margin')}), e.g. to 0.5x.",
    )


def margin_far_below_scale(log: RunLog) -> Finding | None:
    """The margin is tiny beside the first distances."""
    margin, separation = _first_scale(log)
    if not margin or separation <= FAR_BELOW * margin:
        return None
    return Finding(
        "margin far below scale",
        "warning",
        f"Images of different labels were {separation:.3g} apart in the first epoch, {separation / margin:.0f} times "
        f"the margin of {margin:.3g}: it lets the correction shrink all features before it acts.",
        "Give the margin relative to the distances, e.g. --margin 0.5x, and check that the head starts small.",
    )


def margin_far_above_scale(log: RunLog) -> Finding | None:
    """The margin is huge beside the first distances."""
    margin, separation = _first_scale(log)
    if not margin or separation >= FAR_ABOVE * margin or log.of_steps("met")[0] == 1:
        return None
    return Finding(
        "margin far above scale",
        "warning",
        f"Images of different labels were {separation:.3g} apart in the first epoch and the margin is {margin:.3g}: "
        f"corrections blow the features up and fit the pairs' labels, wrong ones included.",
        "Give the margin relative to the distances, e.g. --margin 0.5x.",
    )


def batch_norm_drifts(log: RunLog) -> Finding | None:
    """Pair and task batches are unlike where BatchNorm keeps one statistic of both."""
    gaps = log.of_epochs("batch_norm_gap")
    if not gaps or gaps[-1] < FAR_STATISTICS:
        return None
    return Finding(
        "batch norm drifts",
        "warning",
        f"At a BatchNorm layer the means of pair and task images lie {gaps[-1]:.1f} standard deviations apart, and its "
        f"statistics drift between the two.",
        "Train with --batch-norm eval (advised for pretrained networks), use larger and more varied pair batches, or "
        "a network with GroupNorm.",
    )


def _first_scale(log: RunLog) -> tuple[float, float]:
    """Margin and distance between labels in the first epoch; 0 where there is none."""
    margins, separations = log.of_steps("margin"), log.of_steps("separation")
    return (margins[0], separations[0]) if margins and separations else (0.0, 0.0)


def _longer(log: RunLog) -> str:
    """How to train longer: the folder of a finished run is not gone on with."""
    return (
        f"train longer (more --epochs than {log.config.get('epochs', 'these')}, or --from this run's folder to go on "
        f"from its network; both with another --output)"
    )


def _falls(values: Sequence[float]) -> bool:
    return len(values) < 2 or values[-1] < (1 - FALLS) * values[0]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _pace(log: RunLog) -> str:
    """How often the run corrected: `every`, and of one that follows the disagreement what came of it."""
    shares = log.of_steps("corrected")
    return f"{log.config.get('every')}" + (f", {_percent(shares[-1])} of the last epoch's steps" if shares else "")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


FINDINGS: tuple[Check, ...] = (
    loss_not_finite,
    representation_collapsed,
    run_begun_again,
    one_class_predicted,
    validation_at_chance,
    task_gradient_scaled_to_nothing,
    clip_on_most_steps,
    floor_on_most_steps,
    pairs_memorised,
    disagreement_never_falls,
    shortcut_in_use,
    margin_never_met,
    margin_always_met,
    margin_far_below_scale,
    margin_far_above_scale,
    batch_norm_drifts,
    held_out_pairs_absent,
)
"""Every finding there is."""
