"""Whether guidance helped, as the report says it: what decides, what speaks against it, and where it is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ipg.report.figures import group_bars_data
from ipg.report.verdict import Evidence, Verdict, verdict
from ipg.report.views import PairAnswers, RunView

GROUPS = ("cat, sand", "cat, grass", "rabbit, sand", "rabbit, grass")


@pytest.fixture
def told(run: Callable[..., RunView]) -> Callable[..., RunView]:
    """Makes a run of four groups."""

    def make(role: str, shares: Sequence[float | None], counts: Sequence[int] = (100,) * 4, **changes: Any) -> RunView:
        known = [(share, n) for share, n in zip(shares, counts, strict=True) if share is not None]
        metrics: Mapping[str, Any] = {
            "average": sum(share * n for share, n in known) / sum(n for _, n in known),
            "group_mean": sum(share for share, _ in known) / len(known),
            "worst_group": min(share for share, _ in known),
            "groups": {
                name: {"accuracy": share, "count": n} for name, share, n in zip(GROUPS, shares, counts, strict=True)
            },
        }
        name = "Plain training (ERM)" if role == "before" else "Guided by pairs (IPG)"
        return run(name, role, result={"metrics": metrics}, **{"disagreement": None, **changes})

    return make


def judged(*runs: RunView, others: Sequence[RunView] = (), **tested: Any) -> Verdict:
    tested = {"classes": 2, **tested}
    return verdict(runs, group_bars_data(runs), Evidence(**tested), others=others)


LEANS = (1.0, 0.0, 0.0, 1.0)


def test_a_gain_in_the_worst_group_that_costs_accuracy_on_average_is_not_called_help_alone(told) -> None:
    counts = (900, 100, 100, 900)
    both = judged(told("before", LEANS, counts), told("after", (0.6, 0.55, 0.55, 0.6), counts), classes=3)
    assert both.says.startswith("Guidance helped the worst group and did harm on average: the worst group gained 55.0")
    assert both.says.endswith("the average lost 30.5 points.")
    neither = judged(told("before", (1.0, 0.5, 0.5, 1.0), counts), told("after", (0.9, 0.5, 0.5, 0.9), counts))
    assert neither.says.startswith("No clear gain, and harm on average: the worst group stayed the same")
    chance = judged(told("before", LEANS), told("after", (0.98, 0.5, 0.5, 0.98)))
    assert chance.says.startswith("Guidance helped: ")


def test_of_groups_that_are_alike_the_one_of_most_images_counts(told) -> None:
    counts = (100, 3, 40, 100)
    said = judged(told("before", LEANS, counts), told("after", (1.0, 0.1, 0.1, 1.0), counts))
    assert said.says.startswith("No clear difference: the worst group gained 10.0 points")
    assert "of 40 test images" in said.says


def test_a_run_that_guesses_is_no_help_though_its_worst_group_gains(told) -> None:
    guessing = told("after", (0.5, 0.52, 0.5, 0.46), disagreement=0.1)
    said = judged(told("before", LEANS, disagreement=0.9), guessing)
    assert said.says == "No help: the guided run does no better than guessing, all groups counted alike."
    assert said.remarks[0] == (
        "The mean of groups is 49.5\N{NO-BREAK SPACE}% after guidance, and guessing gives 50.0\N{NO-BREAK SPACE}%: "
        "that pairs agree is no merit."
    )
    assert judged(told("before", LEANS), guessing, classes=3).says.startswith("Guidance helped")
    better = told("after", (0.6, 0.6, 0.6, 0.6))
    assert judged(told("before", LEANS), better).says.startswith("Guidance helped")


def test_a_run_that_still_leans_on_the_shortcut_is_not_said_to_guess(told) -> None:
    said = judged(told("before", LEANS, disagreement=0.9), told("after", LEANS, disagreement=0.9))
    assert said.says.startswith("No clear difference: the worst group stayed the same")
    assert not any("guessing" in remark for remark in said.remarks)


def test_where_the_shortcut_holds_in_the_test_images_pairs_decide(told) -> None:
    counts = (100, 0, 0, 100)
    plain = told("before", (1.0, None, None, 1.0), counts, disagreement=0.9)
    guided = told("after", (0.8, None, None, 0.8), counts, disagreement=0.05)
    guided = replace(guided, pairs=PairAnswers(200, 10, 180))
    said = judged(plain, guided, parted=False)
    assert said.says.startswith("Guidance helped: the share of held-out pairs with both answers right gained 70.0")
    assert "Each class is tested with one form of the shortcut alone, so that accuracy does not show its use." in (
        said.remarks
    )
    blind = judged(
        told("before", (1.0, None, None, 1.0), counts), told("after", (0.8, None, None, 0.8), counts), parted=False
    )
    assert blind.says == "Whether guidance helped cannot be told without held-out pairs."


def test_groups_without_a_test_image_are_named(told) -> None:
    counts = (100, 100, 0, 100)
    shares = (0.9, 0.1, None, 0.9)
    absent = "No test image is of the group rabbit, sand: what happens there is not measured."
    assert absent in judged(told("before", shares, counts), told("after", shares, counts)).remarks
    assert absent not in judged(told("before", LEANS), told("after", LEANS)).remarks


def test_what_differs_beside_guidance_is_named(told) -> None:
    config = {"seed": 7, "epochs": 4, "learning_rate": 1e-3, "method": "erm", "alpha": 0.1}
    plain = told("before", LEANS, config=config)
    guided = {**config, "epochs": 12, "method": "ipg", "alpha": 0.4, "pairs": "pairs", "seed": 8}
    (remark,) = [each for each in judged(plain, told("after", LEANS, config=guided)).remarks if "differ in" in each]
    assert remark.startswith("The runs differ in more than guidance: seed (7 and 8) and epochs (4 and 12).")
    begun = {**config, "model": None, "start": "runs/plain"}
    repaired = judged(replace(plain, config={**config, "model": "small_cnn"}), told("after", LEANS, config=begun))
    assert repaired.remarks[0].startswith("The runs differ in more than guidance: start (– and runs/plain).")
    alike = judged(plain, told("after", LEANS, config={**config, "method": "ipg", "every": 4}))
    assert not any("differ in" in remark for remark in alike.remarks)


def test_it_says_how_many_runs_it_rests_on(told) -> None:
    plain, guided = told("before", LEANS), told("after", (0.9,) * 4)
    assert judged(plain, guided).remarks[-1].startswith("One run of each: ")
    guided = replace(guided, name="Guided by pairs 1 (IPG)")
    others = [told("after", (0.9, 0.2, 0.9, 0.9)), replace(plain, role="reference", method="rwg")]
    assert judged(plain, guided, others=others).remarks[-1] == (
        "This is about the first run of each. Worst groups of all: guided by pairs 90.0\N{NO-BREAK SPACE}% and "
        "20.0\N{NO-BREAK SPACE}%."
    )


def test_runs_on_other_images_are_not_compared(told) -> None:
    said = judged(told("before", LEANS), told("after", (0.9,) * 4), alike=False).says
    assert said == "Whether guidance helped cannot be told: the two runs were not tested on the same images."


@pytest.mark.parametrize(
    ("disagreement", "shares", "says"),
    [
        (0.2, LEANS, "leans on the shortcut"),
        (0.1, (0.9,) * 4, "may lean on the shortcut"),
        (0.03, (0.9,) * 4, "shows no sign of the shortcut"),
        (0.03, (0.6, 0.6, 0.4, 0.4), "does no better than guessing, which needs no shortcut"),
    ],
)
def test_of_one_run_pairs_say_whether_it_leans_on_the_shortcut(
    told, disagreement: float, shares: tuple[float, ...], says: str
) -> None:
    """Of 200 pairs the intervals are 15.1 to 26.1, 6.6 to 14.9 and 1.4 to 6.4 %; 10 % are many."""
    said = judged(told("before", shares, disagreement=disagreement))
    changes = (
        f"where it alone changes, so does the answer on {100 * disagreement:.1f}\N{NO-BREAK SPACE}% of 200 held-out"
    )
    assert said == Verdict(f"Plain training {says}: {changes} pairs.")


def test_of_a_run_that_gives_one_class_or_one_without_pairs_it_says_nothing(told) -> None:
    guided = told("after", (1.0, 1.0, 0.0, 0.0))
    constant = replace(guided, result={"metrics": {**guided.metrics, "predicted_classes": 1}})
    assert judged(told("before", LEANS), constant) == judged(told("before", LEANS)) == Verdict()


def epochs(*shares: Sequence[float], auroc: float = 0.8) -> list[dict[str, Any]]:
    """A row an epoch, of 40 validation images: what shares of the classes were right, and no pair disagreed."""
    return [
        {
            "epoch": number,
            "pair_disagreement": 0.0,
            "validation": {
                "balanced": sum(right) / 2,
                "predicted_classes": 2,
                "auroc": auroc,
                "groups": {
                    f"{name}, all": {"accuracy": share, "count": 20}
                    for name, share in zip(("cat", "rabbit"), right, strict=True)
                },
            },
        }
        for number, right in enumerate(shares, start=1)
    ]


def test_what_went_wrong_in_training_stands_beneath_the_figures(told) -> None:
    before = told("before", LEANS, epochs=epochs((1.0, 0.9)))
    misplaced = told("after", (0.9, 0.9, 0.0, 0.1), epochs=epochs((1.0, 0.1), auroc=0.97))
    lost = told("after", (0.9, 0.9, 0.0, 0.1), epochs=epochs((1.0, 1.0), (0.7, 0.7)))
    for run, says in (
        (misplaced, "Guided by pairs (IPG): line misplaced. The network tells the classes apart (AUROC 97.0 % on"),
        (lost, "Guided by pairs (IPG): learnt and lost. After epoch 1 accuracy on validation images"),
    ):
        for page in (judged(before, run), judged(run)):
            (remark,) = [remark for remark in page.remarks if "ipg doctor" in remark]
            assert remark.startswith(says)
            assert remark.endswith("The command ipg doctor says what to do.")
    well = told("after", LEANS, epochs=epochs((0.7, 0.7), (0.9, 0.9)))
    for page in (judged(before, well), judged(well)):
        assert not any("ipg doctor" in remark for remark in page.remarks)
