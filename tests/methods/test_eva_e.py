"""EvA-E: energies by hand, which channels are erased, and that the fit without them is the minimum."""

from __future__ import annotations

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
from ipg.evaluation.features import features
from ipg.methods import Setup, eva_e, method_class
from ipg.methods.eva_e import SHARES, energies, fit_kept, kept_channels
from ipg.rationale import find_head
from ipg.training.loop import train
from ipg.training.materials import gather


@pytest.fixture
def table(make_table: Callable[..., ImageTable]) -> ImageTable:
    return make_table(train=60, validation=40, test=20)


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(method="eva_e", epochs=2, batch=16, device="cpu", held_out_pairs=0)


def problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(70, 8, generator=generator, dtype=torch.float64)
    label = (inputs[:, 0] + 0.7 * torch.randn(70, generator=generator, dtype=torch.float64) > 0.5).long()
    weight = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    return inputs, label, weight, torch.randn(2, generator=generator, dtype=torch.float64)


def test_energies_by_hand() -> None:
    """One image of class 0 and two channels; logits ln 3 and 0, so that p = (¾, ¼)."""
    inputs = torch.tensor([[math.log(3), 2.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    bias = torch.zeros(2, dtype=torch.float64)
    label = torch.tensor([0])
    found = energies(inputs, label, weight, bias, "class")
    assert found[0].tolist() == pytest.approx([-0.75 * math.log(3), 0])
    assert found[1].tolist() == [0, 0]  # no image of class 1
    weight = torch.tensor([[1.0, 5.0], [0.0, 5.0]], dtype=torch.float64)
    found = energies(inputs, label, weight, bias, "activation")
    assert found[0].tolist() == pytest.approx([-math.log(3) * 0.75, -2 * 5])


@pytest.mark.parametrize("evidence", ["class", "activation"])
def test_energies_against_loops(evidence: Any) -> None:
    inputs, label, weight, bias = problem()
    found = energies(inputs, label, weight, bias, evidence)
    for k in range(2):
        for i in range(8):
            each = []
            for x, y in zip(inputs, label.tolist(), strict=True):
                if y != k:
                    continue
                scores = [math.exp(float(weight[c] @ x + bias[c])) for c in range(2)]
                share = [score / sum(scores) for score in scores]
                own = share[k] * float(weight[k, i])
                mixed = sum(share[c] * float(weight[c, i]) for c in range(2))
                each.append(-float(x[i]) * (own if evidence == "class" else mixed))
            assert found[k, i].item() == pytest.approx(sum(each) / len(each), abs=1e-12)


def test_the_lowest_are_erased() -> None:
    energy = torch.tensor([[3.0, -1.0, -5.0, 0.0], [0.0, 0.0, -1.0, -2.0]])
    assert kept_channels(energy, 0.5).tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]
    assert kept_channels(energy, 0.25).tolist() == [[1, 1, 0, 1], [1, 1, 1, 0]]
    assert kept_channels(energy, 0.01).tolist() == [[1] * 4] * 2
    assert kept_channels(energy, 0.2).tolist() == kept_channels(energy, 0.25).tolist()  # rounded to whole channels


@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
def test_the_fit_is_the_minimum(penalty: float) -> None:
    """Where the slope of the balanced loss, formed here anew, is 0 in all that is kept."""
    inputs, label, weight, bias = problem()
    kept = kept_channels(energies(inputs, label, weight, bias, "class"), 0.3)
    assert 0 < kept.sum() < kept.numel()
    weight, bias = fit_kept(inputs, label, kept, penalty=penalty)
    assert not weight[kept == 0].any()
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    parts = [F.cross_entropy(inputs[label == k] @ weight.T + bias, label[label == k]) for k in range(2)]
    loss = sum(parts) / 2 + penalty / (2 * len(inputs)) * weight.square().sum()
    slopes = torch.autograd.grad(torch.as_tensor(loss), [weight, bias])
    assert slopes[0][kept == 1].abs().max() < 1e-7
    assert slopes[1].abs().max() < 1e-7


def test_the_fit_without_biases_is_the_minimum_without_biases() -> None:
    inputs, label, weight, bias = problem()
    kept = kept_channels(energies(inputs, label, weight, bias, "class"), 0.3)
    weight, bias = fit_kept(inputs, label, kept, penalty=1.0, biased=False)
    assert not bias.any()
    weight.requires_grad_()
    parts = [F.cross_entropy(inputs[label == k] @ weight.T, label[label == k]) for k in range(2)]
    loss = sum(parts) / 2 + 1 / (2 * len(inputs)) * weight.square().sum()
    (slope,) = torch.autograd.grad(torch.as_tensor(loss), [weight])
    assert slope[kept == 1].abs().max() < 1e-7
    assert (weight - fit_kept(inputs, label, kept, penalty=1.0)[0]).abs().max() > 1e-3


def test_a_head_without_biases_is_fitted_as_it_is(config: RunConfig, make_table: Callable[..., ImageTable]) -> None:
    """Bright images, so that a bias that is fitted and then dropped would be missed."""
    table = make_table(train=60, validation=40, test=20)
    table = replace(table, images=(table.images.float() * 0.2 + 200).byte())
    model = nn.Sequential(nn.Flatten(), nn.Linear(table.images[0].numel(), 2, bias=False))
    given = config.with_changes(epochs=1, learning_rate=1e-6)
    outcome = train(given, replace(gather(given, table=table), model=model))
    assert outcome.rows[-1]["validation"]["average"] > 0.9


def test_a_class_without_images_weighs_nothing() -> None:
    inputs, label, _, _ = problem()
    weight, bias = fit_kept(inputs, label, torch.ones(3, 8, dtype=torch.float64), penalty=1.0)
    assert weight.isfinite().all()
    assert not (inputs @ weight.T + bias).argmax(dim=1).eq(2).any()


@pytest.mark.parametrize("judge", ["average", "worst_group"])
def test_the_refit_is_the_best_share_on_validation_images(config: RunConfig, table: ImageTable, judge: str) -> None:
    given = config.with_changes(options={"judge": judge})
    outcome = train(given, gather(given, table=table))
    plain = config.with_changes(method="erm")
    erm = train(plain, gather(plain, table=table))
    assert [row["epoch"] for row in outcome.rows] == [1, 2, 3]
    assert [row["test"] for row in outcome.rows[:2]] == [row["test"] for row in erm.rows]  # until then plain training
    for name, value in outcome.model.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(value, erm.model.state_dict()[name])
    part, judged = table.part("train"), table.part("validation")
    inputs, seen = (features(erm.model, each.images).double() for each in (part, judged))
    head = find_head(erm.model)
    energy = energies(inputs, part.label, head.weight.detach().double(), head.bias.detach().double(), "class")
    best, expected = -1.0, None
    for share in SHARES:
        weight, bias = fit_kept(inputs, part.label, kept_channels(energy, share), penalty=1.0)
        right = ((seen @ weight.T + bias).argmax(dim=1) == judged.label).double()
        groups = [right[judged.group == g].mean().item() for g in judged.group.unique().tolist()]
        value = right.mean().item() if judge == "average" else min(groups)
        if value > best:
            best, expected = value, weight
    assert expected is not None
    torch.testing.assert_close(find_head(outcome.model).weight.double(), expected, atol=1e-6, rtol=1e-5)


def test_it_is_resumed_and_repeated(config: RunConfig, table: ImageTable, tmp_path: Path) -> None:
    one, other = (train(config, gather(config, table=table), folder=tmp_path / name) for name in ("a", "b"))
    again = train(config, gather(config, table=table), folder=tmp_path / "a")
    for outcome in (other, again):
        assert all(torch.equal(v, one.model.state_dict()[n]) for n, v in outcome.model.state_dict().items())


def test_what_is_refused(config: RunConfig, table: ImageTable) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 1))
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), config, table=table)
    with pytest.raises(ValueError, match="chooses how much to erase on validation images, and there are none: give"):
        method_class("eva_e")(setup)
    with pytest.raises(ValueError, match="'eva_e' needs a last layer with an output for each class"):
        method_class("eva_e")(replace(setup, validation=table))
    bare = replace(table, attribute=torch.zeros_like(table.attribute))
    given = config.with_changes(options={"judge": "worst_group"})
    with pytest.raises(ValueError, match="judge=worst_group needs validation images whose attribute is known: take"):
        train(given, gather(given, table=bare))


