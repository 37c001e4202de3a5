"""Networks in shards, by a process alone: its shards are whole, and all else is as with many (tests/distributed)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.config import RunConfig
from ipg.evaluation.decision import moved
from ipg.evaluation.groups import logits
from ipg.experiments.study import Trial
from ipg.methods import METHODS, method_class
from ipg.models.small import MODELS, build_small
from ipg.training.blocks import find_blocks, find_groups
from ipg.training.distributed import Team
from ipg.training.identity import identify
from ipg.training.loop import train
from ipg.training.materials import Materials, gather
from ipg.training.optimization import make_optimizer
from ipg.training.sharding import (
    at_rest,
    check_shards,
    is_sharded,
    laid_like,
    optimizer_laid,
    outlined,
    sharded,
    whole,
)

DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[torch.device]:
    """A device with a process group of this process alone."""
    backend = {"cpu": "gloo", "cuda": "nccl"}[request.param]
    dist.init_process_group(backend, init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield torch.device(request.param)
    dist.destroy_process_group()


class Tied(nn.Module):
    """Three blocks, of which the last two share a weight, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Residual() for _ in range(3)))
        self.blocks[2].inner[0].weight = self.blocks[1].inner[0].weight
        self.head = nn.Linear(4, 2)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(rows.flatten(1)))
        return logits


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.inner(rows)


class Reading(Tied):
    """A network that reads the weights of its blocks without running the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Residual() for _ in range(3)))

    def forward(self, rows: Tensor) -> Tensor:
        first, *others = self.blocks
        rows = F.linear(rows.flatten(1), first.inner[0].weight)
        for block in others:
            rows = block(rows)
        logits: Tensor = self.head(rows)
        return logits


# -- blocks ----------------------------------------------------------------------------------------------------------


def names(model: nn.Module, modules: list[nn.Module]) -> list[str]:
    return [name for name, module in model.named_modules() if any(module is one for one in modules)]


def test_layers_of_a_transformer_are_its_blocks_and_small_networks_are_one() -> None:
    blocks = {name: names(model, find_blocks(model)) for name in MODELS if (model := small(name)) is not None}
    assert blocks.pop("small_vit") == [f"body.layers.{layer}" for layer in range(3)]
    assert not any(blocks.values())  # on a GPU in half precision a kernel reads all their weights


def small(name: str) -> nn.Module:
    return build_small(name, channels=2, classes=2, size=28)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_tiny_patch16_224", [f"blocks.{block}" for block in range(12)]),
        ("resnet18", [f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2)]),
        (
            "convnext_tiny",  # its first stages are small, of its others the blocks are taken
            ["stages.0", "stages.1", *(f"stages.2.blocks.{n}" for n in range(9)),
             *(f"stages.3.blocks.{n}" for n in range(3))],
        ),
        ("vgg11", []),
    ],
)  # fmt: skip
def test_blocks_of_networks_of_timm(name: str, expected: list[str]) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=2)
    found = find_blocks(model)
    assert names(model, found) == expected
    head = model.get_classifier()
    assert not any(module is head for block in found for module in block.modules())


def test_blocks_that_share_weights_or_hold_the_head_stay_with_the_rest() -> None:
    model = Tied()
    assert names(model, find_blocks(model)) == ["blocks.0"]
    row = nn.Sequential(Residual(), Residual(), nn.Sequential(Residual(), nn.Linear(4, 2)))
    assert names(row, find_blocks(row)) == ["0", "1", "2.0"]


def test_a_block_that_is_only_read_stays_with_the_rest() -> None:
    model = Reading()
    assert names(model, find_blocks(model)) == ["blocks.0", "blocks.1", "blocks.2"]
    groups = find_groups(model, torch.rand(1, 1, 2, 2), bf16=False)
    assert [names(model, group) for group in groups] == [["blocks.1"], ["blocks.2"]]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_in_bf16_the_layers_that_multiply_are_gathered_and_norms_stay() -> None:
    model = small("small_vit")
    groups = find_groups(model, torch.rand(1, 2, 28, 28), bf16=True)
    layers = [[f"body.layers.{n}.{part}" for part in ("self_attn", "linear1", "linear2")] for n in range(3)]
    assert [names(model, group) for group in groups] == layers


# -- the same network ------------------------------------------------------------------------------------------------


def gradients(
    model: nn.Module, images: Tensor, label: Tensor, dtype: torch.dtype | None
) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not None):
        said = model(images)
    F.cross_entropy(said.float(), label).backward()
    found = whole({name: parameter.grad for name, parameter in model.named_parameters()})
    return said.detach(), {name: value.cpu() for name, value in found.items()}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18", "small_vit"])
def test_a_network_in_shards_computes_what_it_did(device: torch.device, name: str, dtype: torch.dtype | None) -> None:
    """In bf16, too: what is gathered in it is what autocast rounds in any case."""
    torch.manual_seed(0)
    side = 28 if name in MODELS else 32
    if name in MODELS:
        plain = build_small(name, channels=3, classes=2, size=side)
    else:
        timm = pytest.importorskip("timm")
        size = {"img_size": side} if name.startswith("vit") else {}
        plain = timm.create_model(name, num_classes=2, **size)
    plain.eval()  # BatchNorm keeps its statistics
    images, label = torch.rand(4, 3, side, side, device=device), torch.tensor([0, 1, 1, 0], device=device)
    shards = sharded(copy.deepcopy(plain), images[:1].cpu(), device, bf16=dtype is not None)
    assert is_sharded(shards)
    assert not is_sharded(plain)
    assert all(hasattr(parameter, "full_tensor") for parameter in shards.parameters())
    with torch.backends.cudnn.flags(deterministic=True):
        expected, slopes = gradients(plain.to(device), images, label, dtype)
        said, found = gradients(shards, images, label, dtype)
    torch.testing.assert_close(said, expected, rtol=0, atol=0)
    many = dtype is not None and name == "small_vit"  # the three inputs of torch's attention are no longer one
    tolerance = {"rtol": 0.05, "atol": 1e-3} if many else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found, slopes, **tolerance)


class Turned(Residual):
    """A block that gives a view."""

    def forward(self, rows: Tensor) -> Tensor:
        return (rows + self.inner(rows)).flip(1).view(len(rows), 2, 2).flatten(1)


class InPlace(Tied):
    """A network that changes in place what its blocks give."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Turned() for _ in range(3)))

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.flatten(1)
        for block in self.blocks:
            rows = block(rows)
            rows *= 2
        logits: Tensor = self.head(rows)
        return logits


