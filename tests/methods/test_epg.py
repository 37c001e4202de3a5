"""The energy pointing game: numbers by hand, the step against its formula written out image by image."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.methods import Setup, method_class
from ipg.methods.epg import boxes, energy
from ipg.models import ImageModel, Normalization, build_model
from ipg.models.bcos import LOWERED

SIDE = 6


def picture(number: int, *, n: int = 5, channels: int = 3) -> Batch:
    """Random images and masks in double precision; every row is one of the first n."""
    generator = torch.Generator().manual_seed(number)
    image = torch.rand(n, channels, SIDE, SIDE, generator=generator, dtype=torch.float64)
    mask = (torch.rand(n, 1, SIDE, SIDE, generator=generator) < 0.2).double()
    mask[:, :, 2, 3] = 1
    label = torch.randint(2, (n,), generator=generator)
    return Batch(image, label, label, label, torch.arange(n), mask)


def smooth(channels: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Conv2d(channels, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 2)]
    return nn.Sequential(*layers).double()


def build(model: nn.Module, *, n: int = 5, masks: Tensor | None = None, **options: Any) -> Any:
    masks = torch.full((n, 1, SIDE, SIDE), 255, dtype=torch.uint8) if masks is None else masks
    options = {"annotated": 1.0, "weight": 0.3, "region": "mask", **options}
    setup = Setup(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        RunConfig(method="epg", options=options),
        masks=masks,
    )
    return method_class("epg")(setup)


def test_energy_by_hand() -> None:
    attribution = torch.tensor([[[3.0, -5.0], [1.0, 0.0]], [[-1.0, 0.0], [0.0, 0.0]]])[:, None]
    region = torch.tensor([[1.0, 1.0], [0.0, 0.0]]).expand(2, 1, 2, 2)
    assert energy(attribution, region).tolist() == [0.75, 0.0]
    assert energy(attribution, 1 - region).tolist() == [0.25, 0.0]
    tiny = torch.full((1, 1, 2, 2), 1e-8)  # 4e-8 in all: the share is not formed
    assert energy(tiny, region[:1]).item() == pytest.approx(2e-8)


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_energy_is_a_share(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    attribution = scale * torch.randn(3, 1, 4, 4, generator=generator, dtype=torch.float64)
    region = torch.rand(3, 1, 4, 4, generator=generator, dtype=torch.float64)
    found = energy(attribution, region)
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_boxes_are_drawn_around_masks() -> None:
    mask = torch.zeros(3, 1, 5, 6)
    mask[0, 0, 1, 2] = mask[0, 0, 3, 4] = 1
    mask[1, 0, 4, 0] = 0.9
    mask[1, 0, 0, 5] = 0.4  # less than half
    found = boxes(mask)[:, 0]
    expected = torch.zeros(3, 5, 6)
    expected[0, 1:4, 2:5] = 1
    expected[1, 4, 0] = 1
    assert torch.equal(found, expected)


def test_attribution_of_a_linear_network_is_weight_times_input() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 2)).double()
    batch = picture(0)
    method = build(model)
    image = batch.image.clone().requires_grad_()
    found = method.attribution(image, model(image), batch.label)
    weight = model[1].weight[batch.label].view(5, 3, SIDE, SIDE)
    torch.testing.assert_close(found, (weight * batch.image).sum(dim=1, keepdim=True), atol=1e-14, rtol=1e-12)


def test_attribution_is_of_the_normalised_image() -> None:
    bare = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 2)).double()
    model = ImageModel(bare, Normalization((0.1, 0.5, 0.9), (0.2, 0.3, 0.4)), name="n", origin="o").double()
    batch = picture(0)
    image = batch.image.clone().requires_grad_()
    found = build(model).attribution(image, model(image), batch.label)
    normal = (batch.image - model.mean) / model.std
    weight = bare[1].weight[batch.label].view(5, 3, SIDE, SIDE)
    torch.testing.assert_close(found, (weight * normal).sum(dim=1, keepdim=True), atol=1e-6, rtol=1e-6)


def naive_loss(model: nn.Module, batch: Batch, counted: list[int], *, outside: bool = False) -> Tensor:
    """Cross-entropy, and for each image that counts what lies outside, by a gradient of its own."""
    loss = nn.functional.cross_entropy(model(batch.image), batch.label)
    for i in counted:
        x = batch.image[i : i + 1].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x)[0, batch.label[i]], x, create_graph=True)
        share, total = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for row in range(SIDE):
            for column in range(SIDE):
                speaks = (x * slope)[0, :, row, column].sum().clamp_min(0)
                where = batch.mask[i, 0, row, column]
                total = total + speaks
                share = share + speaks * (1 - where if outside else where)
        loss = loss + 0.3 * (1 - share / total)
    return loss


@pytest.mark.parametrize("outside", [False, True])
def test_a_step_against_the_formula(outside: bool) -> None:
    model = smooth()
    twin = copy.deepcopy(model)
    masks = torch.full((5, 1, SIDE, SIDE), 255, dtype=torch.uint8)
    masks[3] = 0  # row 3 is not annotated
    method = build(model, masks=masks, outside=outside)
    for number in range(3):
        batch = picture(number)
        batch.mask[1] = 0  # nothing of it in this view
        method.step(batch)
        gradients = torch.autograd.grad(naive_loss(twin, batch, [0, 2, 4], outside=outside), list(twin.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)


def test_the_second_derivative_by_differences() -> None:
    """The gradient of the penalty by one weight, as a quotient of penalties: no derivative of a derivative."""
    batch = picture(4)

    def penalty(change: float) -> float:
        model = smooth()
        with torch.no_grad():
            model[0].weight[1, 2, 0, 1] += change
        return float(build(model).step(batch)["penalty"])

    model = smooth()
    method = build(model, weight=1.0)
    before = model[0].weight.detach().clone()
    plain = copy.deepcopy(model)
    nn.functional.cross_entropy(plain(batch.image), batch.label).backward()
    method.step(batch)
    found = ((before - model[0].weight.detach()) / 0.1 - plain[0].weight.grad)[1, 2, 0, 1].item()
    assert found == pytest.approx((penalty(1e-5) - penalty(-1e-5)) / 2e-5, rel=1e-5)


def test_guidance_moves_attribution_into_the_mask() -> None:
    model = smooth()
    method = build(model, weight=1.0)
    penalties = [method.step(picture(0))["penalty"].item() for _ in range(60)]
    assert penalties[-1] < 0.5 * penalties[0]


@pytest.mark.parametrize(("share", "count"), [(1.0, 150), (0.5, 100), (0.01, 2), (0.001, 1)])
def test_a_share_of_all_images_is_annotated(share: float, count: int) -> None:
    """Of 200 images 150 have a mask; the draw depends on the seed alone."""
    masks = torch.zeros(200, 1, 2, 2, dtype=torch.uint8)
    masks[:150, :, 0] = 255
    model = smooth()

    def draw(seed: int) -> Tensor:
        config = RunConfig(method="epg", seed=seed, options={"annotated": share})
        setup = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), config, masks=masks)
        method: Any = method_class("epg")(setup)
        return method.annotated  # type: ignore[no-any-return]

    assert draw(0).sum().item() == count
    assert not draw(0)[150:].any()
    assert torch.equal(draw(0), draw(0))
    assert count == 150 or not torch.equal(draw(0), draw(1))


def test_a_bcos_network_explains_itself() -> None:
    torch.manual_seed(0)
    model = build_model("bcos_small_cnn", channels=3, classes=2).double()
    batch = picture(0)
    method = build(model)
    image = method.inputs(batch.image)
    logits = model(image)
    found = method.attribution(image, logits, batch.label)
    chosen = logits.gather(1, batch.label[:, None])[:, 0]
    torch.testing.assert_close(found.sum(dim=(1, 2, 3)), chosen + LOWERED, atol=1e-12, rtol=1e-9)
    plain = build(model, attribution="ixg")
    image = plain.inputs(batch.image)
    assert image.shape[1] == 3
    other = plain.attribution(image, model(image), batch.label)
    assert not torch.allclose(other, found, rtol=0.1)
    assert method.step(batch)["penalty"].item() > 0


def test_only_bcos_networks_have_weights_of_their_own() -> None:
    with pytest.raises(ValueError, match="attribution=bcos is for B-cos networks, not for Sequential: name one with"):
        build(smooth(), attribution="bcos")
