"""Studies are run as far as they are not done, and every trial leaves a row."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipg.config import RunConfig
from ipg.data import load
from ipg.data.table import ImageTable
from ipg.evaluation.groups import predict
from ipg.experiments import runner
from ipg.experiments.runner import main, read_rows, run_study, run_trial
from ipg.experiments.study import Study, Trial
from ipg.training.loop import train
from ipg.training.materials import gather

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")

SMALL: dict[str, Any] = {"epochs": 2, "batch": 32, "pairs": 8, "pair_batch": 4, "held_out_pairs": 4, "data": "bars"}
ROW = {
    "study", "dataset", "method", "protocol", "seed", "config", "selection", "metrics", "predictions", "last_metrics",
    "seconds", "hardware", "versions", "commit", "date",
}  # fmt: skip


@pytest.fixture
def bars(make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The small images as a data set of that name; what it was asked for."""
    asked: dict[str, Any] = {}

    def loader(path: Any, size: Any, seed: int) -> ImageTable:
        asked.update(path=path, size=size, seed=seed)
        return make_table(seed=seed)

    monkeypatch.setitem(load.DATASETS, "bars", loader)
    return asked


def trial(method: str = "ipg", seed: int = 0, **changes: Any) -> Trial:
    config = RunConfig(method=method, seed=seed, **SMALL | changes)
    return Trial("small", "bars", method, "paper", seed, config)


def study(*trials: Trial, split: str = "test") -> Study:
    return Study("small", trials, split)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_has_all_fields() -> None:
    row = run_trial(trial("ipg", selection="worst_group"))
    assert set(row) >= ROW
    assert json.loads(json.dumps(row)) == row
    assert {"pairs", "pair_batch", "pair_builder", "alpha", "tau", "margin", "every"} <= set(row["config"])
    assert {"model", "weights", "learning_rate", "schedule", "batch", "epochs", "precision"} <= set(row["config"])
    assert not {"seed", "device", "data_path"} & set(row["config"])
    assert row["config"]["model"] == "small_cnn"  # the one that was used, though none was named
    for metrics in (row["metrics"], row["last_metrics"]):
        assert {"average", "group_mean", "worst_group", "groups", "pair_disagreement"} <= set(metrics)
        assert 0 <= metrics["average"] <= 1
    assert (row["study"], row["dataset"], row["method"], row["protocol"], row["seed"], row["selection"]) == (
        "small", "bars", "ipg", "paper", 0, "worst_group",
    )  # fmt: skip
    assert row["key"] == trial("ipg", selection="worst_group").key
    assert len(row["curve"]) == 2


def test_a_row_is_of_the_selected_epoch() -> None:
    one = trial("erm", selection="worst_group", epochs=6, learning_rate=0.05, schedule="constant")
    outcome = train(one.config, gather(one.config))
    row = run_trial(one)
    selected = outcome.rows[outcome.result["selected_epoch"] - 1]
    assert selected["epoch"] < 6
    assert row["selected_epoch"] == selected["epoch"]
    assert row["metrics"] == {**selected["test"], "pair_disagreement": selected["pair_disagreement"]}
    assert row["last_metrics"]["average"] == outcome.rows[-1]["test"]["average"]
    assert row["curve"] == [epoch["test"]["average"] for epoch in outcome.rows]


def test_predictions_decode_to_the_predictions() -> None:
    one = trial("erm")
    row = run_trial(one)
    packed = np.frombuffer(base64.b64decode(row["predictions"]), dtype=np.uint8)
    found = np.unpackbits(packed, count=40)
    given = gather(one.config)
    outcome = train(one.config, given)
    part = given.table.part("test")
    assert found.tolist() == predict(outcome.model, part.images).tolist()
    assert row["metrics"]["average"] == np.mean(found == part.label.numpy())
    assert len(row["predictions"]) < 4096


@pytest.mark.parametrize("values", [[2, 0, 1, 1, 2], [0, 1, 1, 0, 0]])
def test_more_than_two_classes_take_a_byte_each(values: list[int]) -> None:
    """Also where by chance only the first two were predicted."""
    packed = base64.b64decode(runner._pack(np.array(values), 3))
    assert list(packed) == values


def test_two_classes_take_a_bit_each() -> None:
    assert base64.b64decode(runner._pack(np.array([0, 0, 0, 0, 0, 0, 0, 1, 1]), 2)) == bytes([0b1, 0b10000000])
    assert base64.b64decode(runner._pack(np.zeros(16, dtype=int), 2)) == bytes(2)


