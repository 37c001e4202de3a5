"""Crops and flips that nobody asked for: which runs have them, and which go on without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import stop_at
from torch import nn
from training.loop_outcomes import bits, timeless

from ipg.config import EARLIER, MARGIN, TRAINED_CROP, TRAINED_FLIP, RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.groups import evaluate
from ipg.models import build_model, save_weights
from ipg.training.folder import FolderError
from ipg.training.interrupt import Interrupted
from ipg.training.loop import train
from ipg.training.materials import Materials

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]
TRAINED = {"crop": TRAINED_CROP, "flip": TRAINED_FLIP}


@pytest.fixture
def weights(table: ImageTable, tmp_path: Path) -> str:
    channels, size = table.images.shape[1], table.images.shape[-1]
    model = build_model("small_cnn", channels=channels, classes=table.num_classes, size=size)
    save_weights(tmp_path / "net.safetensors", model)
    return str(tmp_path / "net.safetensors")


def views(config: Any) -> dict[str, Any]:
    return {name: config[name] for name in EARLIER}


@pytest.mark.parametrize("method", ["erm", "ipg"])
def test_a_network_from_weights_is_trained_as_if_it_had_been_said(
    settings: Make, materials: Gather, weights: str, table: ImageTable, tmp_path: Path, method: str
) -> None:
    config = settings(method, model="small_cnn", weights=weights)
    told = config.with_changes(**TRAINED)
    auto, said = train(config, materials(config), folder=tmp_path / "run"), train(told, materials(told))
    plain = train(config.with_changes(**EARLIER), materials(config))
    assert torch.equal(bits(auto.model), bits(said.model))
    assert timeless(auto.rows) == timeless(said.rows)
    assert not torch.equal(bits(auto.model), bits(plain.model))
    record = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["config"]
    assert views(record) == views(auto.result["config"]) == TRAINED
    again = RunConfig(**record | {"options": {}, "device": "cpu"})  # what is kept gives the run back
    assert torch.equal(bits(train(again, materials(again)).model), bits(auto.model))
    seen = evaluate(auto.model, table.part("test"), training=table.part("train"))  # images as they are
    assert seen.items() <= auto.result["metrics"].items()


@pytest.mark.parametrize("given", [{}, {"weights": True, "freeze": True}])
def test_other_networks_are_trained_as_before(
    settings: Make, materials: Gather, weights: str, given: dict[str, Any]
) -> None:
    named = {name: weights if name == "weights" else value for name, value in given.items()}
    config = settings("ipg", model="small_cnn", **named)
    told = config.with_changes(**EARLIER)
    auto, said = train(config, materials(config)), train(told, materials(told))
    assert torch.equal(bits(auto.model), bits(said.model))
    assert views(auto.result["config"]) == EARLIER
    assert auto.result["config"] == said.result["config"]


@pytest.mark.parametrize("missing", [(), ("flip",), tuple(EARLIER)])
def test_a_run_of_an_earlier_version_goes_on_with_what_it_had(
    settings: Make,
    materials: Gather,
    weights: str,
    tmp_path: Path,
    missing: tuple[str, ...],
) -> None:
    config = settings("ipg", model="small_cnn", weights=weights)
    earlier = config.with_changes(**EARLIER)
    with stop_at(6), pytest.raises(Interrupted):
        train(earlier, materials(earlier), folder=tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    for name in missing:
        del record["config"][name]
    file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(FolderError, match=r"crop was 1\.0 and is now 0\.5\. Name"):
        train(config.with_changes(crop=0.5), materials(config), folder=tmp_path / "run")
    outcome = train(config, materials(config), folder=tmp_path / "run")
    assert torch.equal(bits(outcome.model), bits(train(earlier, materials(earlier)).model))
    assert views(outcome.result["config"]) == EARLIER
    again = train(config, materials(config), folder=tmp_path / "run")  # finished, and read back
    assert again.result == outcome.result


def test_a_fresh_network_goes_on_with_the_margin_that_it_had(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("ipg", model="small_cnn", margin="auto")
    earlier = config.with_changes(margin="0.5x")
    with stop_at(6), pytest.raises(Interrupted):
        train(earlier, materials(earlier), folder=tmp_path / "run")
    outcome = train(config, materials(config), folder=tmp_path / "run")
    assert outcome.result["config"]["margin"] == "0.5x"
    assert torch.equal(bits(outcome.model), bits(train(earlier, materials(earlier)).model))
    assert train(config, materials(config)).result["config"]["margin"] == MARGIN


def test_a_first_stage_of_an_earlier_version_goes_on(
    settings: Make, materials: Gather, weights: str, tmp_path: Path
) -> None:
    config = settings("jtt", model="small_cnn", weights=weights)
    earlier = config.with_changes(**EARLIER)
    with stop_at(2), pytest.raises(Interrupted):
        train(earlier, materials(earlier), folder=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    outcome = train(config, materials(config), folder=tmp_path / "run")
    assert torch.equal(bits(outcome.model), bits(train(earlier, materials(earlier)).model))


def test_a_run_that_never_got_anywhere_says_nothing(
    settings: Make, materials: Gather, weights: str, tmp_path: Path
) -> None:
    config = settings("erm", model="small_cnn", weights=weights, epochs=1)
    train(config.with_changes(**EARLIER), materials(config), folder=tmp_path / "run")
    for name in ("checkpoint.safetensors", "done"):
        (tmp_path / "run" / name).unlink()
    outcome = train(config, materials(config), folder=tmp_path / "run")
    assert outcome.result["config"]["crop"] == TRAINED_CROP


def test_views_that_were_asked_for_are_not_taken_for_the_usual_ones(
    settings: Make, materials: Gather, weights: str, tmp_path: Path
) -> None:
    config = settings("erm", model="small_cnn", weights=weights, epochs=1)
    given = config.with_changes(crop=0.5)
    train(given, materials(given), folder=tmp_path / "run")
    with pytest.raises(FolderError, match=rf"crop was 0\.5 and is now {TRAINED_CROP}[.;]"):
        train(config, materials(config), folder=tmp_path / "run")


def test_a_network_of_ones_own_counts_as_fresh(table: ImageTable) -> None:
    import ipg

    channels, side = table.images.shape[1], table.images.shape[-1]
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, table.num_classes))
    run = ipg.fit(model, table, method="erm", epochs=1, batch=32, device="cpu")
    assert views(run.result["config"]) == EARLIER
