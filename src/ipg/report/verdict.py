"""What a report says first: whether guidance helped, by which evidence, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipg.config import PANELS
from ipg.evaluation.doctor.finding import DISAGREES, Check
from ipg.evaluation.doctor.log import RunLog
from ipg.evaluation.doctor.training import learnt_and_lost, line_misplaced, task_hardly_learnt, validation_at_chance
from ipg.evaluation.groups import guesses, is_constant
from ipg.evaluation.statistics import difference
from ipg.report.figures import Bars, points
from ipg.report.results import average, unnumbered, worst_block, worst_group
from ipg.report.settings import settings
from ipg.report.views import RunView, number, percent, share_interval
from ipg.words import listed

__all__ = ["Evidence", "Verdict", "verdict"]

OTHERWISE = frozenset((*PANELS["Data and model"], *PANELS["Training"], "batch_norm")) - {"data", "data_path", "masks"}
"""Settings that are not of guidance, and may make a difference as well."""
FAULTS: tuple[Check, ...] = (learnt_and_lost, line_misplaced, validation_at_chance, task_hardly_learnt)
"""Findings on a run whose figures would be others had its training gone well."""


@dataclass(frozen=True)
class Evidence:
    """What the test images can tell."""

    grouped: bool = True
    """Whether the data says which form of the shortcut an image has; without that a group is a class."""
    parted: bool = True
    """Whether some class is tested with several forms of it: where none is, the shortcut holds in the test, too."""
    alike: bool = True
    """Whether all runs were tested on the same images."""
    classes: int = 0
    """How many there are; 0 where that is not known."""

    @property
    def telling(self) -> bool:
        """Whether accuracy by group shows what a shortcut does."""
        return self.grouped and self.parted


@dataclass(frozen=True)
class Verdict:
    """A sentence, and those beneath it: more evidence, and doubts."""

    says: str = ""
    remarks: tuple[str, ...] = ()


def verdict(runs: Sequence[RunView], bars: Bars, evidence: Evidence, *, others: Sequence[RunView] = ()) -> Verdict:
    """Whether guidance helped; of one run, whether it leans on the shortcut.

    It goes by the worst group; where accuracy by group does not show the shortcut, by held-out pairs.

    Args:
        runs: the one before and the one after, or one alone.
        bars: their accuracy by group, a row each.
        evidence: what the test images can tell.
        others: all other runs on the page.
    """
    if any(is_constant(run.metrics) for run in runs):  # the page warns of each
        return Verdict()
    if [run.role for run in runs] != ["before", "after"]:
        return Verdict(" ".join(_alone(run, evidence) for run in runs), tuple(_of_training(runs, evidence)))
    remarks = (
        _of_guessing(runs, evidence),
        *_of_training(runs, evidence),
        *_of_groups(bars, evidence),
        _of_settings(runs),
        _of_seeds(runs, others),
    )
    return Verdict(_compared(runs, bars, evidence), tuple(filter(None, remarks)))


def _alone(run: RunView, evidence: Evidence) -> str:
    """Whether one run leans on the shortcut, which held-out pairs tell by themselves."""
    if run.pairs is None or (interval := share_interval(run.disagreement, run.pairs.total)) is None:
        return ""
    if interval.low > DISAGREES:
        told = "leans on the shortcut"
    elif interval.high >= DISAGREES:
        told = "may lean on the shortcut"
    elif guesses(run.metrics, evidence.classes):
        told = "does no better than guessing, which needs no shortcut"
    else:
        told = "shows no sign of the shortcut"
    name, share = run.name.partition(" (")[0], percent(run.disagreement)
    return (
        f"{name} {told}: where it alone changes, so does the answer on {share} of {run.pairs.total:,} held-out pairs."
    )


def _compared(runs: Sequence[RunView], bars: Bars, evidence: Evidence) -> str:
    """Whether the second of two runs does better."""
    if not evidence.alike:
        return "Whether guidance helped cannot be told: the two runs were not tested on the same images."
    if evidence.telling:
        what, of, counted = "the worst group", "test images", _worst_counted(bars)
    else:
        what, of = "the share of held-out pairs with both answers right", "pairs"
        counted = [(run.pairs.both_right, run.pairs.total) for run in runs if run.pairs]
    if len(counted) != 2:
        return "" if evidence.telling else "Whether guidance helped cannot be told without held-out pairs."
    (before, m), (after, n) = counted
    low, high = difference((round(after), n), (round(before), m))
    if low > 0 and guesses(runs[1].metrics, evidence.classes):
        return "No help: the guided run does no better than guessing, all groups counted alike."
    told = f"{_clear(low, high, costs=evidence.telling and _average_fell(bars))}: {what} "
    told += f"{_moved(after / n - before / m)} (95 % interval {points(low)} to {points(high)}"
    told += ")" if low > 0 or high < 0 else f", of {listed(sorted({m, n}))} {of})"
    averages = [value for run in runs if (value := average(run)) is not None]
    return f"{told}, the average {_moved(averages[1] - averages[0])}." if len(averages) == 2 else f"{told}."


def _clear(low: float, high: float, *, costs: bool) -> str:
    """What the interval of a difference shows; `costs`: the average fell, by more than chance in the images."""
    if high < 0:
        return "Guidance did harm"
    if low > 0:
        return "Guidance helped the worst group and did harm on average" if costs else "Guidance helped"
    return "No clear gain, and harm on average" if costs else "No clear difference"


def _average_fell(bars: Bars) -> bool:
    """Whether fewer of all test images are right after than before, by more than chance in the images."""
    total = sum(count or 0 for count in bars.counts)
    before, after = (
        round(sum((share or 0) * (count or 0) for share, count in zip(row, bars.counts, strict=True)))
        for row in bars.shares
    )
    return bool(total) and difference((after, total), (before, total)).high < 0


def _worst_counted(bars: Bars) -> list[tuple[float, int]]:
    """How many images of its worst group each run has right, and how many there are; of runs where that is known."""
    worst = [(row, block) for row in range(len(bars.runs)) if (block := worst_block(bars, row)) is not None]
    return [(share * n, n) for row, b in worst if (share := bars.shares[row][b]) is not None and (n := bars.counts[b])]


def _moved(difference: float) -> str:
    """`gained 3.2 points`."""
    size = f"{abs(100 * difference):.1f}"
    return "stayed the same" if size == "0.0" else f"{'gained' if difference > 0 else 'lost'} {size} points"


# -- beneath it ------------------------------------------------------------------------------------------------------


def _of_guessing(runs: Sequence[RunView], evidence: Evidence) -> str:
    """That a guided run whose pairs agree more than before only guesses."""
    before, after = (run.disagreement for run in runs)
    if before is None or after is None or after >= before or not guesses(runs[1].metrics, evidence.classes):
        return ""
    mean, guessed = percent(number(runs[1].metrics.get("group_mean"))), percent(1 / evidence.classes)
    return f"The mean of groups is {mean} after guidance, and guessing gives {guessed}: that pairs agree is no merit."


def _of_training(runs: Sequence[RunView], evidence: Evidence) -> Iterator[str]:
    """What went wrong in training, where it did."""
    for run in runs:
        log = RunLog(run.config, run.epochs, classes=evidence.classes or None)
        if finding := next((found for check in FAULTS if (found := check(log)) is not None), None):
            yield f"{run.name}: {finding.name}. {finding.meaning} The command ipg doctor says what to do."


def _of_groups(bars: Bars, evidence: Evidence) -> Iterator[str]:
    """What accuracy by group leaves open."""
    if evidence.grouped and not evidence.parted:
        yield "Each class is tested with one form of the shortcut alone, so that accuracy does not show its use."
    elif evidence.grouped and (absent := [name for name, n in zip(bars.blocks, bars.counts, strict=True) if n == 0]):
        yield f"No test image is of the group {listed(absent, ' or ')}: what happens there is not measured."


def _of_settings(runs: Sequence[RunView]) -> str:
    """What else the runs differ in."""
    differing = {name: values for name, values in settings(runs)[1] if name in OTHERWISE}
    if "start" in differing:  # which settles them
        differing = {name: values for name, values in differing.items() if name not in ("model", "weights")}
    others = [f"{name} ({listed(value or '–' for value in values)})" for name, values in differing.items()]
    if not others:
        return ""
    return f"The runs differ in more than guidance: {listed(others)}. That may explain a part of the difference."


def _of_seeds(runs: Sequence[RunView], others: Sequence[RunView]) -> str:
    """What is known of chance in training."""
    told = []
    for run in runs:
        alike = [run, *(other for other in others if other.method == run.method)]
        if len(alike) > 1:
            told.append(f"{unnumbered(run.name)} {listed(percent(worst_group(each)) for each in alike)}")
    if told:
        return f"This is about the first run of each. Worst groups of all: {'; '.join(told)}."
    return "One run of each: ipg compare --seeds 5 shows how far other seeds differ."
