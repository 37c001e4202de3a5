"""The model card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipg.classifier import Classifier
from ipg.config import RunConfig
from ipg.export.build import describe
from ipg.export.card import card
from ipg.models import build_model

GROUPS = {"cat, sofa": {"accuracy": 0.9, "count": 200}, "dog, sofa": {"accuracy": None, "count": 0}}


@pytest.fixture
def make(own_random_state: None) -> Any:
    def classifier(metrics: dict[str, Any], origin: dict[str, Any] | None = None, **settings: Any) -> Classifier:
        model = build_model("small_cnn", channels=3, classes=2)
        config = RunConfig.from_mapping({"data": "/home/me/photos.csv", **settings}).flat()
        result = {"metrics": metrics, "selected_epoch": 3, "commit": "abc", "versions": {"torch": "2"}, "date": "today"}
        return Classifier(model, (3, 16, 16), ("cat", "dog"), config=config, origin=origin or {}, result=result)

    return classifier


def test_a_guided_run(make) -> None:
    metrics = {"average": 0.9, "groups": GROUPS, "pair_disagreement": 0.1, "predicted_classes": 2}
    found = make(metrics, {"pairs": 38, "held_out_pairs": 20}, pairs="/home/me/pairs.csv", start="/home/me/plain")
    text = card(found, "pets", {"model.pt2": 1e-7}, 16)
    assert "by [Invariance Pair Guidance](https://doi.org" in text
    assert "| pairs | 38, of `pairs.csv` |" in text
    assert "| went on from | `plain`, head kept |" in text
    assert "| **all** | 90.0 | 85.1 to 93.4 | 200 |" in text
    assert "| dog, sofa | – | – | 0 |" in text
    assert "| disagree | 10.0 | 2.8 to 30.1 | 20 |" in text  # 2 of 20
    assert "There is no test image of dog, sofa." in text
    assert "same class" not in text
    assert "model.onnx" not in text
    assert "/home/me" not in text


@pytest.mark.parametrize(
    ("method", "channels", "told"),
    [
        ("erm", 3, "RGB"),
        ("erm", 2, "red and green"),
        ("oracle", 1, "grey"),
        ("erm", 5, "5 channels"),
        ("shape_only", 4, "as `ipg.data.shape.shape_channels` makes them"),
    ],
)
def test_people_and_programs_are_told_what_it_takes(make, method: str, channels: int, told: str) -> None:
    metrics = {"average": 1.0, "groups": {}, "pair_disagreement": None}
    found = replace(make(metrics, method=method), shape=(channels, 16, 16))
    assert f"float32 images in [0, 1], {told}, of shape (B, {channels}, 16, 16)" in card(found, "pets", {}, 16)
    assert f"'values': 'float32 in [0, 1], {told}; normalised inside'" in str(describe(found, "pets"))


def test_what_was_not_measured_is_said(make) -> None:
    metrics = {"average": 0.5, "groups": GROUPS, "pair_disagreement": None, "predicted_classes": 1}
    text = card(make(metrics, method="erm"), "pets", {"model.onnx": 0.0}, 16)
    assert "Disagreement on held-out pairs was not measured." in text
    assert "Whether it leans on a shortcut was not measured." in text
    assert "**It gives every test image the same class**" in text
    assert "Invariance Pair Guidance" not in text
    assert "onnxruntime" in text


def test_names_do_not_break_tables(make) -> None:
    metrics = {"average": 1.0, "groups": {"cat|dog, a": {"accuracy": 1.0, "count": 1}}, "pair_disagreement": None}
    assert "| cat\\|dog, a | 100.0 |" in card(make(metrics), "pets", {}, 16)


def test_a_line_between_classes_that_was_moved_is_told(make) -> None:
    metrics = {"average": 1.0, "groups": GROUPS, "pair_disagreement": None}
    assert "| line between classes | offsets of the classes that are best for the worst group" in card(
        make(metrics, decision="worst_group"), "pets", {}, 16
    )
    assert "line between classes" not in card(make(metrics), "pets", {}, 16)


def test_a_refit_is_not_called_an_epoch(make) -> None:
    found = make({"average": 0.9, "groups": GROUPS}, epochs=2, method="eva_e")
    assert "| epoch kept | one of them, by the rule `last`; then its last layer was fitted anew |" in card(
        found, "p", {}, 1
    )
    known = replace(found, result={**found.result, "refitted_epoch": 2})
    assert "| epoch kept | 2, by the rule `last`; then its last layer was fitted anew |" in card(known, "p", {}, 1)
    plain = make({"average": 0.9, "groups": GROUPS}, epochs=3, method="erm")
    assert "| epoch kept | 3, by the rule `last` |" in card(plain, "p", {}, 1)
