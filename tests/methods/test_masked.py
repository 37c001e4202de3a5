"""What the methods share that look at gradients by images under masks: needs, identity with plain training, state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stopping import stop_at
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods import METHODS, Method, Setup, method_class
from ipg.methods.masked import Masked, normalization, present
from ipg.models import ImageModel, Normalization, build_model
from ipg.models.convolutions import ConvolutionOf
from ipg.training.interrupt import Interrupted
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials, gather

MASKED = ["epg", "gals", "gals_mask"]
HEAVY = {"epg": {"weight": 0.5, "annotated": 1.0}, "gals": {"weight": 50.0}, "gals_mask": {"weight": 50.0}}
"""Options by which the penalty matters."""


@pytest.fixture
def table(make_table: Callable[..., ImageTable]) -> ImageTable:
    return make_table(train=40, validation=20, test=20)


def make(name: str, masks: Tensor | None, model: nn.Module | None = None, **settings: Any) -> Method:
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(128, 2))
    config = RunConfig(method=name, **settings)
    setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), config, masks=masks)
    return method_class(name)(setup)


EXACT = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14)
"""Before torch 2.14 a convolution's weights have another last bit of their gradient where its images have one too."""


def same(one: Outcome, other: Outcome) -> bool:
    pairs = [(value, other.model.state_dict()[name]) for name, value in one.model.state_dict().items()]
    return all(torch.equal(*pair) if EXACT else torch.allclose(*pair, rtol=0, atol=1e-4) for pair in pairs)


def test_which_there_are() -> None:
    assert [name for name, kind in METHODS.items() if issubclass(kind, Masked)] == MASKED


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("epg", "method 'epg' needs masks of the objects in training images, and there are none: say with --masks"),
        ("gals_mask", "method 'gals_mask' needs masks of the objects in training images, and there are none: say with"),
        (
            "gals",
            "method 'gals' needs maps of where CLIP looks .*: name CLIP's weights with -o clip=FILE, or take gals_",
        ),
    ],
)
def test_without_masks_training_does_not_begin(name: str, message: str, table: ImageTable) -> None:
    config = RunConfig(method=name, device="cpu", held_out_pairs=0)
    with pytest.raises(ValueError, match=message):
        train(config, gather(config, table=table))


@pytest.mark.parametrize("name", MASKED)
def test_what_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = torch.full((4, 1, 8, 8), 255, dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"method '{name}' takes gradients of gradients, which a compiled network has"):
        make(name, masks, engine="compiled")
    monkeypatch.setattr("ipg.methods.base.find_peers", lambda *_: SimpleNamespace(size=2))
    with pytest.raises(ValueError, match=f"method '{name}' looks at whole batches of masks: train it in one process"):
        make(name, masks)


@pytest.mark.parametrize("name", MASKED)
def test_convolutions_can_be_differentiated_twice_at_little_cost(name: str) -> None:
    plain = nn.Conv2d(4, 4, 1, bias=False)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=4), plain, nn.Flatten(), nn.Linear(64, 2))
    kinds = [type(layer) for layer in model]
    method = make(name, torch.ones(3, 1, 8, 8, dtype=torch.uint8), model)
    assert [isinstance(layer, ConvolutionOf) for layer in model] == [False, True, True, False, False]
    method.close()
    assert [type(layer) for layer in model] == kinds  # the network is its owner's again


def test_masks_that_do_not_fit_the_table(table: ImageTable) -> None:
    model = build_model("small_cnn", channels=2, classes=2)
    for wrong in (torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(40, 1, 8, 8)):
        with pytest.raises(ValueError, match=r"masks must be uint8 of shape \(40, 1, 8, 8\), one for each training im"):
            Materials(table, model, masks=wrong)


@pytest.mark.parametrize("name", MASKED)
def test_without_weight_it_is_plain_training_bit_for_bit(name: str, table: ImageTable, one_epoch: Any) -> None:
    views = {"crop": 0.6, "flip": True, "epochs": 2}
    plain = one_epoch("erm", table=table, **views)
    assert same(one_epoch(name, table=table, options={"weight": 0}, **views), plain)
    assert not same(one_epoch(name, table=table, options=HEAVY[name], **views), plain)