def test_another_split_is_reported_and_the_test_split_not_read(
    make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(path: Any, size: Any, seed: int) -> ImageTable:
        table = make_table(seed=seed)
        label = table.label.clone()
        label[table.indices("test")] = 0  # nobody evaluates on these
        return replace(table, label=label)

    plain = run_trial(trial("erm"), metrics_split="validation")
    monkeypatch.setitem(load.DATASETS, "bars", poisoned)
    monkeypatch.setattr(ImageTable, "part", watched(ImageTable.part))
    row = run_trial(trial("erm"), metrics_split="validation")
    assert row["split"] == "validation"
    assert row["metrics"] == plain["metrics"]


def watched(part: Callable[..., ImageTable]) -> Callable[..., ImageTable]:
    def checked(table: ImageTable, split: str) -> ImageTable:
        assert split != "test"
        return part(table, split)

    return checked


# -- studies ---------------------------------------------------------------------------------------------------------


def test_only_what_is_missing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def quick(one: Trial, *, metrics_split: str) -> dict[str, Any]:
        ran.append(one.key)
        return {"key": one.key, "metrics": {"average": 0.5}, "seconds": 1.0}

    monkeypatch.setattr(runner, "run_trial", quick)
    one, two, three = (trial(seed=seed) for seed in range(3))
    assert run_study(study(one, two), tmp_path) == 0
    assert ran == [one.key, two.key]
    assert run_study(study(one, three, two), tmp_path) == 0
    assert ran == [one.key, two.key, three.key]
    assert run_study(study(one, three, two), tmp_path) == 0
    assert ran == [one.key, two.key, three.key]
    assert [row["key"] for row in read_rows(tmp_path / "trials.jsonl")] == ran
    assert "small: 3 trials, 3 done" in capsys.readouterr().out


def test_a_failing_trial_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [trial("erm", seed=0), trial("erm", seed=1, learning_rate=1e30, optimizer="sgd"), trial("erm", seed=2)]
    assert run_study(study(*trials), tmp_path) == 1
    assert [row["seed"] for row in read_rows(tmp_path / "trials.jsonl")] == [0, 2]
    captured = capsys.readouterr()
    assert "[2/3] erm (paper) 8 pairs, alpha 0.1, every 4, seed 1: failed: " in captured.out
    assert "NonFiniteError" in captured.err
    assert run_study(study(*trials), tmp_path) == 1  # tried again
    assert len(read_rows(tmp_path / "trials.jsonl")) == 2


def test_an_interruption_stops_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(one: Trial, *, metrics_split: str) -> dict[str, Any]:
        if one.seed == 1:
            raise KeyboardInterrupt
        return {"key": one.key, "metrics": {"average": 0.5}, "seconds": 1.0}

    monkeypatch.setattr(runner, "run_trial", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(study(*(trial(seed=seed) for seed in range(3))), tmp_path)
    assert len(read_rows(tmp_path / "trials.jsonl")) == 1


def test_a_line_cut_by_a_kill_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(one: Trial, *, metrics_split: str) -> dict[str, Any]:
        return {"key": one.key, "metrics": {"average": 0.5}, "seconds": 1.0, "name": "ß\u2028"}

    monkeypatch.setattr(runner, "run_trial", quick)
    trials = [trial(seed=seed) for seed in range(3)]
    file = tmp_path / "trials.jsonl"
    run_study(study(*trials[:2]), tmp_path)
    content = file.read_bytes()
    for cut in (2, 5, 12, 60):  # also inside a letter of two bytes
        file.write_bytes(content[:-cut])
        run_study(study(*trials), tmp_path)
        rows = read_rows(file)
        assert [row["key"] for row in rows] == [one.key for one in trials]
        assert rows[0]["name"] == "ß\u2028"


def test_device_and_path_are_the_machines(tmp_path: Path, bars: dict[str, Any]) -> None:
    run_study(study(trial("erm", seed=3)), tmp_path, data_path="digits.npz", device="cpu")
    assert bars == {"path": "digits.npz", "size": None, "seed": 3}
    (row,) = read_rows(tmp_path / "trials.jsonl")
    assert row["key"] == trial("erm", seed=3).key


def test_no_rows_yet(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "trials.jsonl") == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = "".join(f"{name} = {json.dumps(value)}\n" for name, value in SMALL.items() if name != "data")
    text = f'dataset = "bars"\nseeds = 1\n[base]\n{base}[[arm]]\nmethod = "erm"\nprotocol = "paper"\n'
    Path("quick.toml").write_text(text, encoding="utf-8")
    assert main(["quick.toml", "--device", "cpu"]) == 0
    assert [row["study"] for row in read_rows(tmp_path / "results" / "quick" / "trials.jsonl")] == ["quick"]
    Path("bad.toml").write_text(text + "config = { learning_rate = 1e30, optimizer = 'sgd' }\n", encoding="utf-8")
    assert main(["bad.toml", "--device", "cpu", "--results", "elsewhere"]) == 1
    assert read_rows(tmp_path / "elsewhere" / "trials.jsonl") == []


def test_a_trial_that_is_run_again_gives_the_same_row() -> None:
    one, other = run_trial(trial()), run_trial(trial())
    for name in ("seconds", "date"):
        del one[name], other[name]
    assert one == other
    assert torch.get_num_threads() == 1  # what the hardware line says
