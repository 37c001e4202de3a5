"""What is found in a log, on rows made by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evaluation.findings import found

from ipg.evaluation.doctor.diagnosis import FINDINGS, diagnose
from ipg.evaluation.doctor.log import RunLog
from ipg.evaluation.doctor.training import one_class_remedy


def name_of(check: Callable[..., Any]) -> str:
    return check.__name__.replace("_", " ").replace("held out", "held-out")


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Three epochs of a run where all is well; `changes` give a value for the last or all epochs."""
    steps = {"task_loss": [0.6, 0.3, 0.1], "alignment": 0.1, "uniformity": 0.01, "disagreement": [0.3, 0.1, 0.0],
             "scale": 0.04, "clipped": 0.0, "floored": 0.0, "margin": 0.15, "separation": [0.3, 0.4, 0.5],
             "met": 0.95}  # fmt: skip
    ends = {"pair_disagreement": [0.3, 0.1, 0.01], "train_pair_disagreement": [0.2, 0.05, 0.0], "validation": None}

    def at(values: dict[str, Any], epoch: int) -> dict[str, Any]:
        picked = {key: changes.get(key, value) for key, value in values.items()}
        return {key: value[epoch] if isinstance(value, list) else value for key, value in picked.items()}

    return [{"epoch": e + 1, "train": at(steps, e), **at(ends, e)} for e in range(3)]


def validation(
    balanced: float, predicted: int = 2, classes: int = 2, images: int = 1000, *,
    attributes: tuple[str, ...] = ("large, a", "large, b"), shares: tuple[float, ...] = (0.5, 0.5),
) -> dict[str, Any]:  # fmt: skip
    """Metrics; `shares` are the accuracies of the groups of the first class, and of the others the other way round."""
    groups = {
        f"class {k}, {attribute}": {"accuracy": share, "count": images // (2 * classes)}
        for k in range(classes)
        for attribute, share in zip(attributes, reversed(shares) if k else shares, strict=True)
    }
    return {"average": balanced, "balanced": balanced, "predicted_classes": predicted, "groups": groups}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"validation": validation(0.9)}, []),
        ({"validation": validation(0.52)}, ["validation at chance"]),
        ({"validation": validation(0.54)}, []),
        ({"validation": validation(0.10)}, []),  # a shortcut that is reversed there
        ({"validation": validation(0.5, classes=4)}, []),
        ({"validation": validation(0.26, classes=4)}, ["validation at chance"]),
        ({"validation": validation(0.5, predicted=1)}, ["one class predicted"]),
        ({"validation": validation(0.5, shares=(0.0, 1.0)), "pair_disagreement": 0.3}, ["pairs memorised"]),
        ({"validation": validation(0.5), "task_loss": 0.6, "pair_disagreement": 0.3},
         ["validation at chance", "pairs memorised"]),
        ({"validation": validation(0.5), "task_loss": 0.6, "pair_disagreement": 0.6}, ["pairs memorised"]),
        ({"validation": validation(0.65), "task_loss": 0.63}, ["task hardly learnt"]),
        ({"validation": validation(0.65), "task_loss": 0.60}, []),  # wrong labels
        ({"validation": validation(0.67), "task_loss": 0.63}, []),
        ({"validation": validation(0.49, classes=4), "task_loss": 1.26}, ["task hardly learnt"]),
        ({"validation": validation(0.49, classes=4), "task_loss": 1.24}, []),
        ({"validation": validation(0.5), "task_loss": 0.69}, ["validation at chance"]),
        ({"validation": validation(0.65), "task_loss": 0.69, "scale": 1e-4}, ["task gradient scaled to nothing"]),
        ({"pair_disagreement": 0.3}, ["pairs memorised"]),
        ({"pair_disagreement": 0.09}, []),
        ({"pair_disagreement": 0.3, "train_pair_disagreement": 0.1}, ["shortcut in use"]),
        ({"pair_disagreement": 0.3, "train_pair_disagreement": [0.3, 0.32, 0.29]}, ["disagreement never falls"]),
        ({"pair_disagreement": None}, ["held-out pairs absent"]),
        ({"scale": 1e-4}, []),  # the loss falls
        ({"scale": 1e-4, "task_loss": 0.6}, ["task gradient scaled to nothing"]),
        ({"scale": 0.1, "task_loss": 0.6}, []),
        ({"clipped": [0.3, 0.8, 0.9]}, ["clip on most steps"]),
        ({"clipped": [0.3, 0.3, 0.9]}, []),
        ({"clipped": 0.9, "floored": [0.3, 0.8, 0.9]}, ["floor on most steps"]),
        ({"met": [0.0, 0.0, 0.01], "uniformity": 0.07}, ["margin never met"]),
        ({"met": [0.0, 0.0, 0.1]}, []),
        ({"met": 0.0, "margin": 0.0, "uniformity": 0.0}, []),
        ({"met": 1.0, "separation": [0.9, 0.6, 0.3]}, []),  # the loss falls
        ({"met": 1.0, "separation": [0.9, 0.6, 0.3], "task_loss": 0.6}, ["margin always met"]),
        ({"separation": 5.0}, ["margin far below scale"]),
        ({"separation": [4.0, 5.0, 6.0]}, []),
        ({"separation": [0.02, 0.1, 0.2]}, ["margin far above scale"]),
        ({"separation": 0.0, "met": 1.0, "uniformity": 0.0}, []),  # pairs of one label
        ({"separation": [0.1, 1e-5, 1e-6], "alignment": 1e-6, "uniformity": 0.07}, ["representation collapsed"]),
        ({"task_loss": [0.6, 0.5, math.nan]}, ["loss not finite"]),
    ],
)  # fmt: skip
def test_where_the_limits_are(changes: dict[str, Any], expected: list[str]) -> None:
    assert list(found(RunLog({"method": "ipg"}, rows(**changes)))) == expected


