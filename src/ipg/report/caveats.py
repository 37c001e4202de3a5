"""What a comparison cannot tell, in plain sentences made from what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ipg.experiments.study import GUIDED
from ipg.methods import method_class
from ipg.methods.base import Need
from ipg.report.compared import PLAIN, Comparison, MethodRows
from ipg.words import are, listed, number_of

__all__ = ["caveats", "went_wrong"]

FEW_IMAGES = 50
"""Groups of fewer test images are pointed out: one image is two points or more."""
FEW_SEEDS = 10
SHORT_SECONDS = 30
"""Below this time of plain training its start and the machine's other work count."""
SELECTIONS = {
    "last": "The last epoch of every run was kept: no validation image and no group label had a say.",
    "training_environments": "The epoch with the best validation accuracy over the training environments was kept, "
    "which rewards a shortcut that holds in them; no group label had a say.",
    "worst_group": "The epoch with the best worst-group accuracy on validation images was kept: every method profited "
    "from their group labels, also those that train without any.",
    "pairs": "The epoch with the best validation accuracy times agreement on held-out pairs was kept: no group label "
    "had a say.",
}

GIVEN: Mapping[Need, str] = {
    "groups": "group labels of the training images",
    "validation groups": "group labels of the validation images to fit to",
    "environments": "the environments of the training images",
    "masks": "masks of the objects in training images",
    "attention": "maps of where another network, trained on text and images, looks",
    "shortcut rule": "a rule that changes the shortcut in every image, or takes it out",
    "pairs": "pairs of images",
}
"""What methods are given besides labelled images, in words."""


def caveats(comparison: Comparison) -> list[str]:
    """The sentences, the weightiest first."""
    return [
        *_missing(comparison),
        *_seeds(comparison),
        *_groups(comparison),
        SELECTIONS[comparison.selection],
        *_labels(comparison),
        *_settings(comparison),
        *_classes(comparison),
        *(f"{remark[0].upper()}{remark[1:]}." for remark in comparison.facts.remarks),
        *_pairs(comparison),
        *_time(comparison),
    ]


def _missing(comparison: Comparison) -> Iterator[str]:
    """Seeds that are not there, and those that learnt nothing."""
    for method in comparison.methods:
        if lost := [seed for seed in comparison.seeds if seed not in method.rows]:
            yield (
                f"{method.name} has no result for {number_of(len(lost), 'seed')} of {len(comparison.seeds)} "
                f"({listed(lost)}): its figures are of the others, and differences of the seeds that both methods "
                f"have."
            )
        yield from went_wrong(method)
        if idle := comparison.agrees_idly(method):
            yield (
                f"{method.name} does no better than guessing in {idle} of {number_of(len(method.rows), 'run')}, all "
                f"groups counted alike: that its pairs agree there is no merit."
            )
        if followed := comparison.follows_pairs(method):
            yield (
                f"{method.name} gives nearly every pair two answers in {followed} of "
                f"{number_of(len(method.rows), 'run')}: it goes by what pairs change, and its average tells how often "
                f"that goes with the classes of the test images, or against them."
            )
    if same := [method.name for method in comparison.others if comparison.same_answers(method)]:
        yield (
            f"{listed(same)} {'give' if len(same) > 1 else 'gives'} every test image the same class as "
            f"{comparison.reference.name} does, with every seed: on this data {'they' if len(same) > 1 else 'it'} came "
            f"to the same."
        )


def went_wrong(method: MethodRows) -> Iterator[str]:
    """Runs of a method that learnt nothing, broke off, or had to begin again."""
    runs = number_of(len(method.rows), "run")
    if method.restarted:
        yield (
            f"{method.name} collapsed and began again in {method.restarted} of {runs}, each time with half the "
            f"learning rate. Their figures are of the last attempt, their time of all; with --restarts 0 they count as "
            f"they collapse."
        )
    if method.collapsed:
        one, paired = method.collapsed == 1, method.spread("pair_disagreement") is not None
        agree = f"; {'its' if one else 'their'} pairs agree because everything does" if paired else ""
        yield (
            f"{method.name} gives every image the same class in {method.collapsed} of {runs}. "
            f"{'It is' if one else 'They are'} counted{agree}."
        )
    if method.broke_off:
        yield (
            f"{method.name} broke off in {method.broke_off} of {runs}: training had collapsed, or the loss was no "
            f"longer a number. Their networks are counted as they stood"
            + (
                f", all but {method.unmeasured} that broke off before there was a network to measure: figures are of "
                f"the others."
                if method.unmeasured
                else "."
            )
        )


def _seeds(comparison: Comparison) -> Iterator[str]:
    count = len(comparison.seeds)
    if count == 1:
        yield "One seed: there is no telling how much of a difference is chance. Give --seeds 5 or more to find out."
    elif count < FEW_SEEDS:
        yield (
            f"{count} seeds are few. The intervals, 95 % by the percentile bootstrap over seeds, are then too narrow, "
            f"and p cannot be below {2 / 2**count:.2g}, whatever the difference."
        )
    else:
        yield f"Intervals are 95 % by the percentile bootstrap over {count} seeds."
    if comparison.facts.drawn:
        yield (
            "Every seed draws its own training and test images, so the spread holds that chance too; numbers of images "
            "are those of the first seed."
        )
    elif count > 1:
        yield (
            "All seeds train and are tested on the same images: the spread is that of training, and says nothing of "
            "other images."
        )
    if len(comparison.others) > 1 and count > 1:
        yield (
            f"{len(comparison.others)} methods are compared with {comparison.reference.name}: the p of each is as if "
            f"it were the only one, so that a small one is to be expected now and then."
        )


