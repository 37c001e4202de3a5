"""What a run leaves in its folder, and whose folder it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training.loop_outcomes import bits, timeless

from ipg.config import RunConfig
from ipg.models import build_model
from ipg.training.folder import FolderError
from ipg.training.loop import train
from ipg.training.materials import Materials, gather

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


def test_result_and_configuration(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("joint", epochs=1, options={"loss": "corrective"})
    outcome = train(config, materials(config), folder=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result == outcome.result
    found = {"order": "task_first", "loss": "corrective", "precision": "fp32", "engine": "eager"}
    assert result["config"] == config.flat() | found
    assert set(result) == {
        "config", "selection", "selected_epoch", "metrics", "last_metrics", "seconds", "preparing_seconds", "commit",
        "versions", "hardware", "date",
    }  # fmt: skip
    assert result["seconds"] > 0
    stored = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert stored["config"]["order"] == "task_first"
    assert "device" not in stored["config"]
    assert set(stored["data"]) == {"table", "pairs", "held_out_pairs", "network"}
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == outcome.rows
    assert {path.name for path in tmp_path.iterdir()} - {"lock"} == {
        "config.json", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json", "done",
    }  # fmt: skip


def test_a_folder_changes_nothing(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("ipg", epochs=2)
    kept, loose = train(config, materials(config), folder=tmp_path), train(config, materials(config))
    assert torch.equal(bits(kept.model), bits(loose.model))
    assert timeless(kept.rows) == timeless(loose.rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 4}, "epochs was 3 and is now 4"),
        ({"options": {"order": "sum"}}, "order was 'task_first' and is now 'sum'"),
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"model": "mnist_cnn"}, "model was None and is now 'mnist_cnn'"),
    ],
)
def test_the_folder_of_another_run_is_refused(
    settings: Make, materials: Gather, tmp_path: Path, changes: Any, message: str
) -> None:
    config = settings("joint")
    train(config, materials(config), folder=tmp_path)
    other = config.with_changes(**changes)
    with pytest.raises(FolderError, match=message):
        train(other, materials(other), folder=tmp_path)


def test_the_same_run_may_name_its_options(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("joint", epochs=1)
    first = train(config, materials(config), folder=tmp_path)
    named = config.with_changes(options={"order": "task_first"}, device="auto")
    assert train(named, materials(named), folder=tmp_path).result == first.result


def test_other_data_is_refused(settings: Make, materials: Gather, make_table: Any, tmp_path: Path) -> None:
    config = settings()
    train(config, materials(config), folder=tmp_path)
    with pytest.raises(FolderError, match="holds another run: images or labels and held-out pairs have changed"):
        train(config, gather(config, table=make_table(seed=1)), folder=tmp_path)


def test_another_network_is_refused(settings: Make, materials: Gather, tmp_path: Path) -> None:
    """One's own, which no setting names."""
    config = settings()
    train(config, materials(config), folder=tmp_path)
    other = replace(materials(config), model=build_model("mnist_cnn", channels=2, classes=2))
    with pytest.raises(FolderError, match="holds another run: the layers of the network have changed"):
        train(config, other, folder=tmp_path)