@pytest.mark.parametrize(
    ("name", "own", "says"),
    [
        ("margin never met", 1000.0, "Lower the margin (now 1000.0), e.g. to 0.85x."),
        ("margin never met", "2x", "Lower the margin (now 2x), e.g. to 0.85x."),
        ("margin never met", "0.85x", "Lower the margin (now 0.85x), e.g. to 0.425x."),
        ("margin never met", "0.5x", "Lower the margin (now 0.5x), e.g. to 0.25x."),
        ("margin always met", 0.01, "Raise the margin (now 0.01), e.g. to 0.85x."),
        ("margin always met", "0.5x", "Raise the margin (now 0.5x), e.g. to 0.85x."),
        ("margin always met", "0.85x", "Raise the margin (now 0.85x), e.g. to 1.7x."),
        ("margin far below scale", 0.01, "Give the margin relative to the distances, e.g. --margin 0.85x, and"),
        ("margin far below scale", "0.01x", "Use a larger multiple (now 0.01x), e.g. --margin 0.85x, and"),
        ("margin far above scale", 9.0, "Give the margin relative to the distances, e.g. --margin 0.85x."),
        ("margin far above scale", "0.85x", "Use a smaller multiple (now 0.85x), e.g. --margin 0.425x."),
    ],
)
def test_another_margin_lies_the_way_it_is_to_go(name: str, own: float | str, says: str) -> None:
    logged: dict[str, dict[str, Any]] = {
        "margin never met": {"met": 0.0, "uniformity": 0.07},
        "margin always met": {"met": 1.0, "separation": [0.9, 0.6, 0.3], "task_loss": 0.6},
        "margin far below scale": {"separation": 5.0},
        "margin far above scale": {"separation": [0.02, 0.1, 0.2]},
    }
    log = RunLog({"method": "ipg", "margin": own}, rows(**logged[name]))
    assert found(log)[name].remedy.startswith(says)


@pytest.mark.parametrize(
    ("balanced", "disagreement", "config", "lost"),
    [
        ([0.5, 1.0, 0.5], 0.0, {}, "epoch 2"),
        ([0.9, 0.6, 0.66], 0.0, {}, None),
        ([0.9, 0.6, 0.64], 0.0, {}, "epoch 1"),
        ([0.9, 0.9, 0.9], [0.0, 0.1, 0.4], {}, "epoch 1"),
        ([1.0, 0.9, 0.5], [1.0, 0.9, 0.0], {}, None),  # where the shortcut holds in the validation images, too
        ([0.5, 1.0, 0.5], None, {}, None),
        ([0.5, 1.0, 0.5], 0.0, {"selection": "pairs"}, None),
    ],
)
def test_what_was_learnt_and_lost(balanced: list[float], disagreement: Any, config: Any, lost: str | None) -> None:
    told = rows(validation=[validation(share) for share in balanced], pair_disagreement=disagreement)
    finding = found(RunLog(config, told)).get("learnt and lost")
    assert (finding is not None) == (lost is not None)
    if finding is not None:
        assert f"After {lost} accuracy" in finding.meaning
        assert finding.severity == ("error" if balanced[-1] == 0.5 else "warning")
        assert "--selection pairs" in finding.remedy
    assert "learnt and lost" not in found(RunLog(config, told, unfinished=True))
    assert "learnt and lost" not in found(RunLog(config, told, {"kind": "CollapseError", "step": 9}))  # keeps no epoch