@pytest.mark.parametrize("name", MASKED)
def test_images_without_a_mask_take_part_in_the_task_alone(name: str, table: ImageTable, make_halves: Any) -> None:
    config = RunConfig(method=name, device="cpu", held_out_pairs=0, epochs=1, batch=16, options=HEAVY[name])
    masks = make_halves(table)
    some = masks.clone()
    some[::2] = 0
    found = [train(config, gather(config, table=table, masks=each)) for each in (masks, some, 0 * masks)]
    plain = config.with_changes(method="erm", options={})
    erm = train(plain, gather(plain, table=table))
    penalties = [outcome.rows[0]["train"]["penalty"] for outcome in found]
    assert penalties[2] == 0
    assert min(penalties[:2]) > 0
    assert same(found[2], erm)
    assert not same(found[1], erm)


@pytest.mark.parametrize("name", MASKED)
def test_no_step_waits_for_the_device(name: str, table: ImageTable, make_halves: Any, no_waiting: Any) -> None:
    masks = make_halves(table)
    train_table = table.part("train")
    model = build_model("small_cnn", channels=2, classes=2)
    method = make(name, masks, model, options=HEAVY[name])
    zero = torch.zeros(16, dtype=torch.int64)
    batch = Batch(train_table.images[:16] / 255, train_table.label[:16], zero, zero, torch.arange(16), masks[:16] / 255)
    with no_waiting:
        values = method.step(batch)
    assert values["penalty"].item() > 0
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", MASKED)
def test_a_stopped_run_ends_with_the_same_bits(name: str, table: ImageTable, make_halves: Any, tmp_path: Path) -> None:
    config = RunConfig(
        method=name, device="cpu", held_out_pairs=0, epochs=2, batch=16, crop=0.6, flip=True, options=HEAVY[name]
    )
    masks = make_halves(table)
    expected = train(config, gather(config, table=table, masks=masks))
    with stop_at(4), pytest.raises(Interrupted):
        train(config, gather(config, table=table, masks=masks), folder=tmp_path / "run")
    assert same(train(config, gather(config, table=table, masks=masks), folder=tmp_path / "run"), expected)
    with pytest.raises(ValueError, match="masks have changed since it began"):
        train(config, gather(config, table=table, masks=255 - masks), folder=tmp_path / "run")


def test_other_methods_are_given_no_masks(table: ImageTable, make_halves: Any) -> None:
    config = RunConfig(method="erm", device="cpu", held_out_pairs=0, epochs=1, batch=16)
    with_masks = train(config, gather(config, table=table, masks=make_halves(table)))
    assert same(with_masks, train(config, gather(config, table=table)))


@pytest.mark.parametrize("name", ["epg", "gals_mask", "gals"])
def test_masks_of_what_must_not_matter_are_pointed_out(name: str, table: ImageTable) -> None:
    kind, other = METHODS[name], replace(table, name="waterbirds100_reverse")
    told = kind.remark(RunConfig(method=name), other)
    expected = f"in waterbirds100_reverse masks show what must not matter; give {name} -o outside=true"
    assert told == (expected if name != "gals" else None)  # which is told in words what to look for
    assert kind.remark(RunConfig(method=name, options={"outside": "true"}), other) is None
    assert kind.remark(RunConfig(method=name), table) is None


def test_normalisation_of_the_network() -> None:
    network = ImageModel(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 2)),
        Normalization((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        name="n",
        origin="o",
    )
    setup = Setup(network, torch.optim.SGD(network.parameters(), lr=0.1), nn.CrossEntropyLoss(), RunConfig())
    mean, spread = normalization(setup)
    assert mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert spread.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])
    mean, spread = normalization(replace(setup, model=network.backbone))
    assert (mean.item(), spread.item()) == (0, 1)


def test_which_masks_show_anything() -> None:
    masks = torch.zeros(3, 1, 4, 4)
    masks[1, 0, 2, 3] = 0.01
    assert present(masks).tolist() == [False, True, False]
