"""From runs to the page: which pairs are shown, in which order, and what the runs are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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
from ipg.report.verdict import Evidence
from ipg.report.views import PairAnswers
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
        return F.one_hot(self.answers[member, number], len(CLASSES)) + 0 * images.mean(dim=(2, 3))[:, :1]


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
    assert numbers(page) == [0, 9, 11, 1, 10, 12, 2, 13, 3]
    assert len(page.flips) == FLIPS == 9


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


def test_runs_are_known_by_their_folders_as_short_as_tells_them_apart() -> None:
    runs = [make_run("ipg", *AFTER, label=LABEL), make_run("ipg", LABEL)]
    folders = [view.folder for view in page_data(runs, folders=[Path("runs/a"), Path("runs/b/")]).runs]
    assert folders == ["a", "b"]
    folders = [view.folder for view in page_data(runs, folders=[Path("old/a"), Path("new/a")]).runs]
    assert folders == ["old/a", "new/a"]
    assert [view.folder for view in page_data(runs).runs] == ["", ""]


def test_whose_pairs_are_shown_is_told_where_several_runs_have_some() -> None:
    pairs = make_pairs([0, 1], "train")
    assert page_data([make_run("joint", pairs=pairs), make_run("ipg", pairs=pairs)]).pairs_of == NAMES["ipg"]
    assert page_data([make_run("erm"), make_run("ipg", pairs=pairs)]).pairs_of == ""


def test_runs_tested_on_different_images_are_told_apart_and_a_method_that_sees_less_is_not() -> None:
    runs = [make_run("erm", LABEL), make_run("oracle", LABEL)]
    assert page_data(runs).evidence.alike
    table = replace(runs[1].materials.table, split=torch.tensor([0, 0, 1, 1]))
    other = replace(runs[1], materials=replace(runs[1].materials, table=table))
    assert not page_data([runs[0], other]).evidence.alike


def test_whether_some_class_is_tested_with_several_forms_of_the_shortcut_is_seen() -> None:
    run = make_run("erm", LABEL)
    label = torch.tensor([0, 0, 1, 1])

    def evidence(attribute: list[int]) -> Evidence:
        table = replace(
            run.materials.table, label=label, attribute=torch.tensor(attribute), split=torch.ones_like(label)
        )
        return page_data([replace(run, materials=replace(run.materials, table=table))]).evidence

    assert not evidence([0, 0, 1, 1]).parted
    assert evidence([0, 1, 1, 1]).parted
    assert evidence([0, 0, 1, 1]).classes == len(CLASSES)


def test_every_method_has_a_name_of_its_own() -> None:
    from ipg.methods import METHODS

    assert set(NAMES) == set(METHODS)
    assert len(set(NAMES.values())) == len(METHODS)


def test_roles() -> None:
    page = page_data([make_run(method) for method in NAMES])
    roles = {view.method: view.role for view in page.runs}
    assert (roles.pop("erm"), roles.pop("ipg")) == ("before", "after")
    assert set(roles.values()) == {"reference"}


def test_words_and_origin() -> None:
    runs = [make_run("erm"), make_run("ipg")]
    page = page_data(runs, title="On wet days", shortcut="It rained.", command="ipg demo")
    assert (page.title, page.shortcut, page.command) == ("On wet days", "It rained.", "ipg demo")
    date = ", ".join(dict.fromkeys(run.result["date"] for run in runs))
    assert page.environment == {"torch": "2.8", "hardware": "abacus", "commit": "unknown", "date": date}
    runs[0].result["hardware"] = "slide rule"
    assert page_data(runs).environment["hardware"] == "slide rule, abacus"
    assert page_data(runs).command == ""
    assert page_data(runs).shortcut == "What must not matter: red or green."


def test_a_run_that_began_again_has_the_rate_it_ended_with() -> None:
    runs = [make_run("erm"), make_run("ipg")]
    for run in runs:
        run.outcome.result["config"]["learning_rate"] = 3e-4
    runs[1].outcome.result["restarted"] = 2
    rates = [view.config["learning_rate"] for view in page_data(runs).runs]
    assert rates == [3e-4, "0.0003 (7.5e-05 after 2 restarts)"]


def test_runs_on_different_data_or_no_runs_at_all() -> None:
    with pytest.raises(ValueError, match=r"different data sets \(animals, plants\); a report is on runs of one"):
        page_data([make_run("erm"), make_run("ipg", data="plants")])
    with pytest.raises(ValueError, match="there are no runs"):
        page_data([])


# Where the models look


def test_looks_are_of_the_pairs_that_flipped_for_both_runs_compared() -> None:
    runs = [make_run("erm", *BEFORE, label=LABEL), make_run("oracle", LABEL), make_run("ipg", *AFTER, label=LABEL)]
    page = page_data(runs)
    assert [int(look.images[0][0, 0, 0]) for look in page.looks] == SHOWN
    assert [look.label for look in page.looks] == ["cat", "dog"]
    assert all(list(look.heat) == [NAMES["erm"], NAMES["ipg"]] for look in page.looks)
    assert all(heat.shape == (4, 4) for look in page.looks for maps in look.heat.values() for heat in maps)


def test_without_flips_looks_are_of_held_out_pairs_and_without_these_of_test_images() -> None:
    pairs = page_data([make_run("erm", LABEL), make_run("ipg", LABEL)]).looks
    assert [look.label for look in pairs] == ["cat", "dog", "emu"] * 2
    assert all(len(look.images) == 2 for look in pairs)
    others = page_data([make_run("erm", LABEL), make_run("ipg", LABEL, salt=1)]).looks
    assert [(look.label, len(look.images)) for look in others] == [("cat, red", 1)]  # the one test image
    assert page_data([make_run("ipg", held_out=False)]).looks[0].label == "cat, red"


def test_without_captum_there_are_no_looks_and_the_page_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipg.report.build.available", lambda: False)
    page = page_data([make_run("erm", LABEL), make_run("ipg", LABEL)])
    assert page.looks == []
    assert "pip install" in page.looks_install
    assert "This section needs captum" in render(page)


# What pairs alone tell


def test_answers_on_held_out_pairs_are_counted() -> None:
    page = page_data([make_run("erm", *BEFORE, label=LABEL), make_run("ipg", held_out=False)])
    assert page.runs[0].pairs == PairAnswers(total=6, changed=4, both_right=2)
    assert page.runs[1].pairs is None


def test_data_of_one_attribute_has_no_groups() -> None:
    run = make_run("erm", LABEL)
    table = replace(run.materials.table, attributes=("all",))
    run.outcome.result["metrics"]["groups"] = {"cat, all": {"accuracy": 0.5, "count": 4}}
    page = page_data([replace(run, materials=replace(run.materials, table=table))])
    assert not page.evidence.grouped
    assert list(page.runs[0].metrics["groups"]) == ["cat"]
    html = render(page)
    assert "These images come without group labels" in html
    assert "cat, all" not in html
    assert page_data([make_run("erm", LABEL)]).evidence.grouped


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 30, 50), (3, 256, 200)])
def test_photographs_of_any_size_make_a_page_of_modest_size(shape: tuple[int, int, int]) -> None:
    def with_images(run: Run) -> Run:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randint(0, 256, (30, *shape), generator=generator, dtype=torch.uint8)
        label, rows = torch.arange(30) % 3, torch.zeros(30, 2, dtype=torch.int64)
        table = replace(run.materials.table, images=noise[:4])
        held_out = PairSet(noise, noise.flip(3), label, rows, split="validation", builder="made")
        pairs = replace(held_out, split="train") if run.config.method == "ipg" else None
        torch.manual_seed(0 if run.config.method == "erm" else 1)
        model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * shape[0], 3))
        outcome = replace(run.outcome, model=model)
        return replace(run, materials=Materials(table, model, pairs, held_out), outcome=outcome)

    html = render(page_data([with_images(make_run("erm")), with_images(make_run("ipg"))]))
    assert html.count("<img") >= 2 * 24 + 4 * 6  # gallery; looks
    assert len(html) < 2_000_000