@pytest.mark.parametrize(
    ("changes", "images", "config", "expected"),
    [
        ({}, 1000, {}, ["line misplaced"]),
        ({"balanced": 0.51}, 1000, {}, ["line misplaced"]),  # near chance, and for this reason
        ({"balanced": 0.51, "auroc": 0.89}, 1000, {}, ["validation at chance"]),
        ({"auroc": None}, 1000, {}, []),
        ({"predicted_classes": 1}, 1000, {}, ["one class predicted"]),
        ({}, 1000, {"decision": "balanced"}, []),
        ({}, 1000, {"decision": "argmax"}, ["line misplaced"]),
        ({}, 20, {}, ["line misplaced"]),
        ({}, 18, {}, ["validation at chance"]),  # nine images of a class say nothing
    ],
)
def test_a_line_that_is_misplaced(
    changes: dict[str, Any], images: int, config: dict[str, Any], expected: list[str]
) -> None:
    """One class is always right and the other never, though the network ranks them well."""
    groups = {name: {"accuracy": share, "count": images // 2} for name, share in (("a, all", 0.0), ("b, all", 1.0))}
    told = {"average": 0.6, "balanced": 0.6, "predicted_classes": 2, "groups": groups, "auroc": 0.95} | changes
    found_there = found(RunLog({"method": "ipg", **config}, rows(validation=told)))
    assert list(found_there) == expected
    if expected == ["one class predicted"]:
        assert "--decision balanced, which moves the line" in found_there["one class predicted"].remedy
    if expected == ["line misplaced"]:
        assert f"of the {images // 2} images of one class only 0.0 % are right, where guessing gives 50.0 %" in (
            found_there["line misplaced"].meaning
        )
        assert "--decision balanced" in found_there["line misplaced"].remedy


@pytest.mark.parametrize(("share", "expected"), [(0.0, ["line misplaced"]), (0.2, []), (0.5, [])])
def test_a_line_among_three_classes_is_misplaced_below_a_third(share: float, expected: list[str]) -> None:
    names = ("a, x", "a, y", "b, x", "b, y", "c, x", "c, y")
    accuracy: list[float | None] = [share, None, 1.0, None, None, 1.0]
    counts = [0 if value is None else 20 for value in accuracy]
    groups = {
        name: {"accuracy": right, "count": count} for name, right, count in zip(names, accuracy, counts, strict=True)
    }
    told = {"average": 0.7, "balanced": (share + 2) / 3, "predicted_classes": 3, "groups": groups, "auroc": 0.97}
    assert list(found(RunLog({}, rows(validation=told)))) == expected


def test_who_has_lost_what_was_learnt_is_not_told_to_train_longer() -> None:
    epochs = [validation(0.5), validation(1.0), validation(0.5, predicted=1)]
    log = RunLog({"learning_rate": 0.01}, rows(validation=epochs, pair_disagreement=0.0, task_loss=0.69))
    assert list(found(log)) == ["learnt and lost"]
    assert found(log)["learnt and lost"].meaning == (
        "After epoch 2 accuracy on validation images, averaged over classes, was 100.0 % with 0.0 % of the held-out "
        "pairs disagreeing; after epoch 3, which is kept, every image gets the same class."
    )
    assert one_class_remedy(log) == found(log)["learnt and lost"].remedy
    guessing = RunLog({}, rows(validation=[*epochs[:2], validation(0.5)], pair_disagreement=0.0, task_loss=0.69))
    assert list(found(guessing)) == ["learnt and lost"]


@pytest.mark.parametrize("name", ["one class predicted", "validation at chance"])
def test_who_has_hardly_trained_is_told_so_first(name: str) -> None:
    values = {"validation": validation(0.5, predicted=1 if name == "one class predicted" else 2), "task_loss": 0.69}
    for last, few in ((18, True), (99, True), (100, False)):
        logged = [row | {"step": last * (n + 1) // 3} for n, row in enumerate(rows(**values))]
        remedy = found(RunLog({"epochs": 3, "batch": 128, "learning_rate": 0.01}, logged))[name].remedy
        short = f"{last} iterations are few: train longer (more --epochs than 3, or --from this run's folder to go on "
        assert remedy.startswith(short) == few
        assert remedy.endswith("smaller --batch (now 128), or change the learning rate (now 0.01).") == few
        assert "--warmup" not in remedy or not few


def plain(**changes: Any) -> RunLog:
    """A run without guidance."""
    logged = [row | {"train": {"task_loss": row["train"]["task_loss"]}} for row in rows(**changes)]
    return RunLog({"method": "erm", "epochs": 3}, [row | {"train_pair_disagreement": None} for row in logged])


def test_a_shortcut_that_is_broken_in_the_validation_images() -> None:
    """Half the images are wrong, all of them in two groups: the task is learnt, by the shortcut."""
    broken = validation(0.5, shares=(0.0, 1.0), images=60)
    assert list(found(plain(validation=broken, pair_disagreement=1.0))) == ["shortcut in use"]
    log = plain(validation=broken, pair_disagreement=None)
    assert list(found(log)) == ["validation at chance", "held-out pairs absent"]
    finding = found(log)["validation at chance"]
    assert finding.severity == "warning"
    assert "since the shortcut is broken there: groups of one class differ by 100.0 %" in finding.meaning
    assert finding.remedy == "Train with --method ipg, which pairs guide."
    few = validation(0.5, shares=(0.0, 1.0), images=36)  # nine a group
    assert found(plain(validation=few, pair_disagreement=None))["validation at chance"].severity == "error"


def test_what_is_learnt_by_heart_is_not_told_to_learn() -> None:
    finding = found(plain(validation=validation(0.5)))["validation at chance"]
    assert finding.severity == "error"
    assert finding.meaning.endswith("guessing gives 50.0 %, though the training images are learnt (task loss 0.1).")
    assert "train longer" not in finding.remedy


def test_plain_training_is_given_no_advice_on_guidance() -> None:
    for name, values in (
        ("validation at chance", validation(0.5)),
        ("one class predicted", validation(0.5, predicted=1)),
        ("task hardly learnt", validation(0.6)),
    ):
        changes: dict[str, Any] = {"validation": values, "task_loss": 0.69}
        remedy = found(plain(**changes))[name].remedy
        assert "alpha" not in remedy
        assert "erm" not in remedy
        guided = RunLog({"method": "ipg", "alpha": 0.1}, rows(**changes))
        assert "raise alpha" in found(guided)[name].remedy


@pytest.mark.parametrize("steps", [12, 1200])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("one class predicted", validation(0.5, predicted=1)),
        ("validation at chance", validation(0.5)),
        ("task hardly learnt", validation(0.6)),
    ],
)
def test_who_takes_steps_that_are_too_large_is_not_told_to_train_longer(
    name: str, values: dict[str, Any], steps: int
) -> None:
    def remedy(loss: float) -> str:
        logged = [row | {"step": steps * row["epoch"] // 3} for row in rows(validation=values, task_loss=loss)]
        return found(RunLog({"method": "ipg", "learning_rate": 1.0, "epochs": 3}, logged))[name].remedy

    too_large = (
        "Lower the learning rate (now 1.0) or warm it up (--warmup 300): the task loss is 32.3, where guessing has"
    )
    assert remedy(32.289) == f"{too_large} 0.693."
    assert remedy(1.05).startswith("Lower the learning rate")
    assert "longer" in remedy(1.03)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("validation at chance", validation(0.5)),
        ("one class predicted", validation(0.5, predicted=1)),
        ("task hardly learnt", validation(0.6)),
    ],
)
def test_who_forgot_the_weights_of_a_network_is_told_first(name: str, values: dict[str, Any]) -> None:
    def remedy(**config: Any) -> str:
        return found(RunLog({"method": "erm", **config}, rows(validation=values, task_loss=0.69)))[name].remedy

    first = "Give resnet50, which started from random weights, --weights pretrained or --weights FILE; or "
    assert remedy(model="resnet50").startswith(first)
    for config in (
        {"model": "resnet50", "weights": "pretrained"},
        {"model": "resnet50", "start": "runs/plain"},
        {"model": "small_cnn"},
        {"model": "bcos_resnet50"},
        {"model": "OwnNetwork"},
        {"model": None},
    ):
        assert "--weights" not in remedy(**config), config


def test_one_class_says_nothing_of_pairs_that_are_not_there() -> None:
    constant = validation(0.5, predicted=1)
    for share, says in ((None, "after epoch 3."), (0.0, "after epoch 3, so that pairs agree for no merit.")):
        finding = found(plain(validation=constant, pair_disagreement=share))["one class predicted"]
        assert finding.meaning.endswith(says)


def test_who_leans_on_the_shortcut_is_not_told_to_raise_alpha() -> None:
    changes = {"validation": validation(0.6), "task_loss": 0.69, "pair_disagreement": 0.3}
    assert "alpha" not in found(RunLog({"alpha": 0.1}, rows(**changes)))["task hardly learnt"].remedy


def test_a_run_that_goes_on_may_yet_learn() -> None:
    changes = {"validation": validation(0.6), "task_loss": 0.69}
    assert list(found(RunLog({"epochs": 3}, rows(**changes)))) == ["task hardly learnt"]
    assert list(found(RunLog({"epochs": 4}, rows(**changes)))) == []


@pytest.mark.parametrize(
    ("attributes", "classes", "known"),
    [
        (("red", "blue"), 3, None),
        (("blue, dark", "red"), 2, None),
        (("red", "blue, dark"), 2, None),
        (("red", "blue, dark"), 1, None),
        (("dark, red", "light, red"), 2, 2),  # as well four classes and one attribute
    ],
)
def test_classes_are_counted_whatever_they_are_called(
    attributes: tuple[str, ...], classes: int, known: int | None
) -> None:
    row = {"validation": validation(0.5, classes=classes, attributes=attributes)}
    log = RunLog({}, [row], classes=known)
    assert [len(groups) for groups in log.groups] == [2] * classes
    assert RunLog({}).groups == []


def test_batch_norm_limits() -> None:
    for gap, names in ((0.9, []), (1.1, ["batch norm drifts"])):
        assert list(found(RunLog({}, [row | {"batch_norm_gap": gap} for row in rows()]))) == names


def test_one_epoch_is_too_few_to_say_that_nothing_moves() -> None:
    assert list(found(RunLog({}, rows(scale=1e-4, met=1.0, task_loss=0.6, pair_disagreement=0.0)[:1]))) == []


@pytest.mark.parametrize(("restarts", "times"), [(1, "once, with"), (2, "2 times, each with")])
def test_a_run_that_began_again_is_told_of_with_its_rate(restarts: int, times: str) -> None:
    healthy = rows()
    begun = [{**row, "restarts": restarts} for row in healthy]
    assert "run begun again" not in found(RunLog({"learning_rate": 4e-4}, healthy))
    finding = found(RunLog({"learning_rate": 4e-4}, begun))["run begun again"]
    assert finding.severity == "note"
    assert f"began again {times} half the learning rate, {4e-4 / 2**restarts:g}" in finding.meaning


def test_of_a_run_that_collapsed_to_the_end_nothing_good_is_said() -> None:
    """Whatever an epoch of an earlier attempt left in the log."""
    failure = {"kind": "CollapseError", "message": "why", "step": 64, "restarts": 3}
    for logged in ([], [{**row, "restarts": 1} for row in rows()]):
        log = RunLog({"learning_rate": 4e-4}, logged, failure)
        assert "run begun again" not in found(log)
        finding = found(log)["representation collapsed"]
        assert "also after it had begun again 3 times" in finding.meaning
        assert "Lower the learning rate (the last attempt had 5e-05)" in finding.remedy


def test_what_a_collapse_brings_about_is_not_found_beside_it() -> None:
    """One class for all images, and distances far below the margin: their remedies contradict that of the cause."""
    logged = rows(
        separation=[0.02, 1e-5, 1e-6], alignment=1e-6, uniformity=0.07, validation=validation(0.5, predicted=1)
    )
    assert list(found(RunLog({"method": "ipg", "margin": "0.85x"}, logged))) == ["representation collapsed"]


def test_the_worst_comes_first() -> None:
    log = RunLog({}, rows(pair_disagreement=None, separation=5.0, scale=1e-4, task_loss=0.6))
    assert [finding.severity for finding in diagnose(log)] == ["error", "warning", "note"]


def test_names_are_those_of_the_functions_and_of_the_page(repo_root: Path) -> None:
    page = (repo_root / "docs" / "doctor.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \*\*(.+?)\*\* \|", page, re.MULTILINE)
    assert listed == [name_of(check) for check in FINDINGS]
    assert len(set(listed)) == len(FINDINGS)
    for check in FINDINGS:
        assert f'"{name_of(check)}"' in Path(check.__code__.co_filename).read_text(encoding="utf-8")
