"""Each finding on a run made to show it, and silent on healthy ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation.findings import found
from torch import nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.doctor.diagnosis import diagnose, key_numbers
from ipg.evaluation.doctor.log import RunLog
from ipg.guidance import CollapseError, Guidance, NonFiniteError, Pairs
from ipg.training import folder as folder_module
from ipg.training.folder import RunFolder, read_json, read_jsonl
from ipg.training.loop import train
from ipg.training.materials import Materials, gather

Change = Callable[[Materials], Materials]
SMALL = {"epochs": 6, "batch": 32, "pairs": 12, "pair_batch": 12, "held_out_pairs": 20, "every": 1}


@pytest.fixture(autouse=True)
def _quiet(one_thread: None, own_random_state: None) -> None:
    """One thread and one seed for every test here."""


def same(materials: Materials) -> Materials:
    return materials


def empty_pairs(materials: Materials) -> Materials:
    """Training pairs whose members are the same image."""
    assert materials.pairs is not None
    return replace(materials, pairs=replace(materials.pairs, second=materials.pairs.first))


def marked_pairs(materials: Materials) -> Materials:
    """Training pairs that are negatives, so that they can be told from all else."""
    assert materials.pairs is not None
    return replace(materials, pairs=materials.pairs.map(lambda images: 255 - images))


def batch_norm_network(materials: Materials) -> Materials:
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 2),
    )  # fmt: skip
    return replace(materials, model=model)


def dead(materials: Materials) -> Materials:
    """All features are zero, and so is their gradient."""
    for name, parameter in materials.model.named_parameters():
        if not name.startswith("head"):
            nn.init.zeros_(parameter)
    return materials


@pytest.fixture
def ran(make_table: Callable[..., ImageTable], tmp_path: Path) -> Callable[..., RunLog]:
    """Trains a small run in a folder, failure or not, and reads its log back."""

    def run(method: str = "ipg", *, table: Any = None, change: Change = same, **settings: Any) -> RunLog:
        config = RunConfig(method=method, device="cpu", **SMALL | {"learning_rate": 0.01, "margin": "0.5x"} | settings)
        given = change(gather(config, table=make_table() if table is None else table))
        home = RunFolder(tmp_path / "run")
        try:
            train(config, given, folder=home.path)
        except (CollapseError, NonFiniteError):
            assert not home.done.exists()
        rows = read_jsonl(home.metrics) if home.metrics.exists() else []
        return RunLog(
            read_json(home.config)["config"], rows, read_json(home.failure) if home.failure.exists() else None
        )

    return run


@pytest.fixture
def shortcut(make_table: Callable[..., ImageTable]) -> ImageTable:
    """Colour and label always agree."""
    return make_table(agreement=1.0)


# -- healthy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ipg", {}),
        ("ipg", {"every": 4}),
        ("ipg", {"margin": "2x"}),
        ("ipg", {"change": batch_norm_network, "learning_rate": 0.03, "epochs": 10}),
        ("continuous", {}),
        ("joint", {}),
        ("joint", {"options": {"order": "sum", "loss": "corrective"}}),
        ("erm", {}),
    ],
)
def test_healthy_runs_are_found_so(ran: Callable[..., RunLog], method: str, settings: dict[str, Any]) -> None:
    log = ran(method, **settings)
    assert diagnose(log) == []
    numbers = key_numbers(log)
    assert numbers["epochs"] == len(log.rows)
    assert numbers["validation"] == log.rows[-1]["validation"]["average"] > 0.9
    assert (numbers["train_pair_disagreement"] is None) == (method == "erm")
    assert ("batch_norm_gap" in log.rows[-1]) == (settings.get("change") is batch_norm_network)


def test_a_log_without_rows_says_nothing() -> None:
    assert diagnose(RunLog({"method": "ipg"})) == []
    assert key_numbers(RunLog({}))["epochs"] == 0


# -- runs made to show a finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "severity", "says", "settings"),
    [
        ("one class predicted", "error", "after epoch 6", {"margin": "0.01x"}),
        ("task gradient scaled to nothing", "error", r"by \d\.\de-05 on average.* from 0\.72 to 0\.68",
         {"optimizer": "sgd", "alpha": 1e-4}),
        ("clip on most steps", "note", r"on (6|7|8|9)\d\.\d % of the steps", {"tau": 1.0}),
        ("disagreement never falls", "warning", r"25\.0 % .* 25\.0 %", {"learning_rate": 1e-7}),
        ("margin never met", "warning", r"At most 0\.0 % .* margin of 1e\+03", {"margin": "1000"}),
        ("margin far above scale", "warning", r"0\.5\d* apart .* the margin is 1e\+03", {"margin": "1000"}),
        ("margin always met", "warning", r"margin of 0\.0219 .* from 0\.298 to 0\.102", {"margin": "0.05x"}),
        ("margin far below scale", "warning", r"0\.298 apart .* 68 times the margin of 0\.00438", {"margin": "0.01x"}),
        ("held-out pairs absent", "note", "no held-out pairs", {"held_out_pairs": 0}),
        ("floor on most steps", "warning", r"On 100\.0 % of the steps .*\(0\.001\)",
         {"tau": 1.0, "margin": "0", "optimizer": "sgd", "change": empty_pairs}),
        ("batch norm drifts", "warning", r"lie \d+\.\d standard deviations apart",
         {"change": lambda given: marked_pairs(batch_norm_network(given))}),
        ("loss not finite", "error", r"by iteration \d+", {"optimizer": "sgd", "learning_rate": 1e30}),
        ("representation collapsed", "error", r"by iteration \d+", {"margin": "0.1", "change": dead}),
    ],
)  # fmt: skip
def test_a_run_made_to_show_it(
    ran: Callable[..., RunLog], name: str, severity: str, says: str, settings: dict[str, Any]
) -> None:
    findings = found(ran(**settings))
    assert name in findings, list(findings)
    assert findings[name].severity == severity
    assert re.search(says, findings[name].meaning), findings[name].meaning


@pytest.mark.parametrize(
    ("warmup", "says"),
    [(0, "warm it up (--warmup 300)"), (2, "warm it up for longer (--warmup 4, now 2)")],
)
def test_what_a_run_has_done_is_not_advised_again(ran: Callable[..., RunLog], warmup: int, says: str) -> None:
    findings = found(ran(optimizer="sgd", learning_rate=1e30, warmup=warmup))
    assert says in findings["loss not finite"].remedy


def test_a_task_that_cannot_be_learnt(ran: Callable[..., RunLog], make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    coins = torch.randint(0, 2, (len(table),), generator=torch.Generator().manual_seed(1))
    findings = found(ran(table=replace(table, label=coins), epochs=3))
    assert list(findings) == ["validation at chance"]
    assert "on 40 validation images" in findings["validation at chance"].meaning
    assert "guessing gives 50.0 %" in findings["validation at chance"].meaning


def test_a_task_that_is_hardly_learnt(ran: Callable[..., RunLog], make_table: Callable[..., ImageTable]) -> None:
    findings = found(ran(table=make_table(validation=400), learning_rate=3e-5))
    assert list(findings) == ["task hardly learnt"]
    finding = findings["task hardly learnt"]
    assert finding.severity == "warning"
    assert re.search(r"task loss is 0\.6\d\d after 6 epochs, guessing has 0\.693, .* is 5\d\.\d %", finding.meaning)
    assert finding.remedy.startswith("Use a higher learning rate (now 3e-05), raise alpha (now 0.1), or train longer")


def test_wrong_labels_are_no_task_that_is_hardly_learnt(
    ran: Callable[..., RunLog], make_table: Callable[..., ImageTable]
) -> None:
    """A quarter of them keeps the loss above 0.56."""
    table = make_table()
    wrong = torch.rand(len(table), generator=torch.Generator().manual_seed(1)) < 0.25
    log = ran(table=replace(table, label=torch.where(wrong, 1 - table.label, table.label)))
    assert log.of_steps("task_loss")[-1] > 0.56
    assert diagnose(log) == []


@pytest.mark.parametrize(("every", "says"), [(2, "now 2)"), ("auto", "now auto, 100.0 % of the last epoch's steps)")])
def test_the_remedy_says_how_often_was_corrected(ran: Callable[..., RunLog], every: Any, says: str) -> None:
    log = ran(learning_rate=1e-7, every=every)
    assert f"(--every 1, {says}" in found(log)["disagreement never falls"].remedy


@pytest.mark.parametrize(("epochs", "name"), [(1, "shortcut in use"), (2, "disagreement never falls")])
def test_nobody_who_corrects_at_every_iteration_is_told_to_do_it_more_often(epochs: int, name: str) -> None:
    row = {"epoch": 1, "train": {"disagreement": 0.4}, "pair_disagreement": 0.4, "train_pair_disagreement": 0.4}
    for every, told in ((4, True), (1, False)):
        remedy = found(RunLog({"every": every, "alpha": 0.1}, epochs * [row]))[name].remedy
        assert ("orrect more often (--every 1" in remedy) is told
        assert "ower alpha" in remedy


@pytest.mark.parametrize("name", ["one class predicted", "disagreement never falls", "shortcut in use"])
def test_who_is_told_to_train_longer_is_told_how(name: str) -> None:
    row = {
        "epoch": 1,
        "train": {"disagreement": 0.4},
        "validation": {"predicted_classes": 1},
        "pair_disagreement": 0.4,
        "train_pair_disagreement": 0.4,
    }
    rows = [row] if name == "shortcut in use" else [row, row]
    remedy = found(RunLog({"epochs": 7}, rows))[name].remedy
    assert "train longer (more --epochs than 7, or --from this run's folder" in remedy
    assert "both with another --output)" in remedy
    remedy = found(RunLog({"epochs": 7}, rows, unfinished=True))[name].remedy
    assert f"let it run to its end ({len(rows)} of 7 epochs are done)" in remedy
    assert "train longer" not in remedy


def test_after_one_epoch_there_is_no_telling_whether_disagreement_falls() -> None:
    row = {"epoch": 1, "train": {"disagreement": 0.4}, "pair_disagreement": 0.4, "train_pair_disagreement": 0.4}
    assert list(found(RunLog({}, [row]))) == ["shortcut in use"]
    assert list(found(RunLog({}, [row, row]))) == ["disagreement never falls"]


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        ({"pairs": "p_ma", "held_out_pairs": 200}, "p_ma has no validation pairs; build them with `ipg pairs build"),
        ({"pairs": 40, "held_out_pairs": 0}, "Train with --held-out-pairs 200"),
        ({"pairs": "p_ma", "held_out_pairs": 0}, "Train with --held-out-pairs 200"),
        ({"pairs": 0, "held_out_pairs": 200}, "Build pairs of validation images with `ipg pairs build"),
    ],
)
def test_the_way_to_held_out_pairs_fits_the_run(config: dict[str, Any], remedy: str) -> None:
    log = RunLog(config, [{"epoch": 1, "pair_disagreement": None}])
    assert found(log)["held-out pairs absent"].remedy.startswith(remedy)


def test_plain_training_on_a_shortcut(ran: Callable[..., RunLog], shortcut: ImageTable) -> None:
    findings = found(ran("erm", table=shortcut))
    assert list(findings) == ["shortcut in use"]
    assert "--method ipg" in findings["shortcut in use"].remedy


def test_pairs_that_are_learnt_by_heart(ran: Callable[..., RunLog], shortcut: ImageTable) -> None:
    """Negatives of pairs teach a network to ignore colour in negatives."""
    log = ran("joint", table=shortcut, change=marked_pairs, epochs=12)
    assert list(found(log)) == ["pairs memorised"]
    assert log.rows[-1]["train_pair_disagreement"] <= 0.02 < 0.1 <= log.rows[-1]["pair_disagreement"]
    assert "--pairs, now 12" in found(log)["pairs memorised"].remedy


def test_pairs_that_a_low_rate_does_not_reach(ran: Callable[..., RunLog]) -> None:
    assert found(ran(learning_rate=1e-7))["disagreement never falls"].remedy.startswith(
        "Raise the learning rate (now 1e-07)"
    )


# -- what a failed run leaves ----------------------------------------------------------------------------------------


def test_a_failure_is_recorded_and_taken_back_when_the_run_goes_on(
    make_table: Callable[..., ImageTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(device="cpu", **SMALL)
    home = RunFolder(tmp_path / "run")
    healthy = RunFolder.save

    def poisoned(self: RunFolder, state: Any, rows: Any) -> None:
        healthy(self, state, rows)
        if len(rows) == 2:
            raise NonFiniteError("by chance")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", poisoned)
        patch.setattr("ipg.training.loop.SAVE_SHARE", math.inf)  # every epoch is saved, however short
        with pytest.raises(NonFiniteError):
            train(config, gather(config, table=make_table()), folder=home.path)
    assert read_json(home.failure) == {"kind": "NonFiniteError", "message": "by chance", "step": 8}
    train(config, gather(config, table=make_table()), folder=home.path)
    assert not home.failure.exists()
    assert home.done.exists()


def test_a_failure_that_cannot_be_written_does_not_hide_the_error(
    make_table: Callable[..., ImageTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: Any) -> Path:
        if path.name == "failure.json":
            raise OSError(28, "No space left on device", str(path))
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    monkeypatch.setattr(folder_module, "write_json", full)
    config = RunConfig(device="cpu", **SMALL | {"optimizer": "sgd", "learning_rate": 1e30})
    with pytest.raises(NonFiniteError):
        train(config, gather(config, table=make_table()), folder=tmp_path / "run")


def test_a_folder_with_nothing_but_a_failure_is_taken(tmp_path: Path) -> None:
    home = RunFolder(tmp_path)
    home.fail(CollapseError("flat"), step=3)
    with home.claim({"config": {}, "data": {}}, {}):
        assert home.config.exists()


# -- how the pairs lie to the margin ---------------------------------------------------------------------------------


def test_the_spread_by_hand() -> None:
    """Features 0, 3 and 1, 5 of labels 0, 0, 1, 1, a head of norm 2 a feature: distances 2, 10, 4, 4 over labels."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    nn.init.constant_(model[1].weight, math.sqrt(2))  # type: ignore[arg-type]
    guide = Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), margin=3.5)
    images = torch.tensor([0.0, 3.0, 1.0, 5.0])[:, None]
    guide.terms(Pairs(images, images, torch.tensor([0, 0, 1, 1])))
    assert [float(value) for value in guide.spread] == pytest.approx([3.5, 5.0, 0.75])
    guide.terms(Pairs(images, images, torch.zeros(4, dtype=torch.long)))
    assert [float(value) for value in guide.spread] == pytest.approx([3.5, 0.0, 1.0])
    assert not any(value.requires_grad for value in guide.spread)
