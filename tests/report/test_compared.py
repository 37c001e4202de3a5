"""A comparison as its page says it: figures by hand, caveats by case, and nothing unescaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from report.reader import Reader

from ipg.config import CHOICES
from ipg.experiments.compare import Facts
from ipg.methods.base import NEEDS
from ipg.report.caveats import GIVEN, SELECTIONS, caveats
from ipg.report.compare_page import accuracy_dots, difference_dots, render_comparison, write_comparison
from ipg.report.compared import Comparison, MethodRows, series_of

GROUPS = {"cat, sand": 400, "cat, grass": 40, "dog, sand": 0, "dog, grass": 300}
FOOT = "Invariance Pair Guidance. This page is one file and loads nothing."
ORIGIN = {
    "hardware": "a machine",
    "versions": {"ipg": "1", "python": "3.99", "torch": "9.9"},
    "commit": "0123456789abcdef",
    "date": "2026-01-01",
}


def row(worst: float | None, average: float, *, seconds: float = 2.0, **changes: Any) -> dict[str, Any]:
    shares = {"cat, sand": 1.0, "cat, grass": worst, "dog, sand": None, "dog, grass": average}
    return {
        "metrics": {
            "average": average,
            "worst_group": worst,
            "group_mean": 0.5,
            "groups": {name: {"accuracy": share, "count": GROUPS[name]} for name, share in shares.items()},
            "pair_disagreement": 0.25,
        },
        "predictions": f"{worst}{average}",
        "seconds": seconds,
        **ORIGIN,
        **changes,
    }


def method(name: str, rows: Mapping[int, Any], **changes: Any) -> MethodRows:
    (series,) = series_of([name])
    return MethodRows(name, name.upper(), series, rows, **{"failures": {}, **changes})


def facts(**changes: Any) -> Facts:
    fields: dict[str, Any] = {
        "name": "pets",
        "classes": ("cat", "dog"),
        "attributes": ("sand", "grass"),
        "training": {**GROUPS, "cat, grass": 0},
        "tested": GROUPS,
        "validated": {**GROUPS, "dog, grass": 0},
        "pairs": 40,
        "held_out": 12,
        "drawn": False,
        "digests": {},
    }
    return Facts(**{**fields, **changes})


def make(*methods: MethodRows, seeds: int = 3, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "facts": facts(),
        "methods": methods,
        "seeds": list(range(seeds)),
        "selection": "last",
        "given": {},
        "settings": {"epochs": 6, "size": None},
        "workers": 1,
        "command": "ipg compare",
    }
    return Comparison(**{**fields, **changes})


@pytest.fixture
def plain() -> MethodRows:
    return method("erm", {0: row(0.1, 0.6), 1: row(0.2, 0.7), 2: row(0.3, 0.8)})


@pytest.fixture
def guided() -> MethodRows:
    return method("ipg", {0: row(0.8, 0.8, seconds=3), 1: row(0.9, 0.7, seconds=3), 2: row(0.7, 0.9, seconds=6)})


# -- figures -----------------------------------------------------------------------------------------------------------


def test_spreads_differences_and_times_by_hand(plain: MethodRows, guided: MethodRows) -> None:
    found = make(guided, plain)
    assert found.reference is plain
    assert found.others == [guided]
    worst = guided.spread("worst_group")
    assert worst is not None
    assert (worst.mean, worst.deviation, worst.count) == pytest.approx((0.8, 0.1, 3))
    against = found.against(guided, "worst_group")
    assert against is not None
    assert against.values == pytest.approx((0.7, 0.7, 0.4))
    assert against.difference.mean == pytest.approx(0.6)
    assert against.p == 0.25
    times = found.times(guided)
    assert times is not None
    assert times.mean == pytest.approx((1.5 + 1.5 + 3) / 3)  # seed by seed
    assert guided.spread("auroc") is None  # rows from before it was measured
    assert guided.values("groups/cat, grass") == {0: 0.8, 1: 0.9, 2: 0.7}
    assert guided.spread("groups/dog, sand") is None


def test_times_are_those_of_trials_that_had_their_gpu_to_themselves(plain: MethodRows, guided: MethodRows) -> None:
    plain.rows[0]["sharing"] = guided.rows[1]["sharing"] = 2
    times = make(guided, plain).times(guided)
    assert times is not None
    assert (times.mean, times.count) == (3, 1)


def test_times_are_those_of_trials_that_did_not_begin_a_process_where_there_are_others(
    plain: MethodRows, guided: MethodRows
) -> None:
    plain.rows[0]["first"] = plain.rows[1]["first"] = True
    times = make(guided, plain).times(guided)
    assert times is not None
    assert (times.mean, times.count) == (3, 1)
    plain.rows[2]["first"] = True
    times = make(guided, plain).times(guided)
    assert times is not None
    assert (times.mean, times.count) == (2, 3)  # better than none


def test_seeds_that_one_method_lacks_are_left_out_of_differences(plain: MethodRows) -> None:
    half = method("ipg", {1: row(0.9, 0.9)}, failures={0: "died", 2: "died"})
    found = make(plain, half)
    against = found.against(half, "worst_group")
    assert against is not None
    assert against.values == pytest.approx((0.7,))
    assert against.p is None
    assert make(plain, method("ipg", {})).against(method("ipg", {}), "average") is None


def test_without_plain_training_the_first_is_the_reference_and_time_has_none(guided: MethodRows) -> None:
    other = method("jtt", guided.rows)
    found = make(other, guided)
    assert found.reference is other
    assert found.times(guided) is None
    assert "Time is not compared" in " ".join(caveats(found))


def test_colours() -> None:
    assert series_of(["jtt", "ipg", "erm", "dfr"]) == ["other-1", "after", "before", "other-2"]
    assert series_of([f"m{n}" for n in range(8)])[6] == "other-1"


def test_dots_show_every_seed_of_every_group_with_images(plain: MethodRows, guided: MethodRows) -> None:
    data = accuracy_dots(make(plain, guided))
    assert [(head, remark) for head, remark, _ in data.blocks] == [
        ("cat, sand", "n = 400"),
        ("cat, grass", "n = 40"),
        ("dog, grass", "n = 300"),
    ]
    assert data.blocks[1][2][1].values == (0.8, 0.9, 0.7)
    alone = accuracy_dots(make(plain, facts=facts(attributes=("none",), tested={"cat, none": 3, "dog, none": 4})))
    assert [head for head, *_ in alone.blocks] == ["cat", "dog"]


def test_the_scale_of_differences_holds_them_and_zero(plain: MethodRows, guided: MethodRows) -> None:
    data = difference_dots(make(plain, guided))
    assert (data.low, data.high) == pytest.approx((-0.1, 0.8))
    assert [head for head, *_ in data.blocks] == ["Worst group", "Average"]
    equal = difference_dots(make(plain, method("ipg", plain.rows)))
    assert (equal.low, equal.high) == pytest.approx((-0.01, 0.01))
    assert difference_dots(make(plain)).blocks == ()


# -- caveats -----------------------------------------------------------------------------------------------------------


def said(comparison: Comparison) -> str:
    return " ".join(caveats(comparison))


def test_caveats_of_an_ordinary_comparison(plain: MethodRows, guided: MethodRows) -> None:
    text = said(make(plain, guided))
    assert "3 seeds are few" in text
    assert "p cannot be below 0.25" in text
    assert "No training image is of the group cat, grass or dog, sand" in text
    assert "No test image is of the group dog, sand:" in text
    assert "Small test groups: cat, grass (40 images). One image is 2.5 points" in text
    assert "no validation image and no group label had a say" in text
    assert "IPG is given 40 pairs of images." in text
    assert "All methods have default settings" in text
    assert "of 12 pairs that no method was trained on" in text
    assert "the same images" in text


def test_agreement_on_pairs_is_no_merit_of_runs_that_guess(plain: MethodRows) -> None:
    """The means of groups are 50 %, as guessing gives; those of plain training, whose pairs disagree, too."""
    told = [row(0.5, 0.5), row(0.5, 0.5), row(0.5, 0.9)]
    for each, mean, disagreement in zip(told, (0.5, 0.5, 0.8), (0.0, 0.3, 0.0), strict=True):
        each["metrics"] |= {"group_mean": mean, "pair_disagreement": disagreement}
    idle = "does no better than guessing in 1 of 3 runs, all groups counted alike: that its pairs agree there is no"
    text = said(make(plain, method("ipg", dict(enumerate(told)))))
    assert f"IPG {idle} merit." in text
    assert text.count("guessing") == 1


def test_nothing_is_said_of_pairs_that_there_are_not(plain: MethodRows) -> None:
    told = [row(0.0, 0.5), row(0.0, 0.5), row(0.0, 0.5)]
    for each in told:
        each["metrics"] |= {"group_mean": 0.5, "pair_disagreement": None}
    text = said(make(plain, method("jtt", dict(enumerate(told))), facts=facts(held_out=0)))
    assert "guessing" not in text
    assert "two answers" not in text


def test_an_average_of_what_pairs_change_is_no_merit(plain: MethodRows) -> None:
    """Where a shortcut mostly fails in the test images, who takes it the other way round is mostly right."""
    told = [row(0.0, average) for average in (0.9, 0.9, 0.1)]
    for each, disagreement in zip(told, (1.0, 0.5, 1.0), strict=True):
        each["metrics"] |= {"pair_disagreement": disagreement}
    text = said(make(plain, method("lff", dict(enumerate(told)))))
    assert "LFF gives nearly every pair two answers in 1 of 3 runs: it goes by what pairs change" in text
    assert "ERM gives" not in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"selection": "worst_group"}, "every method profited from their group labels"),
        ({"selection": "pairs"}, "agreement on held-out pairs was kept: no group label"),
        ({"selection": "training_environments"}, "rewards a shortcut"),
        ({"given": {"epochs": 2, "jtt.copies": "5"}}, "Settings that you gave: epochs 2, jtt.copies 5."),
        ({"workers": 2}, "with 2 runs at once"),
        ({}, "Plain training took 2.0 s a run: ratios of runs as short as that"),
        ({"facts": facts(drawn=True)}, "Every seed draws its own"),
        ({"facts": facts(remarks=["the penalty is late"])}, " The penalty is late."),
        ({"facts": facts(held_out=0)}, "There are no held-out pairs"),
        ({"facts": facts(attributes=("none",))}, "come without group labels"),
        ({"seeds": 1}, "One seed: there is no telling"),
        ({"seeds": 12}, "percentile bootstrap over 12 seeds"),
    ],
)
def test_caveats_by_case(plain: MethodRows, guided: MethodRows, changes: dict[str, Any], expected: str) -> None:
    assert expected in said(make(plain, guided, **changes))


def test_caveats_on_what_methods_are_given(plain: MethodRows) -> None:
    text = said(make(plain, method("groupdro", plain.rows), method("dfr", plain.rows), method("irm", plain.rows)))
    assert "GROUPDRO is given group labels of the training images." in text
    assert "DFR is given group labels of the validation images" in text
    assert "IRM is given the environments" in text
    assert "3 methods are compared with ERM" in text
    assert "methods are compared" not in said(make(plain, method("groupdro", {}), method("irm", {}), seeds=1))  # no p
    assert "GROUPDRO, DFR and IRM give every test image the same class as ERM does, with every seed" in text
    assert "No validation image is of the group dog, sand or dog, grass, which DFR therefore does not see." in text
    alone = said(make(plain, method("groupdro", plain.rows), selection="worst_group"))
    assert "GROUPDRO gives every test image the same class as ERM does" in alone
    assert "dog, grass, which the choice of the epoch therefore does not see." in alone
    assert "No validation image is of the group" not in said(make(plain, method("groupdro", plain.rows)))


@pytest.mark.parametrize(("name", "options"), [("dkt", {"policy": "learned"}), ("eva_e", {"judge": "worst_group"})])
def test_caveats_on_options_that_use_validation_groups(plain: MethodRows, name: str, options: dict[str, str]) -> None:
    expected = f"{name.upper()} is given group labels of the validation images to fit to."
    assert expected in said(make(plain, method(name, plain.rows, options=options)))
    assert expected not in said(make(plain, method(name, plain.rows, options={"policy": "fixed", "judge": "average"})))


def test_caveats_on_how_often_pairs_are_drawn(plain: MethodRows) -> None:
    methods = [plain, *(method(name, plain.rows) for name in ("ipg", "cggd", "pair_augmentation"))]
    text = said(make(*methods, settings={"every": 4}))
    expected = (
        "IPG and CGGD draw pairs in one of 4 iterations, PAIR_AUGMENTATION in every one: --every 1 gives all as many."
    )
    assert expected in text
    assert "IPG draws pairs more rarely while they agree" in said(
        make(plain, methods[1], methods[3], settings={"every": "auto"})
    )
    own = method("cggd", plain.rows, options={"every": 2})
    text = said(make(plain, methods[1], own, methods[3], settings={"every": 1}))
    assert "CGGD draws pairs in one of 2 iterations, PAIR_AUGMENTATION in every one" in text
    assert "IPG draws pairs" not in text
    for few, every in ((methods, 1), (methods[:3], 4), ([plain, methods[3]], 4)):
        assert "gives all as many" not in said(make(*few, settings={"every": every}))


def test_caveats_on_classes_that_are_weighted(plain: MethodRows) -> None:
    methods = [plain, method("groupdro", plain.rows), method("lff", plain.rows)]
    expected = "Classes of few images weigh more in the loss, but not in that of GROUPDRO and LFF."
    assert expected in said(make(*methods, settings={"class_weighted": True}))
    for few, changes in (
        (methods, {"settings": {"class_weighted": False}}),
        (methods[1:], {"settings": {"class_weighted": True}}),
        (methods, {"settings": {"class_weighted": True}, "facts": facts(training=dict.fromkeys(GROUPS, 7))}),
    ):
        assert "weigh more" not in said(make(*few, **changes))


def test_all_that_methods_may_need_has_words() -> None:
    assert set(GIVEN) == set(NEEDS)
    assert set(SELECTIONS) == set(CHOICES["selection"])


def test_a_method_with_one_class_is_marked_at_its_card_and_its_line(plain: MethodRows) -> None:
    flat = row(1.0, 0.0)
    page = render_comparison(make(plain, method("ipg", {0: flat, 1: flat, 2: row(0.9, 0.9)})))
    mark = '<a class="mark" href="#caveats">⚠ one class in 2 of 3 runs</a>'
    assert page.count(mark) == 2
    before, _, after = page.partition('<section id="results">')
    assert before.partition('<div class="name">IPG</div>')[2].count(mark) == 1
    assert f"IPG {mark}</th>" in after
    assert 'id="caveats"' in after
    assert "⚠" not in render_comparison(make(plain))


def test_caveats_on_failed_and_collapsed_runs(plain: MethodRows) -> None:
    one_class = {"cat, sand": 1.0, "cat, grass": 1.0, "dog, sand": None, "dog, grass": 0.0}
    groups = {name: {"accuracy": share, "count": GROUPS[name]} for name, share in one_class.items()}
    lost = row(0.0, 0.5)
    lost["metrics"]["groups"] = groups
    text = said(make(plain, method("ipg", {0: lost, 2: row(0.5, 0.5)}, failures={1: "died"})))
    assert "IPG has no result for 1 seed of 3 (1)" in text
    assert "IPG gives every image the same class in 1 of 2 runs. It is counted; its pairs agree because" in text
    lost["metrics"]["pair_disagreement"] = None
    assert "in 2 of 2 runs. They are counted. " in said(make(plain, method("ipg", {0: lost, 1: lost})))
    assert "broke off" not in text


def test_caveats_on_runs_that_began_again(plain: MethodRows) -> None:
    begun = row(0.5, 0.5) | {"restarted": 2}
    text = said(make(plain, method("ipg", {0: begun, 1: row(0.5, 0.5)})))
    assert "IPG collapsed and began again in 1 of 2 runs, each time with half the learning rate." in text
    assert "ERM collapsed" not in text
    in_vain = said(make(plain, method("ipg", {0: begun | {"collapse": "the model has collapsed"}})))
    assert "began again" not in in_vain
    assert "IPG broke off in 1 of 1 run" in in_vain


def test_caveats_on_runs_that_broke_off(plain: MethodRows) -> None:
    """One left a network to measure, the other did not."""
    stood, lost = (row(0.5, 0.5) | {"collapse": "the loss is NaN"} for _ in range(2))
    text = said(make(plain, method("jtt", {0: stood, 1: row(0.5, 0.5)})))
    assert "JTT broke off in 1 of 2 runs: training had collapsed, or the loss was no longer a number." in text
    assert "Their networks are counted as they stood." in text
    lost["metrics"] = {**dict.fromkeys(lost["metrics"]), "groups": {}}
    found = method("jtt", {0: stood, 1: lost})
    assert "all but 1 that broke off before there was a network to measure: figures are of the others." in said(
        make(plain, found)
    )
    assert found.values("average") == {0: 0.5}


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_says_it_all(plain: MethodRows, guided: MethodRows, tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "page.html", make(plain, guided))
    page = path.read_text(encoding="utf-8")
    text = Reader(page).text
    assert "2 methods on pets" in text
    assert "ERM, IPG, each trained with the same 3 seeds on 700 images and tested on 740." in text
    assert "● IPG 80.0 % 70.0–90.0 80.0 % 70.0–90.0 – 50.0 %" in text
    assert "2.00 1.50–3.00" in text
    assert "+60.0 40.0–70.0 0.25 3" in text
    assert "a machine; torch 9.9, Python 3.99; commit 0123456" in text
    assert all(sentence in text for sentence in caveats(make(plain, guided)))
    assert "size" not in text.partition("Settings of all methods")[2]
    assert page.count("<svg") == 2
    assert not any(word in page for word in ("http:", "https:", "<script"))
    assert render_comparison(make(plain, guided)) == page


def test_many_methods_need_no_cards(plain: MethodRows) -> None:
    names = ("erm", "ipg", "jtt", "dfr", "lff")
    assert '<ul class="cards' not in render_comparison(make(*(method(name, plain.rows) for name in names)))


def test_data_without_groups_speaks_of_classes(plain: MethodRows, guided: MethodRows) -> None:
    counts = {"cat, sand": 400, "dog, grass": 300}
    page = render_comparison(make(plain, guided, facts=facts(attributes=("x",), training=counts, tested=counts)))
    assert "Worst class" in page
    assert "Mean of classes" in page
    assert "Worst group" not in page


def test_failed_runs_are_listed_and_nothing_is_unescaped(plain: MethodRows) -> None:
    hostile = '</td><script>alert("1")</script><img src=x onerror=alert(1)>'
    lost = MethodRows("ipg", hostile, "after", {}, {0: hostile, 1: hostile, 2: hostile})
    groups = {f"{hostile}, {hostile}": 3}
    bad = facts(name=hostile, attributes=(hostile, "b"), training=groups, tested=groups)
    comparison = make(plain, lost, facts=bad, given={hostile: hostile}, settings={hostile: hostile}, command=hostile)
    page = Reader(render_comparison(comparison))
    assert "script" not in page.tags
    assert page.handlers == []
    assert "img" not in page.tags
    assert page.text.count('alert("1")') > 8
    assert "Runs without a result" in page.text


def test_the_options_of_every_method_are_told(plain: MethodRows) -> None:
    jtt = method("jtt", plain.rows, options={"first_epochs": 1, "copies": 20})
    text = Reader(
        render_comparison(make(plain, jtt, method("gals", plain.rows, options={"weight": 1e4, "clip": ""})))
    ).text
    assert text.endswith("Options of each method's own JTT first_epochs 1, copies 20 GALS weight 10000 " + FOOT)
    assert "Options of each" not in Reader(render_comparison(make(plain))).text


def test_settings_are_told_as_on_the_page_of_a_report(plain: MethodRows) -> None:
    own = {
        "pairs": "mine",
        "pair_builder": "recolored",
        "held_out_pairs": 200,
        "flip": False,
        "crop": 1.0,
        "size": None,
    }
    text = render_comparison(make(plain, settings=own))
    shown = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    assert shown == [("crop", "1"), ("flip", "no"), ("pairs", "mine")]  # these pairs are not made by a builder
    text = render_comparison(make(plain, settings=own | {"pairs": 40}))
    assert ("pair_builder", "recolored") in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
