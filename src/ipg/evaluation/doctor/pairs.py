"""Findings on the pairs: whether they get through and are measured, and how margin and BatchNorm suit them."""

from __future__ import annotations

from ipg.config import MARGIN
from ipg.evaluation.doctor.finding import (
    AGREES,
    DISAGREES,
    FALLS,
    Finding,
    falls,
    longer,
    may_correct_more,
    percent,
    shortcut_remedy,
)
from ipg.evaluation.doctor.log import RunLog
from ipg.evaluation.doctor.training import representation_collapsed

__all__ = [
    "batch_norm_drifts", "disagreement_never_falls", "held_out_pairs_absent", "margin_always_met",
    "margin_far_above_scale", "margin_far_below_scale", "margin_never_met", "pairs_memorised", "shortcut_in_use",
]  # fmt: skip

FAR_BELOW, FAR_ABOVE = 30.0, 0.2
"""Distance between labels, in margins, above which the margin does nothing, and below which it does everything."""
FAR_STATISTICS = 1.0
"""Gap between pair and task batches, in standard deviations, from which they are unlike."""

# -- the pairs -------------------------------------------------------------------------------------------------------


def pairs_memorised(log: RunLog) -> Finding | None:
    """Training pairs agree and held-out pairs do not."""
    trained, held_out = log.of_epochs("train_pair_disagreement"), log.of_epochs("pair_disagreement")
    if not trained or not held_out or trained[-1] > AGREES or held_out[-1] < DISAGREES:
        return None
    return Finding(
        "pairs memorised",
        "warning",
        f"{percent(trained[-1])} of the training pairs disagree but {percent(held_out[-1])} of the held-out ones: "
        f"the pairs were learnt by heart, not what they have in common.",
        f"Use more and more varied pairs (--pairs, now {log.config.get('pairs')}), fewer epochs, or keep the best "
        f"epoch with --selection pairs.",
    )


def disagreement_never_falls(log: RunLog) -> Finding | None:
    """The training pairs disagree as much at the end as in the first epoch."""
    first, ends = log.of_steps("disagreement"), log.of_epochs("train_pair_disagreement")
    if len(log.rows) < 2 or not first or not ends or min(ends) < DISAGREES or min(ends) < (1 - FALLS) * first[0]:
        return None
    often = f"correct more often (--every 1, now {_pace(log)}), " if may_correct_more(log) else ""
    return Finding(
        "disagreement never falls",
        "warning",
        f"{percent(first[0])} of the training pairs disagreed in the first epoch and {percent(ends[-1])} after the "
        f"last: the corrections do not get through.",
        f"Raise the learning rate (now {log.config.get('learning_rate')}), {often}lower alpha (now "
        f"{log.config.get('alpha')}), check that the members of a pair differ in the shortcut alone, or {longer(log)}.",
    )


def shortcut_in_use(log: RunLog) -> Finding | None:
    """Held-out pairs disagree, and no other finding says why."""
    held_out = log.of_epochs("pair_disagreement")
    if not held_out or held_out[-1] < DISAGREES or pairs_memorised(log) or disagreement_never_falls(log):
        return None
    return Finding(
        "shortcut in use",
        "warning",
        f"{percent(held_out[-1])} of the held-out pairs disagree: the network leans on what their members differ in.",
        shortcut_remedy(log),
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
        f"At most {percent(max(met))} of the distances between labels ever reached the margin of {margins[-1]:.3g} "
        f"(their mean is {log.of_steps('separation')[-1]:.3g}): corrections push apart and hardly align.",
        f"Lower the margin (now {log.config.get('margin')}), e.g. to {_another_margin(log, larger=False)}.",
    )


def margin_always_met(log: RunLog) -> Finding | None:
    """The uniformity term never acts while corrections draw everything together and the task is not learnt."""
    met, margins, separations = (log.of_steps(name) for name in ("met", "margin", "separation"))
    if len(met) < 2 or margins[-1] <= 0 or min(met) < 1 or separations[-1] <= 0:
        return None
    if separations[-1] > 0.5 * separations[0] or falls(log.of_steps("task_loss")):
        return None  # a margin that is met because the task itself keeps the classes apart is what one wants
    return Finding(
        "margin always met",
        "warning",
        f"All distances between labels exceeded the margin of {margins[-1]:.3g} at every step (their mean went from "
        f"{separations[0]:.3g} to {separations[-1]:.3g}): nothing kept corrections from shrinking all features, and "
        f"the task loss does not fall.",
        f"Raise the margin (now {log.config.get('margin')}), e.g. to {_another_margin(log, larger=True)}.",
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
        f"{_margin_remedy(log, larger=True)}, and check that the head starts small.",
    )


def margin_far_above_scale(log: RunLog) -> Finding | None:
    """The margin is huge beside the first distances, and no collapse has shrunk these."""
    margin, separation = _first_scale(log)
    if not margin or separation >= FAR_ABOVE * margin or log.of_steps("met")[0] == 1 or representation_collapsed(log):
        return None
    return Finding(
        "margin far above scale",
        "warning",
        f"Images of different labels were {separation:.3g} apart in the first epoch and the margin is {margin:.3g}: "
        f"corrections blow the features up and fit the pairs' labels, wrong ones included.",
        f"{_margin_remedy(log, larger=False)}.",
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


def _another_margin(log: RunLog, *, larger: bool) -> str:
    """The default, a multiple of the first distances; where it lies the other way, twice or half the run's own."""
    own, default = _multiple(log), float(MARGIN.removesuffix("x"))
    if own is None or (own < default if larger else own > default):
        return MARGIN
    return f"{own * (2 if larger else 0.5):.3g}x"


def _margin_remedy(log: RunLog, *, larger: bool) -> str:
    """To give the margin as a multiple; where it is one, another."""
    another = f"--margin {_another_margin(log, larger=larger)}"
    if _multiple(log) is None:
        return f"Give the margin relative to the distances, e.g. {another}"
    return f"Use a {'larger' if larger else 'smaller'} multiple (now {log.config['margin']}), e.g. {another}"


def _multiple(log: RunLog) -> float | None:
    """The margin of a run in its first distances, where it was given so."""
    given = str(log.config.get("margin"))
    return float(given.removesuffix("x")) if given.endswith("x") else None


def _pace(log: RunLog) -> str:
    """How often the run corrected: `every`, and of one that follows the disagreement what came of it."""
    shares = log.of_steps("corrected")
    return f"{log.config.get('every')}" + (f", {percent(shares[-1])} of the last epoch's steps" if shares else "")
