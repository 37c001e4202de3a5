"""A trial leaves a row with all that was measured."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipg.config import RunConfig
from ipg.data import load
from ipg.data.table import ImageTable
from ipg.evaluation import groups
from ipg.evaluation.groups import predict
from ipg.experiments import trial as trials
from ipg.experiments.arms import collapsed, same_run, unmeasured, went_wrong
from ipg.experiments.study import ON_PAIRS, Trial
from ipg.experiments.trial import _pack, run_trial
from ipg.guidance import CollapseError, NonFiniteError
from ipg.training import loop
from ipg.training.interrupt import Interrupted, StopRequest
from ipg.training.loop import train
from ipg.training.materials import Materials, gather

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")

ROW = {
    "study", "dataset", "method", "protocol", "seed", "config", "selection", "metrics", "predictions", "last_metrics",
    "seconds", "hardware", "versions", "commit", "date",
}  # fmt: skip


def test_a_row_has_all_fields(trial: Callable[..., Trial]) -> None:
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
    assert len(row["validation_curve"]) == 2


def test_a_row_is_of_the_selected_epoch(trial: Callable[..., Trial]) -> None:
    one = trial("erm", selection="worst_group", epochs=6, learning_rate=0.05, schedule="constant")
    outcome = train(one.config, gather(one.config))
    row = run_trial(one)
    selected = outcome.rows[outcome.result["selected_epoch"] - 1]
    assert selected["epoch"] < 6
    assert row["selected_epoch"] == selected["epoch"]
    assert row["metrics"] == {**selected["test"], "pair_disagreement": selected["pair_disagreement"]}
    assert row["last_metrics"]["average"] == outcome.rows[-1]["test"]["average"]
    assert row["validation_curve"] == [epoch["validation"]["average"] for epoch in outcome.rows]
    kept, last = (outcome.rows[number - 1]["test"]["average"] for number in (selected["epoch"], 6))
    told = {selected["epoch"]: kept, 6: last}
    assert row["curve"] == [told.get(epoch) for epoch in range(1, 7)]


def test_a_row_says_that_it_is_of_a_refit(trial: Callable[..., Trial]) -> None:
    row = run_trial(trial("eva_e", epochs=2))
    assert (row["selected_epoch"], row["refitted_epoch"], len(row["validation_curve"])) == (3, 2, 3)
    assert "refitted_epoch" not in run_trial(trial("erm", epochs=2))


def test_a_rule_that_rewards_the_shortcut_has_every_epoch_told(trial: Callable[..., Trial]) -> None:
    one = trial("erm", selection="training_environments", epochs=3)
    assert run_trial(one)["curve"] == [epoch["test"]["average"] for epoch in train(one.config, gather(one.config)).rows]


def test_predictions_decode_to_the_predictions(trial: Callable[..., Trial]) -> None:
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
    packed = base64.b64decode(_pack(np.array(values), 3))
    assert list(packed) == values


@pytest.mark.parametrize(("classes", "kind"), [(256, "u1"), (257, "<u2"), (400, "<u2")])
def test_more_than_256_classes_take_two_bytes_each(classes: int, kind: str) -> None:
    values = [classes - 1, 5, 0]
    assert np.frombuffer(base64.b64decode(_pack(np.array(values), classes)), dtype=kind).tolist() == values


def test_two_classes_take_a_bit_each() -> None:
    assert base64.b64decode(_pack(np.array([0, 0, 0, 0, 0, 0, 0, 1, 1]), 2)) == bytes([0b1, 0b10000000])
    assert base64.b64decode(_pack(np.zeros(16, dtype=int), 2)) == bytes(2)


def test_another_split_is_reported_and_the_test_split_not_read(
    trial: Callable[..., Trial], make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
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


def test_a_trial_that_is_run_again_gives_the_same_row(trial: Callable[..., Trial]) -> None:
    one, other = run_trial(trial()), run_trial(trial())
    for name in ("seconds", "date"):
        del one[name], other[name]
    assert one == other
    assert torch.get_num_threads() == 1  # what the hardware line says


def test_a_trial_goes_on_in_its_folder(trial: Callable[..., Trial], tmp_path: Path) -> None:
    """Stopped when three of four epochs were done, it ends with the row of an unbroken one."""
    one = trial("ipg", epochs=4)
    whole: list[float] = []
    expected = run_trial(one, tell=whole.append)
    assert whole[0] == 0
    assert whole[-1] == 1

    def stop(share: float) -> None:
        if share == 0.75:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(one, folder=tmp_path / "run", tell=stop)
    rest: list[float] = []
    row = run_trial(one, folder=tmp_path / "run", tell=rest.append)
    assert rest[0] in (0.25, 0.5)  # the checkpoint of an epoch before: of short ones not every one is saved
    for name in ("seconds", "date"):
        del row[name], expected[name]
    assert row == expected
    again = run_trial(one, folder=tmp_path / "run", tell=rest.append)
    assert again["predictions"] == expected["predictions"]
    assert rest[-1] == 1


def test_a_collapsed_run_has_a_row_of_what_it_is_worth(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tables would leave the seed out, and the others look better than they are."""

    def collapse(config: RunConfig, materials: Materials, **_: Any) -> None:
        for parameter in materials.model.parameters():
            torch.nn.init.zeros_(parameter)
        raise CollapseError("the model has collapsed")

    monkeypatch.setattr("ipg.experiments.trial.train", collapse)
    row = run_trial(trial())
    assert collapsed(row["metrics"]["groups"])
    assert row["metrics"]["worst_group"] == 0.0
    assert row["metrics"]["pair_disagreement"] == 0.0
    assert (row["selected_epoch"], row["collapse"]) == (None, "the model has collapsed")
    assert set(row) >= ROW
    assert json.loads(json.dumps(row)) == row
    assert went_wrong(row)
    assert not unmeasured(row)
    train = gather(trial().config).table.part("train")
    shares = [row["metrics"]["groups"][name]["accuracy"] for name in train.group_names]
    expected = np.mean([shares[group] for group in train.group.tolist()])
    assert row["metrics"]["average_reweighted"] == pytest.approx(expected)  # or the arm would have none