def test_the_refit_says_of_which_epoch_it_is_and_is_taken_up_again(
    config: RunConfig, table: ImageTable, tmp_path: Path
) -> None:
    chosen = config.with_changes(selection="worst_group", learning_rate=0.05, schedule="constant", epochs=6)
    plain = train(chosen.with_changes(method="erm"), gather(chosen.with_changes(method="erm"), table=table))
    best = plain.result["selected_epoch"]
    assert best < 6
    outcome = train(chosen, gather(chosen, table=table), folder=tmp_path)
    assert [row["epoch"] for row in outcome.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert outcome.rows[-1]["refitted"] == outcome.result["refitted_epoch"] == best
    assert outcome.result["selected_epoch"] == 7
    model = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "done").unlink()
    again = train(chosen, gather(chosen, table=table), folder=tmp_path)  # from the checkpoint after the refit
    timeless = {"seconds": 0, "preparing_seconds": 0, "date": ""}
    assert again.result | timeless == outcome.result | timeless
    assert (tmp_path / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize("biased", [True, False])
def test_both_solvers_find_the_minimum(monkeypatch: pytest.MonkeyPatch, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(200, 6, generator=generator, dtype=torch.float64) @ torch.rand(6, 6, dtype=torch.float64)
    inputs = inputs * torch.tensor([1, 3, 0.1, 1, 10, 0.3], dtype=torch.float64)  # as features are: alike and uneven
    label = torch.randint(3, (200,), generator=generator)
    kept = (torch.rand(3, 6, generator=generator) > 0.3).double()
    found = fit_kept(inputs, label, kept, penalty=0.5, biased=biased)
    monkeypatch.setattr(eva_e, "NEWTON", 0)
    other = fit_kept(inputs, label, kept, penalty=0.5, biased=biased)
    torch.testing.assert_close(found[0], other[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*(bias - bias.mean() for bias in (found[1], other[1])), atol=1e-5, rtol=1e-5)
    assert bool((found[0][kept == 0] == 0).all())
