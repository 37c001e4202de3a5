"""The one training loop: what a run does, and what it leaves alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.groups import evaluate
from ipg.evaluation.pairs import pair_disagreement
from ipg.evaluation.selection import select
from ipg.guidance import CollapseError, NonFiniteError
from ipg.models import build_model
from ipg.seeds import derive_seed
from ipg.training import loop
from ipg.training.folder import FolderError, read_json
from ipg.training.interrupt import Interrupted, StopRequest
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials, gather
from ipg.training.optimization import class_weights, learning_rate

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]
METHODS = ["erm", "oracle", "ipg", "joint", "continuous"]


def bits(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()])


def timeless(rows: Any) -> Any:
    """Rows without the time they took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


# -- the same again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits(settings: Make, materials: Gather, method: str) -> None:
    def run(seed: int) -> Outcome:
        config = settings(method, epochs=2, seed=seed, jitter=0.1, margin="2x")
        return train(config, materials(config))

    one, same, other = run(1), run(1), run(2)
    assert torch.equal(bits(one.model), bits(same.model))
    assert timeless(one.rows) == timeless(same.rows)
    assert not torch.equal(bits(one.model), bits(other.model))


def test_what_surrounds_a_run_does_not_reach_it(settings: Make, materials: Gather) -> None:
    """A seed, a drawn number or a run before it in the same process."""
    config = settings("ipg", epochs=1, every=1, jitter=0.1, margin="2x")  # jitter draws from the global generator
    expected = bits(train(config, materials(config)).model)
    torch.manual_seed(99)
    torch.rand(7)
    other = settings("joint", epochs=1, seed=5)
    train(other, materials(other))
    assert torch.equal(bits(train(config, materials(config)).model), expected)


@pytest.mark.parametrize("method", ["ipg", "erm"])
def test_a_run_leaves_the_global_generator_alone(settings: Make, materials: Gather, method: str) -> None:
    config = settings(method, epochs=1, jitter=0.1)
    before = torch.get_rng_state()
    train(config, materials(config))
    assert torch.equal(torch.get_rng_state(), before)
    broken = settings(method, epochs=1, learning_rate=1e30, optimizer="sgd")
    with pytest.raises(NonFiniteError):
        train(broken, materials(broken))
    assert torch.equal(torch.get_rng_state(), before)