def _groups(comparison: Comparison) -> Iterator[str]:
    """Groups that are small or absent; data without groups."""
    facts = comparison.facts
    if not facts.grouped:
        yield (
            "These images come without group labels, so accuracy is told by class. A high one does not mean that the "
            "shortcut is not used: in these images it may still hold."
        )
        return
    if absent := _where(facts.training, lambda count: count == 0):
        yield (
            f"No training image is of the group {listed(absent, ' or ')}: methods that reweight or resample groups "
            f"have nothing to work with there."
        )
    if absent := _where(facts.tested, lambda count: count == 0):
        yield f"No test image is of the group {listed(absent, ' or ')}: what happens there is not measured."
    blind = ["the choice of the epoch"] if comparison.selection == "worst_group" else []
    blind += [each.name for each in comparison.methods if "validation groups" in _given(each)]
    if blind and (absent := _where(facts.validated, lambda count: count == 0)):
        yield (
            f"No validation image is of the group {listed(absent, ' or ')}, which {listed(blind)} therefore "
            f"{'do' if len(blind) > 1 else 'does'} not see."
        )
    if small := _where(facts.tested, lambda count: 0 < count < FEW_IMAGES):
        described = [f"{name} ({number_of(facts.tested[name], 'image')})" for name in small]
        yield (
            f"Small test groups: {listed(described)}. One image is {100 / max(facts.tested[n] for n in small):.1f} "
            f"points or more there, and the worst group is more often one of them by chance."
        )
    yield "The worst group is each run's own, picked for being so: its accuracy is low by chance as well as by nature."


def _labels(comparison: Comparison) -> Iterator[str]:
    """What methods are given besides labelled images."""
    needs = {method.name: _given(method) for method in comparison.methods}
    for need, words in GIVEN.items():
        if users := [name for name, own in needs.items() if need in own]:
            given = f"{number_of(comparison.facts.pairs, 'pair')} of images" if need == "pairs" else words
            yield f"{listed(users)} {are(len(users))} given {given}."


def _given(method: MethodRows) -> frozenset[Need]:
    return method_class(method.method).given(method.options)


def _settings(comparison: Comparison) -> Iterator[str]:
    given = [f"{name} {value}" for name, value in comparison.given.items()]
    if given:
        yield (
            f"Settings that you gave: {', '.join(given)}. All others are defaults; nothing was tuned here, for any "
            f"method, and one that was tuned on this data has an advantage over those that were not."
        )
    else:
        yield (
            "All methods have default settings, which were not chosen on this data: some suit it better than others. "
            "Tuning each on validation images may change the order."
        )


def _classes(comparison: Comparison) -> Iterator[str]:
    """Methods that do not weigh classes where others do."""
    counts, each = list(comparison.facts.training.values()), len(comparison.facts.attributes)
    uneven = len({sum(counts[start : start + each]) for start in range(0, len(counts), each)}) > 1
    without = [one.name for one in comparison.methods if not method_class(one.method).weighs_classes]
    if without and len(without) < len(comparison.methods) and uneven and comparison.settings.get("class_weighted"):
        yield f"Classes of few images weigh more in the loss, but not in that of {listed(without)}."


def _pairs(comparison: Comparison) -> Iterator[str]:
    facts = comparison.facts
    own = {each.name: each.options.get("every") for each in comparison.methods if each.method in GUIDED}
    every = {name: comparison.settings.get("every", 1) if value is None else value for name, value in own.items()}
    steady = [each.name for each in comparison.methods if each.method in ("pair_augmentation", "pair_contrastive")]
    for pace in [pace for pace in dict.fromkeys(every.values()) if steady and pace != 1]:
        paced = [name for name, value in every.items() if value == pace]
        when = "more rarely while they agree" if pace == "auto" else f"in one of {pace} iterations"
        yield (
            f"{listed(paced)} {'draw' if len(paced) > 1 else 'draws'} pairs {when}, {listed(steady)} in every one: "
            f"--every 1 gives all as many."
        )
    if not facts.held_out:
        yield (
            "There are no held-out pairs, so nothing is said of how answers change when only the shortcut does; "
            "`ipg pairs build … --split validation` makes some."
        )
        return
    yield (
        f"Pairs that disagree: of {facts.held_out} pairs that no method was trained on. They tell whether the answer "
        f"hangs on what they change, and on nothing else: a method may be wrong about both images, or lean on another "
        f"shortcut."
    )


def _time(comparison: Comparison) -> Iterator[str]:
    if all(method.method != PLAIN for method in comparison.methods):
        yield f"Time is not compared, since plain training ({PLAIN}) is not among the methods."
    elif comparison.workers is None:
        yield (
            "Times were taken on machines of a cluster, which may differ and have other work to do: ratios are rough. "
            "Give --workers 1 in place of --cluster to measure them."
        )
    elif comparison.workers > 1:
        yield (
            f"Times were taken with {comparison.workers} runs at once on one machine, which slow each other: ratios "
            f"are rough. Give --workers 1 to measure them."
        )
    elif (taken := comparison.reference.spread("seconds")) is not None and taken.mean < SHORT_SECONDS:
        yield (
            f"Plain training took {taken.mean:.1f} s a run: ratios of runs as short as that change with whatever else "
            f"the machine does."
        )


def _where(counts: Mapping[str, int], wanted: Callable[[int], bool]) -> list[str]:
    return [name for name, count in counts.items() if wanted(count)]
