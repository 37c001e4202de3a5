"""Deep Feature Reweighting: a last layer fitted to balanced validation features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.features import features
from ipg.methods import Setup
from ipg.methods.dfr import Dfr, balanced
from ipg.methods.sparse_logistic import sparse_logistic
from ipg.models import build_model
from ipg.rationale import find_head
from ipg.training.loop import train
from ipg.training.materials import gather


@pytest.fixture
def table(make_table: Callable[..., ImageTable]) -> ImageTable:
    return make_table(train=40, validation=40, test=20)


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(method="dfr", epochs=2, batch=16, device="cpu", held_out_pairs=0, options={"draws": 3})


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(60, 8, generator=generator, dtype=torch.float64)
    label = (inputs[:, 0] + 0.5 * torch.randn(60, generator=generator, dtype=torch.float64) > 0).long()
    return inputs, label


@pytest.mark.parametrize("penalty", [0.003, 0.03, 0.1])
def test_the_fit_is_the_minimum(penalty: float) -> None:
    """There the slope by a weight w is −penalty·sign(w) where w is not 0, and at most the penalty where it is."""
    inputs, label = problem()
    weight, bias = sparse_logistic(inputs, label, 2, penalty=penalty, iterations=5000)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    slopes = torch.autograd.grad(F.cross_entropy(inputs @ weight.T + bias, label), [weight, bias])
    used = weight.detach() != 0
    assert used.any()
    torch.testing.assert_close(slopes[0][used], -penalty * weight.detach()[used].sign(), atol=1e-7, rtol=0)
    assert (slopes[0][~used].abs() <= penalty + 1e-7).all()
    assert slopes[1].abs().max() < 1e-7


def test_a_large_penalty_leaves_the_biases_alone() -> None:
    inputs, label = problem()
    weight, bias = sparse_logistic(inputs, label, 2, penalty=10.0, iterations=3000)
    assert (weight == 0).all()
    share = label.double().mean()
    assert (bias[1] - bias[0]).item() == pytest.approx(torch.logit(share).item(), abs=1e-6)


def test_balanced_rows_have_every_group_alike() -> None:
    group = torch.tensor([0] * 7 + [2] * 3 + [3] * 5)
    rows = balanced(group, torch.Generator().manual_seed(0))
    assert torch.bincount(group[rows]).tolist() == [3, 0, 3, 3]
    assert len(set(rows.tolist())) == 9


def test_the_refit_is_one_row_more_and_what_is_kept(config: RunConfig, table: ImageTable) -> None:
    outcome = train(config, gather(config, table=table))
    plain = config.with_changes(method="erm", options={})
    erm = train(plain, gather(plain, table=table))
    assert [row["epoch"] for row in outcome.rows] == [1, 2, 3]
    assert [row.get("refitted") for row in outcome.rows] == [None, None, 2]
    assert (outcome.result["selected_epoch"], outcome.result["refitted_epoch"]) == (3, 2)
    assert "refitted_epoch" not in erm.result
    for row, other in zip(outcome.rows, erm.rows, strict=False):
        assert row["test"] == other["test"]  # until then it is plain training
    head = find_head(outcome.model)
    for name, value in outcome.model.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(value, erm.model.state_dict()[name])
    assert not torch.equal(head.weight, find_head(erm.model).weight)


def test_the_head_is_the_mean_of_fits_on_standardised_features(config: RunConfig, table: ImageTable) -> None:
    """With one draw and groups of one size all rows are drawn: the fit can be made again, but for the strength."""
    given = config.with_changes(options={"draws": 1})
    validation = table.indices("validation")
    even = validation[balanced(table.group[validation], torch.Generator().manual_seed(0))]
    table = table.take(torch.cat([table.indices("train"), even, table.indices("test")]))
    outcome = train(given, gather(given, table=table))
    part = table.part("validation")
    inputs = features(outcome.model, part.images).double()
    scaled = (inputs - inputs.mean(dim=0)) / inputs.std(dim=0).clamp_min(1e-6)
    head = find_head(outcome.model)
    found = (inputs @ head.weight.double().T + head.bias.double()).argmax(dim=1)
    counts = torch.bincount(part.group)
    assert len(set(counts[counts > 0].tolist())) == 1
    fits = [
        (scaled @ weight.T + bias).argmax(dim=1)
        for strength in (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
        for weight, bias in [sparse_logistic(scaled, part.label, 2, penalty=1 / (strength * len(part)))]
    ]
    assert any(torch.equal(found, fit) for fit in fits)


def test_a_single_logit_is_the_difference_of_two(config: RunConfig, table: ImageTable) -> None:
    """One network with a logit o, given as (0, o), and its twin with a logit a class: the same features are fitted."""
    single = build_model("irm_mlp_83", channels=2, classes=2, size=table.images.shape[-1])
    twin = copy.deepcopy(single)
    twin.head = nn.Linear(83, 2)
    heads = []
    for model in (single, twin):
        method = Dfr(Setup(model, torch.optim.SGD(model.parameters()), nn.CrossEntropyLoss(), config,
                           validation=table.part("validation")))  # fmt: skip
        method.refit(model, table.part("validation"))
        heads.append(find_head(model))
    torch.testing.assert_close(heads[0].weight[0], heads[1].weight[1] - heads[1].weight[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(heads[0].bias[0], heads[1].bias[1] - heads[1].bias[0], atol=1e-6, rtol=1e-5)
    assert heads[0].weight.abs().max() > 0


@pytest.mark.parametrize(
    ("model", "message"), [("xdnn_small_cnn", "'dfr' fits a bias, and"), ("bcos_small_cnn", "no linear head found")]
)
def test_a_head_that_cannot_be_fitted_is_refused_before_training(
    config: RunConfig, table: ImageTable, model: str, message: str
) -> None:
    config = config.with_changes(model=model)
    materials = gather(config, table=table)
    before = {name: value.clone() for name, value in materials.model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        train(config, materials)
    assert all(torch.equal(value, before[name]) for name, value in materials.model.state_dict().items())


def test_it_is_resumed_and_repeated(config: RunConfig, table: ImageTable, tmp_path: Path) -> None:
    one, other = (train(config, gather(config, table=table), folder=tmp_path / name) for name in ("a", "b"))
    again = train(config, gather(config, table=table), folder=tmp_path / "a")
    for outcome in (other, again):
        assert outcome.rows[-1]["test"] == one.rows[-1]["test"]
        assert all(torch.equal(v, one.model.state_dict()[n]) for n, v in outcome.model.state_dict().items())


@pytest.mark.parametrize("smallest", [1, 2])
def test_every_group_has_an_image_to_fit_and_one_to_judge_by(
    config: RunConfig, table: ImageTable, smallest: int
) -> None:
    validation = table.split == table.splits.index("validation")
    rarest = torch.nonzero(validation & (table.group == 1)).flatten()
    kept = torch.ones(len(table), dtype=torch.bool).index_fill_(0, rarest[smallest:], False)
    small = table.take(kept)
    config = config.with_changes(epochs=1)
    if smallest == 1:
        with pytest.raises(ValueError, match="'dfr' splits the validation images of every group in two, and the small"):
            train(config, gather(config, table=small))
        return
    assert len(rarest) > 2
    assert train(config, gather(config, table=small)).rows[-1]["refitted"] == 1


def test_without_validation_groups_it_refuses(config: RunConfig, table: ImageTable) -> None:
    bare = replace(table, attribute=torch.zeros_like(table.attribute))
    with pytest.raises(ValueError, match="'dfr' needs validation images whose attribute is known, and there are none"):
        train(config, gather(config, table=bare))