def test_what_blocks_give_may_be_changed_in_place(device: torch.device) -> None:
    torch.manual_seed(0)
    plain, images, label = InPlace(), torch.rand(4, 1, 2, 2, device=device), torch.tensor([0, 1, 1, 0], device=device)
    assert plain.blocks[0](torch.rand(2, 4))._base is not None, "no view"
    shards = sharded(copy.deepcopy(plain), images[:1].cpu(), device, bf16=False)
    _, expected = gradients(plain.to(device), images, label, None)
    _, found = gradients(shards, images, label, None)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_weights_of_blocks_are_gathered_in_the_precision_of_the_run(device: torch.device) -> None:
    """The head's are not: rationales are compared in full precision."""
    shards = sharded(small("small_vit"), torch.rand(1, 2, 28, 28), device, bf16=True)
    seen: dict[str, torch.dtype] = {}
    for name in ("body.layers.0.linear1", "body.layers.0.norm1", "head"):
        layer = shards.get_submodule(name)
        layer.register_forward_hook(lambda module, _, __, name=name: seen.update({name: module.weight.dtype}))
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        shards(torch.rand(2, 2, 28, 28, device=device))
    assert seen == {
        "body.layers.0.linear1": torch.bfloat16,
        "body.layers.0.norm1": torch.float32,
        "head": torch.float32,
    }
    assert not hasattr(shards.head.weight, "full_tensor")
    at_rest(shards)
    assert hasattr(shards.head.weight, "full_tensor")
    assert {parameter.dtype for parameter in shards.parameters()} == {torch.float32}


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_states_are_whole_in_files_and_in_shards_again(device: torch.device, kind: str) -> None:
    torch.manual_seed(0)
    config = RunConfig(optimizer=kind, learning_rate=0.01)
    # In float64, for the bias of keys has no gradient but rounding, which Adam would make steps of in float32.
    example = torch.rand(1, 2, 28, 28, dtype=torch.float64)
    plain = small("small_vit").to(device, torch.float64)
    shards = sharded(copy.deepcopy(plain), example, device, bf16=False)
    images = torch.rand(4, 2, 28, 28, dtype=torch.float64, device=device)
    label = torch.tensor([0, 1, 1, 0], device=device)
    states: list[dict[str, Any]] = []
    for model in (plain, shards):
        optimizer = make_optimizer(model, config, device)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(images), label).backward()
            optimizer.step()
        states.append(whole({"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}))
    expected, found = states
    entries = [state["optimizer"]["state"] for state in states]
    close = {"rtol": 1e-4, "atol": 1e-6, "check_device": False}
    torch.testing.assert_close(found["model"], expected["model"], **close)
    torch.testing.assert_close(entries[1], entries[0], **close)
    assert whole(dict(shards.state_dict()), keep=False) == dict.fromkeys(shards.state_dict())

    state = {**found, "progress": {"kept": found["model"], "step": 3}, "method": torch.ones(2)}
    told = outlined(lambda tell: tell(), lambda: state)
    assert told is state  # the first process has it all
    fresh = sharded(small("small_vit").double(), example, device, bf16=False)
    fresh.load_state_dict(laid_like(fresh.state_dict(), told["model"]))
    torch.testing.assert_close(whole(dict(fresh.state_dict())), found["model"], rtol=0, atol=0)
    laid = optimizer_laid(optimizer, told["optimizer"])
    torch.testing.assert_close(whole(laid)["state"], found["optimizer"]["state"], rtol=0, atol=0, check_device=False)
    assert laid_like(plain.state_dict(), expected["model"]) is expected["model"]  # of a network that is whole


def test_others_are_told_all_but_weights_and_optimizer_states() -> None:
    weight = torch.arange(6.0).view(2, 3)
    optimizer = {"state": {0: {"step": torch.ones(()), "exp_avg": weight}}, "param_groups": [{"params": [0]}]}
    state = {
        "progress": {"kept": {"w": weight}, "step": 3},
        "model": {"w": weight},
        "optimizer": optimizer,
        "means": weight,
    }
    messages: list[Any] = []
    assert outlined(lambda tell: messages.append(tell()), lambda: state) is state
    (told,) = messages
    for outline in (told["progress"]["kept"]["w"], told["model"]["w"], told["optimizer"]["state"][0]["exp_avg"]):
        assert outline.is_meta
        assert outline.shape == weight.shape
    assert told["progress"]["step"] == 3
    assert told["optimizer"]["param_groups"] == optimizer["param_groups"]
    torch.testing.assert_close(told["means"], weight)
    assert outlined(lambda tell: tell(), lambda: None) is None


def test_the_line_between_classes_moves_in_shards(device: torch.device) -> None:
    model = sharded(small("small_vit"), torch.rand(1, 2, 28, 28), device, bf16=False)
    images = torch.randint(256, (5, 2, 28, 28), dtype=torch.uint8, device=device)
    team, bias = Team(), whole({"bias": model.head.bias})["bias"]
    before = team.logits(model, images, autocast=None)
    with moved(model.head, torch.tensor([0.0, 3.0], dtype=torch.float64)):
        after = team.logits(model, images, autocast=None)
        assert whole(dict(model.state_dict()))["head.bias"].tolist() == (bias + torch.tensor([0.0, 3.0])).tolist()
    torch.testing.assert_close(after - before, torch.tensor([0.0, 3.0], device=device).expand(5, 2))
    assert torch.equal(whole({"bias": model.head.bias})["bias"], bias)
    torch.testing.assert_close(logits(model, images), before, rtol=0, atol=0)


# -- the setting -----------------------------------------------------------------------------------------------------


def test_the_setting_makes_no_other_run_and_no_other_trial() -> None:
    configs = [RunConfig(shard=shard, epochs=1, pairs=4, held_out_pairs=0) for shard in (False, True)]
    materials = gather(configs[0])
    one, other = (identify(config, materials, torch.device("cpu"))[0] for config in configs)
    assert one == other
    assert "shard" not in one["config"]
    keys = {Trial("study", "colored_fashion", "ipg", "paper", 0, config).key for config in configs}
    assert len(keys) == 1


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_need_all_of_the_network_say_why(name: str) -> None:
    config, reason = RunConfig(method=name, shard=True), method_class(name).whole
    check_shards(config.with_changes(shard=False), processes=2)
    if reason:
        with pytest.raises(
            ValueError, match=f"method '{name}' cannot train a network in shards: {reason}; leave --shard out"
        ):
            check_shards(config, processes=2)
    else:
        check_shards(config, processes=2)
    assert bool(reason) == (method_class(name).refits or name == "ncm")


def test_a_process_alone_is_told_that_it_shares_with_nobody() -> None:
    with pytest.warns(UserWarning, match="a single process has nobody to share a network with"):
        check_shards(RunConfig(shard=True, method="dfr"), processes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_shards(RunConfig(shard=True), processes=2)
        check_shards(RunConfig(), processes=1)
    assert not Team().shares(RunConfig(shard=True))


def test_a_run_in_shards_ends_as_one_that_is_whole(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop over a network in shards: what it writes is whole, and a run goes on from it in either form."""
    config = RunConfig(
        **{"model": "small_vit", "size": 14, "optimizer": "sgd", "epochs": 2, "steps": 3, "batch": 64},
        **{"pairs": 8, "pair_batch": 4, "held_out_pairs": 8, "every": 2},
        **{"device": device.type, "precision": "fp32", "engine": "eager"},
    )
    own = gather(config)
    few = own.table.take(torch.arange(0, len(own.table), 40))

    def materials() -> Materials:
        return replace(own, table=few, model=copy.deepcopy(own.model))

    expected = train(config, materials(), folder=tmp_path / "whole")
    monkeypatch.setattr(Team, "shares", lambda self, config: config.shard)
    given = materials()
    with pytest.warns(UserWarning, match="a single process"):
        found = train(config.with_changes(shard=True), given, folder=tmp_path / "shards")
    assert found.model is given.model
    assert not is_sharded(found.model)
    torch.testing.assert_close(
        found.model.state_dict(), expected.model.state_dict(), rtol=1e-4, atol=1e-6, check_device=False
    )
    again = train(config, materials(), folder=tmp_path / "shards")
    assert torch.equal(again.model.state_dict()["head.weight"].cpu(), found.model.state_dict()["head.weight"].cpu())
