"""From runs to the page: which pairs are shown, in which order, and what the runs are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.methods import method_class
from ipg.notebook import Run
from ipg.pairs.pairset import PairSet
from ipg.report.build import FLIPS, GALLERY, NAMES, page_data
from ipg.report.page import render
from ipg.training.loop import Outcome
from ipg.training.materials import Materials

CLASSES = ("cat", "dog", "emu")


def make_pairs(label: Sequence[int], split: str, *, salt: int = 0) -> PairSet:
    """Pairs whose images hold their own number and which member they are, for `Scripted` to read."""
    n = len(label)
    first = torch.zeros(n, 2, 4, 4, dtype=torch.uint8)
    first[:, 0, 0, 0] = torch.arange(n)
    first[:, 0, 3, 3] = salt
    second = first.clone()
    second[:, 0, 0, 1] = 1
    rows = torch.arange(n)
    return PairSet(first, second, torch.tensor(label), torch.stack([rows, rows], dim=1), split=split, builder="made")


class Scripted(nn.Module):
    """Says of each member of each pair what it was told to say."""

    def __init__(self, first: Sequence[int], second: Sequence[int]) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.register_buffer("answers", torch.tensor([first, second]))

    def forward(self, images: Tensor) -> Tensor:
        number, member = ((255 * images[:, 0, 0, column]).round().long() for column in (0, 1))
        return F.one_hot(self.answers[member, number], len(CLASSES)).float()


def make_run(
    method: str,
    first: Sequence[int] = (0,),
    second: Sequence[int] | None = None,
    *,
    label: Sequence[int] | None = None,
    pairs: PairSet | None = None,
    held_out: bool = True,
    salt: int = 0,
    data: str = "animals",
) -> Run:
    """A run whose network answers `first` and `second` on held-out pairs of the given labels."""
    kind = method_class(method)
    second = first if second is None else second
    known = make_pairs(first if label is None else label, "validation", salt=salt) if held_out else None
    images = torch.zeros(4, 2, 4, 4, dtype=torch.uint8)
    zeros = torch.zeros(4, dtype=torch.int64)
    table = ImageTable(
        name=data, images=images, label=zeros, attribute=zeros, split=torch.tensor([0, 0, 0, 1]), environment=zeros,
        content=zeros, splits=("train", "test"), classes=CLASSES, attributes=("red", "green"),
    )  # fmt: skip
    model = Scripted(first, second)
    materials = Materials(table, model, pairs, known).transformed(kind.transform)
    metrics: dict[str, Any] = {"average": 0.5, "worst_group": 0.25, "group_mean": 0.5, "groups": {}}
    row = {"epoch": 1, "step": 1, "seconds": 1.0, "train": {}, "test": metrics, "pair_disagreement": 0.5}
    result = {
        "config": {"method": method}, "selection": "last", "selected_epoch": 1, "seconds": 1.0, "commit": None,
        "metrics": {**metrics, "pair_disagreement": 0.5}, "versions": {"torch": "2.8"}, "hardware": "abacus",
        "date": f"2026-01-0{1 + len(method) % 9}",
    }  # fmt: skip
    return Run(RunConfig(method=method), materials, Outcome(model, [row], result))


#                  shown?  yes  changes-but-guided-wrong  steady  yes  changes-but-guided-half  guided-changes
LABEL = [0, 1, 2, 1, 0, 2]
BEFORE = ([0, 1, 2, 2, 0, 2], [1, 0, 2, 1, 1, 2])
AFTER = ([0, 0, 2, 1, 0, 2], [0, 0, 2, 1, 1, 1])
SHOWN = [0, 3]


def numbers(page) -> list[int]:
    return [int(flip.first[0, 0, 0]) for flip in page.flips]


def test_flips_are_pairs_on_which_plain_training_wavers_and_guided_training_is_right_twice() -> None:
    runs = [make_run("erm", *BEFORE, label=LABEL), make_run("oracle", LABEL), make_run("ipg", *AFTER, label=LABEL)]
    page = page_data(runs)
    assert numbers(page) == SHOWN
    plain, oracle, guided = NAMES["erm"], NAMES["oracle"], NAMES["ipg"]
    assert [flip.label for flip in page.flips] == ["cat", "dog"]
    assert [flip.predictions for flip in page.flips] == [
        {plain: ("cat", "dog"), oracle: ("cat", "cat"), guided: ("cat", "cat")},
        {plain: ("emu", "dog"), oracle: ("dog", "dog"), guided: ("dog", "dog")},
    ]
    for number, flip in zip(SHOWN, page.flips, strict=True):
        shown = runs[0].materials.held_out
        assert shown is not None
        assert torch.equal(flip.first, shown.first[number])  # in colour, though the oracle sees none
        assert torch.equal(flip.second, shown.second[number])


def test_the_order_of_the_runs_does_not_matter_to_the_choice() -> None:
    runs = [make_run("ipg", *AFTER, label=LABEL), make_run("erm", *BEFORE, label=LABEL)]
    assert numbers(page_data(runs)) == SHOWN


def test_the_first_plain_and_the_first_guided_run_are_compared() -> None:
    steady = make_run("erm", LABEL)
    wrong = make_run("ipg", [2] * 6, label=LABEL)
    compared = [make_run("erm", *BEFORE, label=LABEL), make_run("ipg", *AFTER, label=LABEL)]
    page = page_data([*compared, steady, wrong])
    assert numbers(page) == SHOWN
    assert list(page.flips[0].predictions) == [
        "Plain training 1 (ERM)", "Guided by pairs 1 (IPG)", "Plain training 2 (ERM)", "Guided by pairs 2 (IPG)",
    ]  # fmt: skip
    assert numbers(page_data([steady, *compared])) == []


@pytest.mark.parametrize(
    "runs",
    [
        [make_run("erm", *BEFORE, label=LABEL)],
        [make_run("ipg", *AFTER, label=LABEL)],
        [make_run("erm", *BEFORE, label=LABEL), make_run("joint", *AFTER, label=LABEL)],
        [make_run("erm", *BEFORE, label=LABEL, held_out=False), make_run("ipg", *AFTER, label=LABEL)],
        [make_run("erm", *BEFORE, label=LABEL), make_run("ipg", *AFTER, label=LABEL, held_out=False)],
        [make_run("erm", *BEFORE, label=LABEL), make_run("ipg", *AFTER, label=LABEL, salt=1)],
        [make_run("erm", *BEFORE, label=LABEL), make_run("ipg", [0, 1, 2])],
    ],
    ids=["plain", "guided", "ablation", "none before", "none after", "others", "fewer"],
)
def test_without_two_runs_measured_on_the_same_pairs_there_are_no_flips(runs: list[Run]) -> None:
    page = page_data(runs)
    assert page.flips == []
    assert render(page).startswith("<!")


def test_a_run_measured_on_other_pairs_has_no_say() -> None:
    runs = [make_run("erm", *BEFORE, label=LABEL), make_run("ipg", *AFTER, label=LABEL)]
    others = [
        make_run("joint", LABEL, salt=9),
        make_run("oracle", [0, 1]),
        make_run("continuous", LABEL, held_out=False),
    ]
    page = page_data([*runs, *others])
    assert numbers(page) == SHOWN
    assert {name for flip in page.flips for name in flip.predictions} == {NAMES["erm"], NAMES["ipg"]}


def test_flips_take_turns_between_the_labels_and_are_few() -> None:
    label = [0] * 9 + [1] * 2 + [2] * 5
    wavering = make_run("erm", label, [(value + 1) % 3 for value in label], label=label)
    page = page_data([wavering, make_run("ipg", label)])
    assert numbers(page) == [0, 9, 11, 1, 10, 12, 2, 13]
    assert len(page.flips) == FLIPS == 8


def test_the_gallery_takes_turns_between_the_labels() -> None:
    label = [2] * 3 + [0] * 30 + [1]
    pairs = make_pairs(label, "train")
    page = page_data([make_run("erm"), make_run("ipg", pairs=pairs)])
    assert [name for _, _, name in page.pairs] == ["cat", "dog", "emu", "cat", "emu", "cat", "emu"] + ["cat"] * 17
    assert [int(first[0, 0, 0]) for first, _, _ in page.pairs][:5] == [3, 33, 0, 4, 1]
    assert all(int(second[0, 0, 1]) == 1 for _, second, _ in page.pairs)
    assert len(page.pairs) == GALLERY == 24
    assert (page.pair_count, page.train_count) == (34, 3)


def test_the_pairs_are_those_of_the_run_that_is_compared() -> None:
    few, many = make_pairs([0, 1], "train"), make_pairs([0, 1, 2, 0], "train")
    assert page_data([make_run("joint", pairs=many), make_run("ipg", pairs=few)]).pair_count == 2
    assert page_data([make_run("erm"), make_run("joint", pairs=many)]).pair_count == 4
    assert page_data([make_run("erm")]).pair_count == 0
    assert page_data([make_run("erm")]).pairs == []


def test_runs_of_one_method_are_told_apart_everywhere_on_the_page() -> None:
    runs = [make_run("erm", *BEFORE, label=LABEL), make_run("ipg", *AFTER, label=LABEL), make_run("erm", LABEL)]
    page = page_data(runs)
    assert [view.name for view in page.runs] == [
        "Plain training 1 (ERM)", "Guided by pairs (IPG)", "Plain training 2 (ERM)",
    ]  # fmt: skip
    html = render(page)
    for name in ("Plain training 2 (ERM)", "plain training 1", "plain training 2", "guided by pairs"):
        assert name in html


def test_every_method_has_a_name_of_its_own() -> None:
    from ipg.methods import METHODS

    assert set(NAMES) == set(METHODS)
    assert len(set(NAMES.values())) == len(METHODS)


def test_roles() -> None:
    page = page_data([make_run(method) for method in NAMES])
    assert {view.method: view.role for view in page.runs} == {
        "erm": "before", "ipg": "after", "oracle": "reference", "joint": "reference", "continuous": "reference",
    }  # fmt: skip


def test_words_and_origin() -> None:
    runs = [make_run("erm"), make_run("ipg")]
    page = page_data(runs, title="On wet days", shortcut="It rained.", command="ipg demo")
    assert (page.title, page.shortcut, page.command) == ("On wet days", "It rained.", "ipg demo")
    date = runs[-1].result["date"]
    assert page.environment == {"torch": "2.8", "hardware": "abacus", "commit": "unknown", "date": date}
    assert page_data(runs).command == ""


def test_runs_on_different_data_or_no_runs_at_all() -> None:
    with pytest.raises(ValueError, match=r"different data sets \(animals, plants\); a report is on runs of one"):
        page_data([make_run("erm"), make_run("ipg", data="plants")])
    with pytest.raises(ValueError, match="there are no runs"):
        page_data([])
