"""What a network says of images, as rows of a CSV."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ipg.classifier import Classifier
from ipg.prediction import Prediction, said_of, write_predictions


def test_a_network_whose_classes_have_no_names(tmp_path: Path) -> None:
    """Its likeliest class cannot be named; how likely that is can be told."""
    network = Classifier(nn.Identity(), (3, 4, 4))
    said = [said_of("a.png", (0.25, 0.75), network.classes), Prediction("b.png", error="damaged")]
    counts = write_predictions(tmp_path / "all.csv", network, iter(said))
    lines = (tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["path,predicted,probability,error", "a.png,,0.750000,", "b.png,,,damaged"]
    assert (counts.classes, counts.errors) == ({}, [("b.png", "damaged")])
