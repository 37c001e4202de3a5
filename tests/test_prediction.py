"""What a network says of images, as rows of a CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

import ipg
from ipg.classifier import Classifier, open_run
from ipg.data.load import DATASETS
from ipg.data.table import ImageTable
from ipg.prediction import Prediction, said_of, write_predictions


def test_a_network_whose_classes_have_no_names(tmp_path: Path) -> None:
    """Its likeliest class cannot be named; how likely that is can be told."""
    network = Classifier(nn.Identity(), (3, 4, 4))
    said = [said_of("a.png", (0.25, 0.75), network.classes), Prediction("b.png", error="damaged")]
    counts = write_predictions(tmp_path / "all.csv", network, iter(said))
    lines = (tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["path,predicted,probability,error", "a.png,,0.750000,", "b.png,,,damaged"]
    assert (counts.classes, counts.errors) == ({}, [("b.png", "damaged")])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", ["oracle", "shape_only"])
def test_runs_of_methods_that_see_no_colour_take_images_in_colour(
    method: str, tmp_path: Path, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))
    run = ipg.fit(data="bars", method=method, held_out_pairs=4, folder=tmp_path / "run", epochs=2, batch=32)
    colored, turned = (table.part("test").images for table in (make_table(), run.materials.table))
    assert colored.shape[1] == 2 != turned.shape[1]
    expected = [one.probabilities for one in run.predict(turned)]
    assert [one.probabilities for one in run.predict(colored)] == expected
    assert open_run(tmp_path / "run", device="cpu").probabilities(colored).tolist() == expected
