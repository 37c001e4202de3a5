"""Deep Feature Reweighting: a last layer fitted to balanced validation features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.features import features
from ipg.methods import Setup
from ipg.methods.dfr import STRENGTHS, Dfr, balanced, some_of_all
from ipg.methods.sparse_logistic import sparse_logistic
from ipg.models import build_model
from ipg.rationale import find_head
from ipg.seeds import derive_seed
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
    table = even(table)
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
        for strength in STRENGTHS
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
        says = f"validation images of every group in two, and there is one alone of {table.group_names[1]}: add some"
        with pytest.raises(ValueError, match=says):
            train(config, gather(config, table=small))
        return
    assert len(rarest) > 2
    assert train(config, gather(config, table=small)).rows[-1]["refitted"] == 1


def test_without_validation_groups_it_refuses(config: RunConfig, table: ImageTable) -> None:
    bare = replace(table, attribute=torch.zeros_like(table.attribute))
    with pytest.raises(ValueError, match="'dfr' needs validation images whose attribute is known, and there are none"):
        train(config, gather(config, table=bare))


def test_the_strengths_are_those_of_the_paper() -> None:
    assert STRENGTHS == (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)


def even(table: ImageTable) -> ImageTable:
    """The table with as many validation images of one group as of another: a balanced draw has all of them."""
    validation = table.indices("validation")
    rows = validation[balanced(table.group[validation], torch.Generator().manual_seed(0))]
    return table.take(torch.cat([table.indices("train"), rows, table.indices("test")]))


@pytest.mark.parametrize("standardised", [True, False])
def test_the_head_is_the_minimum_with_or_without_standardising(
    standardised: bool, config: RunConfig, table: ImageTable
) -> None:
    """With one draw and groups of one size all images are fitted to: there slopes are as long as the penalty.

    Of features as they are that is the same for all; weights of standardised ones cost their features' spread.
    """
    given = config.with_changes(options={"draws": 1, "standardised": standardised})
    table = even(table)
    outcome = train(given, gather(given, table=table))
    part, head = table.part("validation"), find_head(outcome.model)
    inputs = features(outcome.model, part.images).double().detach()
    weight, bias = (part.detach().double().requires_grad_() for part in (head.weight, head.bias))
    (slope,) = torch.autograd.grad(F.cross_entropy(inputs @ weight.T + bias, part.label), [weight])
    used = weight.detach() != 0
    plain = (-slope * weight.detach().sign())[used]
    scaled = plain / inputs.std(dim=0).expand_as(weight)[used]

    def is_a_penalty(costs: Tensor) -> bool:
        return any(costs.tolist() == pytest.approx([1 / (C * len(part))] * len(costs), rel=1e-2) for C in STRENGTHS)

    assert used.any()
    assert (is_a_penalty(scaled), is_a_penalty(plain)) == (standardised, not standardised)


def test_some_of_all_groups() -> None:
    group = torch.tensor([0] * 8 + [2] * 3 + [3] * 5)
    rows = some_of_all(group, 0.5, torch.Generator().manual_seed(0))
    assert torch.bincount(group[rows]).tolist() == [4, 0, 2, 3]  # two at least, to be split in two
    assert len(set(rows.tolist())) == len(rows)
    assert rows.tolist() == sorted(rows.tolist())


def test_a_share_is_fitted_to_and_the_rest_has_no_part(config: RunConfig, table: ImageTable) -> None:
    """Images that were not drawn may be anything: the head stays the same."""
    method = Dfr.__new__(Dfr)  # the refit alone needs neither an optimizer nor images to train on
    table = even(table)
    model = train(config, gather(config, table=table)).model
    part = table.part("validation")

    def head(validation: ImageTable, share: float) -> Tensor:
        method.options = Dfr.Options(draws=2, share=share)
        method.setup = SimpleNamespace(config=config)
        refitted = copy.deepcopy(model)
        method.refit(refitted, validation)
        return find_head(refitted).weight.detach()

    generator = torch.Generator().manual_seed(derive_seed(config.seed, "refit"))
    drawn = some_of_all(part.group, 0.5, generator)
    assert 0 < len(drawn) < len(part)
    images = torch.zeros_like(part.images)
    images[drawn] = part.images[drawn]
    other = replace(part, images=images)
    assert torch.equal(head(part, 0.5), head(other, 0.5))
    assert not torch.equal(head(part, 1.0), head(other, 1.0))


def test_a_share_of_all_is_the_refit_without_a_share(config: RunConfig, table: ImageTable) -> None:
    said = config.with_changes(options={"draws": 3, "share": 1.0, "standardised": True})
    one, other = (train(given, gather(given, table=table)) for given in (config, said))
    assert torch.equal(find_head(one.model).weight, find_head(other.model).weight)
