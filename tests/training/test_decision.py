"""A run that draws the line between classes on its validation images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ipg.classifier import open_run
from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.decision import decide, moved
from ipg.evaluation.groups import evaluate, logits, metrics
from ipg.evaluation.selection import select
from ipg.rationale import find_head
from ipg.training.loop import train
from ipg.training.materials import Materials, gather

Make = Callable[..., RunConfig]
Gather = Callable[[RunConfig], Materials]


def biases(model: nn.Module) -> Tensor:
    bias: Tensor = find_head(model).bias
    return bias.detach().double()


@pytest.mark.parametrize("rule", ["worst_group", "balanced"])
@pytest.mark.parametrize("method", ["erm", "ipg", "dfr"])
def test_the_network_that_is_kept_holds_the_line(settings: Make, materials: Gather, method: str, rule: str) -> None:
    """The same training, epoch by epoch; what is kept is that network with the offsets of its own logits."""
    config = settings(method, epochs=2)
    plain = train(config, materials(config))
    given = materials(config)
    drawn = train(config.with_changes(decision=rule), given)
    table, kept = given.table, drawn.rows[-1]
    assert [row["train"] for row in drawn.rows] == [row["train"] for row in plain.rows]
    offsets = decide(logits(plain.model, table.part("validation").images), table.part("validation"), rule)
    assert kept["offsets"] == drawn.result["offsets"] == offsets.tolist()
    assert offsets.any()
    torch.testing.assert_close(biases(drawn.model), biases(plain.model) + offsets, rtol=1e-6, atol=1e-6)
    assert evaluate(drawn.model, table.part("test"), training=table.part("train")) == kept["test"]
    said = logits(plain.model, table.part("test").images) + offsets
    assert kept["test"]["groups"] == metrics(said, table.part("test"))["groups"]
    measure = "worst_group" if rule == "worst_group" else "balanced"
    assert kept["validation"][measure] >= plain.rows[-1]["validation"][measure]
    assert "offsets" not in plain.result


def test_epochs_are_chosen_by_what_they_are_worth_with_their_line(settings: Make, materials: Gather) -> None:
    config = settings(epochs=6, learning_rate=0.05, schedule="constant", selection="worst_group")
    plain = train(config, materials(config))
    drawn = train(config.with_changes(decision="worst_group"), materials(config))
    assert drawn.result["selected_epoch"] == drawn.rows[select("worst_group", drawn.rows)]["epoch"]
    for one, other in zip(plain.rows, drawn.rows, strict=True):
        assert other["validation"]["worst_group"] >= one["validation"]["worst_group"]
    assert drawn.rows != plain.rows


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_in_bf16_the_line_that_scored_is_the_one_that_is_kept(
    settings: Make, make_table: Callable[..., ImageTable], seed: int
) -> None:
    """Biases of 20 make the network round its logits to eighths; no line beside the kept one does better."""
    table = make_table(validation=400)
    config = settings(model="linear", epochs=1, seed=seed, precision="bf16", decision="worst_group", learning_rate=1e-9)
    given = gather(config, table=table)
    nn.init.constant_(find_head(given.model).bias, 20.0)
    outcome = train(config, given)
    part = table.part("validation")

    def score(shift: float) -> float:
        with moved(find_head(outcome.model), torch.tensor([0.0, shift])):
            worst: float = evaluate(outcome.model, part, autocast=torch.bfloat16)["worst_group"]
        return worst

    shown = outcome.rows[-1]["validation"]["worst_group"]
    assert shown == score(0.0)
    assert shown == max(score(shift) for shift in torch.arange(-0.5, 0.5, 0.02).tolist())


def test_the_line_goes_where_the_run_goes(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("ipg", decision="worst_group")
    outcome = train(config, materials(config), folder=tmp_path / "run")
    again = train(config, materials(config), folder=tmp_path / "run")
    assert again.result["offsets"] == outcome.result["offsets"]
    loaded = open_run(tmp_path / "run", device="cpu")
    assert torch.equal(biases(loaded.model), biases(outcome.model))


def test_the_first_of_two_stages_is_left_as_it_is(settings: Make, materials: Gather, tmp_path: Path) -> None:
    config = settings("jtt", decision="worst_group")
    outcome = train(config, materials(config), folder=tmp_path / "run")
    assert "offsets" in outcome.result
    first = (tmp_path / "run" / "first_stage" / "result.json").read_text(encoding="utf-8")
    assert '"decision": "argmax"' in first


def test_what_cannot_be_is_said_before_training(
    settings: Make, make_table: Callable[..., ImageTable], materials: Gather, tmp_path: Path
) -> None:
    config = settings(decision="balanced")
    with pytest.raises(ValueError, match="decision='balanced' needs validation images and there are none"):
        train(config, gather(config, table=make_table(validation=0)))
    given = materials(config)
    find_head(given.model).bias = None
    with pytest.raises(ValueError, match=r"has no biases.*use decision='argmax'"):
        train(config, given, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