# -- against a loop written by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("class_weighted", [True, False])
def test_plain_training_against_a_hand_written_loop(
    settings: Make, materials: Gather, make_table: Callable[..., ImageTable], optimizer: str, class_weighted: bool
) -> None:
    table = make_table()
    table = table.take(torch.cat([torch.arange(0, 80), torch.arange(81, 200, 2), torch.arange(120, 200)]).unique())
    config = settings(
        epochs=2,
        seed=4,
        learning_rate=3e-3,
        optimizer=optimizer,
        weight_decay=0.01,
        warmup=2,
        class_weighted=class_weighted,
    )
    outcome = train(config, gather(config, table=table))

    part = table.part("train")
    n = len(part)
    counts = torch.bincount(part.label)
    assert counts[0] != counts[1]
    weight = torch.tensor([n / (2 * count) for count in counts.tolist()]) if class_weighted else None
    model = gather(config, table=table).model.train()
    made: dict[str, Any] = {
        "adam": lambda p: torch.optim.Adam(p, lr=1.0, weight_decay=0.01, fused=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.01, fused=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01),
    }
    by_hand = made[optimizer](model.parameters())
    step, total = 0, 2 * math.ceil(n / 32)
    losses: list[list[float]] = []
    for epoch in range(2):
        generator = torch.Generator().manual_seed(derive_seed(4, "order", epoch))
        order = torch.randperm(n, generator=generator)
        losses.append([])
        for start in range(0, n, 32):
            rows = order[start : start + 32]
            by_hand.param_groups[0]["lr"] = learning_rate(step, total, config)
            loss = F.cross_entropy(model(part.images[rows].float() / 255), part.label[rows], weight)
            by_hand.zero_grad()
            loss.backward()
            by_hand.step()
            losses[-1].append(loss.item())
            step += 1
    assert torch.equal(bits(outcome.model), bits(model))
    assert [row["train"]["task_loss"] for row in outcome.rows] == pytest.approx(
        [sum(values) / len(values) for values in losses]
    )
    assert [row["step"] for row in outcome.rows] == [total // 2, total]


def test_class_weights_in_numbers(make_table: Callable[..., ImageTable]) -> None:
    """N / (K N_c): 8 images of class 0 and 2 of class 1 weigh 10/16 and 10/4."""
    table = make_table(train=10, validation=0, test=0)
    table = replace(table, label=torch.tensor([0] * 8 + [1] * 2))
    assert class_weights(table).tolist() == [0.625, 2.5]
    empty = replace(table, classes=("a", "b", "c"))
    assert class_weights(empty).tolist() == pytest.approx([10 / 24, 10 / 6, 0.0])


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_every_epoch_is_evaluated_on_all_splits(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=3)
    given = materials(config)
    outcome = train(config, given)
    assert [row["epoch"] for row in outcome.rows] == [1, 2, 3]
    for row in outcome.rows:
        assert set(row) == {
            "epoch", "step", "seconds", "learning_rate", "train", "validation", "test", "pair_disagreement",
            "train_pair_disagreement",
        }  # fmt: skip
        assert sum(group["count"] for group in row["validation"]["groups"].values()) == 40
        assert sum(group["count"] for group in row["test"]["groups"].values()) == 40
    last, training = outcome.rows[-1], given.table.part("train")
    for split in ("test", "validation"):
        assert last[split] == evaluate(outcome.model, given.table.part(split), training=training)
    assert last["pair_disagreement"] == pair_disagreement(outcome.model, given.held_out)
    assert last["train_pair_disagreement"] == pair_disagreement(outcome.model, given.pairs)
    assert len({json.dumps(row["train"]) for row in outcome.rows}) == 3  # means begin anew with an epoch
    assert json.loads(json.dumps(outcome.rows)) == outcome.rows


def test_evaluating_does_not_change_the_training(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=2)
    one, other = train(config, materials(config)), train(config, materials(config), evaluate_on=())
    assert torch.equal(bits(one.model), bits(other.model))
    assert "validation" not in other.rows[0]


POISON = 251


def poisoned(table: ImageTable, split: str) -> ImageTable:
    images = table.images.clone()
    images[table.indices(split)] = POISON
    return replace(table, images=images)


def alarmed(model: nn.Module) -> nn.Module:
    """Fails when it is shown a poisoned image."""

    def check(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if (inputs[0] >= POISON / 255).flatten(1).all(dim=1).any():
            raise AssertionError("a poisoned image was read")

    model.register_forward_pre_hook(check)
    return model


@pytest.mark.parametrize("method", ["erm", "ipg"])
def test_a_split_that_is_not_asked_for_is_not_read(settings: Make, table: ImageTable, method: str) -> None:
    config = settings(method, epochs=1, selection="worst_group")
    given = gather(config, table=poisoned(table, "test"))
    alarmed(given.model)
    outcome = train(config, given, evaluate_on=("validation",))
    assert "test" not in outcome.rows[0]
    assert set(outcome.result["metrics"]) == {"pair_disagreement"}
    with pytest.raises(AssertionError, match="a poisoned image was read"):
        train(config, given)


@pytest.mark.parametrize("decision", ["argmax", "worst_group"])
def test_a_split_left_to_the_end_is_evaluated_of_the_kept_and_the_last_network(
    settings: Make, materials: Gather, decision: str, tmp_path: Path
) -> None:
    rates = {"learning_rate": 0.05, "schedule": "constant"}
    config = settings("ipg", epochs=6, selection="worst_group", decision=decision, **rates)
    often = train(config, materials(config))
    once = train(config, materials(config), folder=tmp_path, evaluate_on=("validation",), evaluate_once=("test",))
    kept = once.result["selected_epoch"]
    assert kept == often.result["selected_epoch"] < 6
    assert [row["epoch"] for row in once.rows if "test" in row] == [kept, 6]
    for name in ("metrics", "last_metrics"):
        assert once.result[name] == often.result[name]
    again = train(config, materials(config), folder=tmp_path, evaluate_on=("validation",), evaluate_once=("test",))
    assert (again.rows, again.result) == (once.rows, once.result)


@pytest.mark.parametrize(
    ("splits", "message"),
    [(("train",), "the train split is named"), (("tset",), "bars has no split 'tset'; it has train, val")],
)
def test_splits_that_cannot_be_evaluated(settings: Make, materials: Gather, splits: Any, message: str) -> None:
    config = settings()
    with pytest.raises(ValueError, match=message):
        train(config, materials(config), evaluate_on=splits)
    with pytest.raises(ValueError, match=message):
        train(config, materials(config), evaluate_once=splits)


# -- which epoch is kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["last", "training_environments", "worst_group", "pairs"])
def test_the_kept_epoch_is_the_rules(settings: Make, materials: Gather, rule: str) -> None:
    config = settings(epochs=6, learning_rate=0.05, schedule="constant", selection=rule)
    given = materials(config)
    outcome = train(config, given)
    kept = outcome.rows[select(rule, outcome.rows)]
    assert outcome.result["selection"] == rule
    assert outcome.result["selected_epoch"] == kept["epoch"]
    assert outcome.result["metrics"] == {**kept["test"], "pair_disagreement": kept["pair_disagreement"]}
    assert outcome.result["last_metrics"]["average"] == outcome.rows[-1]["test"]["average"]
    assert evaluate(outcome.model, given.table.part("test"), training=given.table.part("train")) == kept["test"]
    assert not outcome.model.training
    if rule == "worst_group":  # the rates above are such that it is not the last
        assert kept["epoch"] < 6


@pytest.mark.parametrize(
    ("rule", "changes", "evaluate_on", "message"),
    [
        ("pairs", {"held_out_pairs": 0}, None, "selection='pairs' needs held-out pairs and there are none"),
        ("pairs", {}, ("test",), "selection='pairs' needs validation images and there are none"),
        ("worst_group", {}, ("test",), "selection='worst_group' needs validation images"),
        ("training_environments", {}, (), "selection='training_environments' needs validation images"),
    ],
)
def test_a_rule_without_what_it_measures(
    settings: Make, materials: Gather, rule: str, changes: Any, evaluate_on: Any, message: str
) -> None:
    config = settings(selection=rule, **changes)
    with pytest.raises(ValueError, match=message):
        train(config, materials(config), evaluate_on=evaluate_on)


def test_held_out_pairs_of_which_there_are_none(settings: Make, materials: Gather) -> None:
    """An empty set measures as little as no set."""
    config = settings(selection="pairs")
    given = materials(config)
    assert given.held_out is not None
    with pytest.raises(ValueError, match="selection='pairs' needs held-out pairs and there are none"):
        train(config, replace(given, held_out=given.held_out.take(torch.arange(0))))


def test_data_without_validation_images(settings: Make, make_table: Callable[..., ImageTable]) -> None:
    config = settings("ipg", epochs=1)
    outcome = train(config, gather(config, table=make_table(validation=0)))
    assert outcome.rows[0]["validation"]["average"] is None
    assert outcome.rows[0]["pair_disagreement"] is None
    with pytest.raises(ValueError, match="needs validation images and there are none; use selection='last'"):
        train(config.with_changes(selection="worst_group"), gather(config, table=make_table(validation=0)))


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_that_is_not_a_number_ends_the_run(settings: Make, materials: Gather, method: str) -> None:
    config = settings(method, learning_rate=1e30, optimizer="sgd")
    with pytest.raises(NonFiniteError, match=r"NaN or infinite.*learning rate that is too high"):
        train(config, materials(config))


def test_a_collapse_ends_the_run_and_names_remedies(settings: Make, materials: Gather) -> None:
    """A head of zeros: every image stands on one point, and no gradient leads away from it."""
    config = settings("ipg", epochs=8, every=1, margin="0.1")
    given = materials(config)
    nn.init.zeros_(given.model.head.weight)  # type: ignore[union-attr, arg-type]
    with pytest.raises(CollapseError, match=r"the model has collapsed: .* Remedies: warm the learning rate up"):
        train(config, given)


def collapsed(materials: Materials) -> Materials:
    """With a head of zeros, which no gradient leads away from."""
    nn.init.zeros_(materials.model.head.weight)  # type: ignore[union-attr, arg-type]
    return materials


def test_a_short_run_that_collapses_does_not_end_as_if_all_were_well(
    settings: Make, materials: Gather, tmp_path: Path
) -> None:
    """Three corrections in all, where the watch waits for 20 while there is more to come."""
    config = settings("ipg", epochs=1, steps=3, every=1, margin="0.1", pair_batch=12)
    for _ in range(2):  # the same command again ends alike
        with pytest.raises(CollapseError, match="for 3 corrections all images of the pairs have stood on one point"):
            train(config, collapsed(materials(config)), folder=tmp_path)
        assert read_json(tmp_path / "failure.json")["kind"] == "CollapseError"
        assert not (tmp_path / "done").exists()


def test_a_good_epoch_that_was_kept_outlives_a_collapse(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=2, steps=3, every=1, margin="0.1", pair_batch=12, selection="worst_group")
    outcome = train(config, collapsed(materials(config)))  # all are alike, and of such the first is kept
    assert outcome.result["selected_epoch"] == 1


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After which iterations runs are checked."""
    found: list[int] = []
    check = loop.Training._check

    def noting(run: loop.Training) -> dict[str, float]:
        found.append(run.progress.step)
        return check(run)

    monkeypatch.setattr(loop.Training, "_check", noting)
    return found


@pytest.mark.parametrize("pause", [0.0, 1e9])
def test_when_a_run_is_checked_is_no_matter_of_the_clock(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, checks: list[int], pause: float
) -> None:
    """Each 64th iteration of the run, and the last of every epoch."""
    monkeypatch.setattr(loop, "LOOK_SECONDS", pause)
    config = settings(epochs=2, steps=100, model="linear")
    train(config, materials(config))
    assert checks == [64, 100, 128, 192, 200]


def test_a_resumed_run_is_checked_after_the_same_iterations(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, checks: list[int], tmp_path: Path
) -> None:
    config = settings(epochs=2, steps=100, model="linear")
    between: Callable[..., None] = loop.Training._between_steps

    def stopping(run: loop.Training, request: StopRequest) -> None:
        request.made = run.progress.step in (30, 64, 150)
        between(run, request)

    monkeypatch.setattr(loop.Training, "_between_steps", stopping)
    for _ in range(3):
        with pytest.raises(Interrupted):
            train(config, materials(config), folder=tmp_path)
    train(config, materials(config), folder=tmp_path)
    assert checks == [64, 100, 128, 192, 200]


@pytest.mark.parametrize("broken", ["collapse", "loss"])
def test_a_run_that_goes_wrong_ends_alike_at_any_speed(
    settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch, checks: list[int], broken: str
) -> None:
    """The network it leaves and what is said of it, however often somebody looks."""
    ends: list[tuple[str, Tensor]] = []
    for pause in (0.0, 1e9):
        monkeypatch.setattr(loop, "LOOK_SECONDS", pause)
        config = settings("ipg" if broken == "collapse" else "erm", epochs=1, steps=100, every=1, pair_batch=12)
        given = materials(config)
        if broken == "collapse":
            nn.init.zeros_(given.model.head.weight)  # type: ignore[union-attr, arg-type]
        else:
            nn.init.constant_(given.model.head.bias, math.inf)  # type: ignore[union-attr, arg-type]
        with pytest.raises((CollapseError, NonFiniteError)) as caught:
            train(config, given)
        ends.append((str(caught.value), bits(given.model)))
    (said, left), (also_said, also_left) = ends
    assert checks == [64, 64]
    assert said == also_said
    assert torch.equal(left.nan_to_num(), also_left.nan_to_num())


def test_pairs_that_are_needed_and_missing_leave_no_folder(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("ipg", pairs=0)
    with pytest.raises(ValueError, match="method 'ipg' is guided by pairs and there are none"):
        train(config, materials(config), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_is_left_without_hooks(settings: Make, materials: Gather) -> None:
    for config in (settings("ipg", epochs=1), settings("ipg", learning_rate=1e30, optimizer="sgd")):
        given = materials(config)
        try:
            train(config, given)
        except NonFiniteError:
            assert config.learning_rate == 1e30
        assert not any(module._forward_hooks for module in given.model.modules())


def test_a_device_that_is_not_there(settings: Make, materials: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = settings()
    with pytest.raises(ValueError, match="device 'cuda' is asked for and torch sees none here"):
        train(config.with_changes(device="cuda"), materials(config))


# -- what a run leaves -----------------------------------------------------------------------------------------------


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
    with pytest.raises(FolderError, match=r"holds another run: its data was another \(table, held_out_pairs\)"):
        train(config, gather(config, table=make_table(seed=1)), folder=tmp_path)


def test_another_network_is_refused(settings: Make, materials: Gather, tmp_path: Path) -> None:
    """One's own, which no setting names."""
    config = settings()
    train(config, materials(config), folder=tmp_path)
    other = replace(materials(config), model=build_model("mnist_cnn", channels=2, classes=2))
    with pytest.raises(FolderError, match=r"holds another run: .*\(network\)"):
        train(config, other, folder=tmp_path)


def test_bf16_runs_on_a_cpu(settings: Make, materials: Gather) -> None:
    config = settings("ipg", epochs=1)
    plain = train(config, materials(config))
    halved = config.with_changes(precision="bf16")
    outcome = train(halved, materials(halved))
    assert outcome.model.head.weight.dtype == torch.float32  # type: ignore[union-attr]
    assert not torch.equal(bits(outcome.model), bits(plain.model))


def test_it_learns(settings: Make, materials: Gather) -> None:
    """The bars are easy: guided training finds them in a few epochs."""
    config = settings("ipg", epochs=8, learning_rate=0.01)
    outcome = train(config, materials(config))
    assert outcome.result["metrics"]["worst_group"] == 1.0
    assert outcome.result["metrics"]["pair_disagreement"] == 0.0