def test_a_row_of_a_run_that_collapsed_says_what_it_was_trained_with(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not what was asked for: a run goes on with the rate, the crops and the flips of the one that it starts from."""
    before = trial("erm", learning_rate=0.02, crop=1.0, flip=False).config
    train(before, gather(before), folder=tmp_path / "before")
    told: list[RunConfig] = []

    def collapse(config: RunConfig, *_: Any, **__: Any) -> None:
        told.append(config)
        raise CollapseError("the model has collapsed")

    monkeypatch.setattr(trials, "train", collapse)
    one = trial(start=str(tmp_path / "before"))
    row = run_trial(one)
    names = ("learning_rate", "crop", "flip")
    assert [row["config"][name] for name in names] == [getattr(told[0], name) for name in names] == [0.02, 1.0, False]
    assert row["key"] == one.key


@pytest.mark.parametrize("stopped", [False, True])
def test_a_row_of_a_run_that_collapsed_to_the_last_says_how_often_it_began_again_and_what_it_took(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stopped: bool
) -> None:
    """Also where the last attempt was taken up by another process, which saw none of those before."""
    between, stops = loop.Training._between_steps, [(2, 1)] if stopped else []

    def going(run: loop.Training, request: StopRequest) -> None:
        if run.progress.step == 2:
            raise CollapseError("the model has collapsed.")
        request.made = (run.progress.restarts, run.progress.step) in stops
        run.progress.seconds += 1000 * request.made
        between(run, request)

    monkeypatch.setattr(loop.Training, "_between_steps", going)
    one = trial("ipg", restarts=2, learning_rate=1e-3)
    if stopped:
        with pytest.raises(Interrupted):
            run_trial(one, folder=tmp_path / "run")
        stops.clear()
    row = run_trial(one, folder=tmp_path / "run")
    assert row["restarted"] == 2
    assert (row["seconds"] > 1000) == stopped
    assert row["collapse"].endswith("begun again 2 times, at last with a learning rate of 0.00025.")
    assert set(row) >= ROW
    assert "restarted" not in run_trial(trial("ipg", restarts=0))


def test_a_run_whose_loss_is_no_number_has_a_row_too(trial: Callable[..., Trial]) -> None:
    row = run_trial(trial("erm", learning_rate=1e30, optimizer="sgd"))
    assert row["collapse"].startswith("the loss is NaN or infinite by iteration")
    assert row["selected_epoch"] is None
    assert row["metrics"]["predicted_classes"] == 1
    assert "NaN" not in json.dumps([row["metrics"], row["last_metrics"]])
    assert set(row) >= ROW


def test_a_run_that_breaks_off_in_its_first_stage_has_no_figures(trial: Callable[..., Trial]) -> None:
    """The network that would be evaluated has not seen an image."""
    row = run_trial(trial("jtt", learning_rate=1e30, optimizer="sgd"))
    assert row["collapse"].startswith("the loss is NaN or infinite by iteration")
    for metrics in (row["metrics"], row["last_metrics"]):
        plain = {name: value for name, value in metrics.items() if name not in ("groups", "environments")}
        assert {"average", "average_reweighted", "worst_group", "auroc", "pair_disagreement"} <= set(plain)
        assert plain.pop("predicted_classes") == 0
        assert set(plain.values()) == {None}
        assert {group["accuracy"] for group in metrics["groups"].values()} == {None}
    assert row["predictions"] == ""
    assert set(row) >= ROW
    assert unmeasured(row)
    assert went_wrong(row)


@pytest.mark.parametrize("engine", ["auto", "captured"])
def test_a_run_that_breaks_off_in_its_first_stage_is_of_the_device_that_it_was_meant_for(
    trial: Callable[..., Trial], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network of the second stage has not been brought there yet."""

    def broken(*_: Any, listeners: Any, **__: Any) -> Any:
        listeners[0].first_stage(step=0, total=9)
        raise NonFiniteError("the loss is NaN")

    monkeypatch.setattr(trials, "train", broken)
    monkeypatch.setattr(trials, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(trials, "provenance", lambda device: {"hardware": device.type})
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    row = run_trial(trial("jtt", engine=engine))
    assert (row["hardware"], row["config"]["engine"]) == ("cuda", "captured")
    assert unmeasured(row)


def test_a_run_that_breaks_off_after_its_first_stage_has_figures(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.methods.jtt import Jtt

    def collapse(method: Jtt) -> None:
        raise CollapseError("the model has collapsed")

    monkeypatch.setattr(Jtt, "check", collapse)
    row = run_trial(trial("jtt", restarts=0))
    assert row["collapse"] == "the model has collapsed"
    assert row["metrics"]["average"] is not None


@pytest.mark.parametrize("method", ["erm", "joint", "jtt"])
def test_a_row_is_of_the_same_run_as_its_trial(trial: Callable[..., Trial], method: str) -> None:
    """Though the trial leaves its network, its precision and its options open, and the row tells them."""
    one = trial(method)
    assert one.config.model is None
    assert same_run({**run_trial(one), "key": "of another study"}, one)


@pytest.mark.parametrize("method", sorted(ON_PAIRS - {"ipg", "ipg_ablated", "continuous"}))
def test_methods_that_do_not_rescale_train_alike_whatever_is_said_of_it(
    trial: Callable[..., Trial], method: str
) -> None:
    model = {"model": "linear"} if method == "ncm" else {}
    told = {"alpha": 0.8, "tau": 0.5, "floor": 0.1, "strict": True}
    plain, other = (run_trial(trial(method, every=1, **model, **settings)) for settings in ({}, told))
    assert (plain["predictions"], plain["metrics"]) == (other["predictions"], other["metrics"])


@pytest.mark.parametrize("breaks_off", [False, True])
def test_images_are_moved_to_the_device_a_batch_at_a_time(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch, breaks_off: bool
) -> None:
    """The split may be larger than the device's memory."""
    moved: list[int] = []
    plain = torch.Tensor.to

    def recorded(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if tensor.dtype == torch.uint8 and tensor.ndim == 4:
            moved.append(len(tensor))
        return plain(tensor, *arguments, **options)

    def trained(*arguments: Any, **options: Any) -> Any:
        outcome = train(*arguments, **options)
        monkeypatch.setattr(torch.Tensor, "to", recorded)
        if breaks_off:
            raise CollapseError("the model has collapsed")
        return outcome

    monkeypatch.setattr(groups, "EVALUATION_BATCH_CPU", 8)
    monkeypatch.setattr("ipg.experiments.trial.train", trained)
    row = run_trial(trial("erm", held_out_pairs=0))
    assert moved == [8] * 5  # 40 images, once
    assert len(base64.b64decode(row["predictions"])) == 5
