"""GALS: the gradient outside of a mask against its formula, and where a small CLIP of random weights looks."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.table import ImageTable
from ipg.methods import Setup, method_class
from ipg.methods.gals import Gals, class_prompts
from ipg.methods.gals_mask import outside_slope
from ipg.models import ImageModel, Normalization
from ipg.models.clip_attention import ClipAttention, cached_attention, combine
from ipg.training.loop import train
from ipg.training.materials import gather

SIDE = 6


def picture(number: int, *, n: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(number)
    image = torch.rand(n, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    mask = torch.rand(n, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    label = torch.randint(2, (n,), generator=generator)
    return Batch(image, label, label, label, torch.arange(n), mask)


def smooth() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2)).double()


def build(model: nn.Module, name: str = "gals_mask", **options: Any) -> Any:
    setup = Setup(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.5], dtype=torch.float64)),
        RunConfig(method=name, options={"weight": 20.0, **options}),
        masks=torch.full((4, 1, SIDE, SIDE), 255, dtype=torch.uint8),
    )
    return method_class(name)(setup)


def test_by_hand() -> None:
    """Two images of one channel and two pixels, the third without a mask: |4|·½, |2|·1; |6|·0, |8|·¼."""
    slope = torch.tensor([[4.0, -2.0], [6.0, 8.0], [1e6, 1e6]]).view(3, 1, 1, 2)
    region = torch.tensor([[0.5, 0.0], [1.0, 0.75], [0.0, 0.0]]).view(3, 1, 1, 2)
    counted = torch.tensor([True, True, False])
    assert outside_slope(slope, region, counted).item() == pytest.approx((2 + 2 + 0 + 2) / 4)
    assert outside_slope(slope, region, counted & False).item() == 0


@pytest.mark.parametrize("name", ["gals", "gals_mask"])
@pytest.mark.parametrize("outside", [False, True])
def test_a_step_against_the_formula(name: str, outside: bool) -> None:
    model = smooth()
    twin = copy.deepcopy(model)
    method = build(model, name, outside=outside)
    for number in range(3):
        batch = picture(number)
        batch.mask[1] = 0
        values = method.step(batch)
        x = batch.image.clone().requires_grad_()
        weight = torch.tensor([0.5, 1.5], dtype=torch.float64)
        each = nn.functional.cross_entropy(twin(x), batch.label, reduction="none")
        loss = (each * weight[batch.label]).sum() / weight[batch.label].sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        parts = []
        for i in (0, 2, 3):
            kept = 1 - batch.mask[i] if outside else batch.mask[i]
            parts += [abs(g - g * kept[0, r, c]) for r in range(SIDE) for c in range(SIDE) for g in slope[i, :, r, c]]
        penalty = sum(parts) / len(parts)
        assert values["penalty"].item() == pytest.approx(penalty.item(), rel=1e-9)
        gradients = torch.autograd.grad(loss + 20 * penalty, list(twin.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)


def test_slopes_are_by_the_normalised_image() -> None:
    """Normalising by (x − ½)/¼ inside the network, or giving it what is normalised: the same penalty."""
    bare, batch = smooth(), picture(0)
    model = ImageModel(copy.deepcopy(bare), Normalization((0.5,) * 3, (0.25,) * 3), name="n", origin="o").double()
    inside = build(model).step(batch)["penalty"].item()
    outside = build(bare).step(batch._replace(image=(batch.image - 0.5) / 0.25))["penalty"].item()
    assert inside == pytest.approx(outside, rel=1e-6)


def test_guidance_quiets_the_gradient_outside() -> None:
    ends = []
    for weight in (0.0, 200.0):
        method = build(smooth(), weight=weight)
        ends.append([method.step(picture(0))["penalty"].item() for _ in range(40)][-1])
    assert ends[1] < 0.6 * ends[0]


# -- CLIP ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of the right architecture, tiny and random, as a file; open_clip knows it as `tiny`."""
    import open_clip

    home = tmp_path_factory.mktemp("clip")
    vision = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    (home / "tiny.json").write_text(json.dumps({"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}))
    vision = {"image_size": 64, "layers": 1, "width": 16, "patch_size": 32, "head_width": 8}
    (home / "vit.json").write_text(json.dumps({"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}))
    open_clip.add_model_config(home)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name in ("tiny", "vit"):
            torch.save(open_clip.create_model(name).state_dict(), home / f"{name}.pt")
    return home / "tiny.pt"


@pytest.fixture
def clip(clip_weights: Path) -> ClipAttention:
    return ClipAttention("tiny", str(clip_weights), device=torch.device("cpu"))


@pytest.fixture
def photos(make_table: Callable[..., ImageTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageTable:
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    table = make_table(train=12, validation=8, test=8)
    images = torch.randint(256, (len(table), 3, 16, 16), generator=torch.Generator().manual_seed(3))
    return replace(table, images=images.to(torch.uint8))


def test_maps_against_grad_cam_written_out(clip: ClipAttention, photos: ImageTable) -> None:
    """⟨e, t̂‖e‖⟩ differentiated by the last feature map, one image and one prompt at a time."""
    model, images = clip.model, photos.images[:3]
    towards = clip.embed(["a bird", "water"])
    assert torch.linalg.vector_norm(towards, dim=1).tolist() == pytest.approx([1, 1])
    found = clip.look(images, towards)
    visual = model.visual
    for i, image in enumerate(images):
        x = nn.functional.interpolate(image[None] / 255, 64, mode="bilinear", antialias=True)
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (visual.image_mean, visual.image_std))
        x = visual.layer3(visual.layer2(visual.layer1(visual.stem((x - mean) / std))))
        last = visual.layer4(x).detach().requires_grad_()
        embedding = visual.attnpool(last)[0]
        for p, text in enumerate(towards):
            (slope,) = torch.autograd.grad(embedding @ (text * embedding.detach().norm()), last, retain_graph=True)
            cam = sum(float(slope[0, c].mean()) * last.detach()[0, c] for c in range(last.shape[1]))
            torch.testing.assert_close(found[i, p], torch.as_tensor(cam).clamp_min(0), atol=1e-6, rtol=1e-4)


def test_maps_are_combined_by_hand() -> None:
    maps = torch.zeros(3, 2, 1, 2)
    maps[0] = torch.tensor([[[4.0, 2.0]], [[0.0, 0.0]]])  # the second finds nothing: (4, 2), less 2, over 4
    maps[1] = torch.tensor([[[4.0, 2.0]], [[0.0, 6.0]]])  # (2, 4), less 2, over 4
    found = combine(maps, (1, 2))[:, 0, 0]
    assert found.tolist() == [[0.5, 0.0], [0.0, 0.5], [0.0, 0.0]]


def test_attention_is_looked_at_once(clip: ClipAttention, photos: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    images, label = photos.images[:5], photos.label[:5]
    prompts = [["a bird"], ["a lake", "water"]]
    found = cached_attention(clip, images, label, prompts)
    assert found.shape == (5, 1, 16, 16)
    assert found.dtype == torch.uint8
    for i in range(5):
        maps = clip.look(images[i : i + 1], clip.embed(prompts[int(label[i])]))
        torch.testing.assert_close(found[i].float(), combine(maps, (16, 16))[0] * 255, atol=0.51, rtol=0)
    monkeypatch.setattr(ClipAttention, "look", None)
    assert torch.equal(cached_attention(clip, images, label, prompts), found)
    with pytest.raises(TypeError):
        cached_attention(clip, images, label, prompts[::-1])


def test_a_run_with_clip(clip_weights: Path, photos: ImageTable) -> None:
    options = {"clip": str(clip_weights), "network": "tiny", "prompts": "a bird; a photo of a bird", "weight": 100.0}
    config = RunConfig(
        method="gals", model="small_cnn", device="cpu", epochs=1, batch=4, held_out_pairs=0, options=options
    )
    materials = gather(config, table=photos)
    assert materials.masks is not None
    assert materials.masks.shape == (12, 1, 16, 16)
    outcome = train(config, materials)
    assert outcome.rows[0]["train"]["penalty"] > 0


@pytest.mark.parametrize("name", ["pets", "waterbirds100_reverse", "waterbirds100"])
def test_what_to_look_for_has_to_be_said_but_of_birds(clip_weights: Path, photos: ImageTable, name: str) -> None:
    config = RunConfig(method="gals", device="cpu", options={"clip": str(clip_weights), "network": "tiny"})
    table = replace(photos, name=name)
    if name == "waterbirds100":
        found = Gals.regions(config, table)
        assert found is not None
        assert found.shape == (12, 1, 16, 16)
        return
    with pytest.raises(ValueError, match=f"look for birds unless told otherwise: say what matters in {name} with -o"):
        Gals.regions(config, table)


def test_what_clip_cannot_do(clip_weights: Path, photos: ImageTable, make_table: Any) -> None:
    cases = [
        ({"clip": "none.pt"}, "there are no CLIP weights 'none.pt': expected a file, or one of .*openai"),
        ({"clip": "none.pt", "network": "tiny"}, "there are no CLIP weights 'none.pt': expected a file$"),
        ({"clip": str(clip_weights), "network": "RN51"}, "open_clip knows no network 'RN51'; for weights of OpenAI"),
        ({"clip": str(clip_weights), "network": "vit"}, "the CLIP weights .*tiny.pt cannot be loaded as vit"),
        ({"clip": str(clip_weights.with_name("vit.pt")), "network": "vit"}, "attention is read off a ResNet"),
        ({"clip": str(clip_weights), "network": "tiny", "prompts": "a | b | c"}, "for each of the 2"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            gather(RunConfig(method="gals", model="small_cnn", held_out_pairs=0, options=options), table=photos)
    with pytest.raises(ValueError, match="CLIP looks at images of three channels"):
        Gals.regions(RunConfig(method="gals", options={"clip": "w.pt"}), make_table())


def test_without_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
    message = r"attention by CLIP needs open_clip, .*: pip install 'invariance-pair-guidance\[clip\]'"
    with pytest.raises(ValueError, match=message):
        ClipAttention("RN50", "w.pt", device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a bird", [["a bird"]] * 2),
        ("a bird; its photo;", [["a bird", "its photo"]] * 2),
        ("forest; trees | a lake", [["forest", "trees"], ["a lake"]]),
    ],
)
def test_prompts(text: str, expected: list[list[str]]) -> None:
    assert class_prompts(text, 2) == expected


@pytest.mark.parametrize("text", ["", "a | ", " ; ", "a | b | c"])
def test_prompts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected prompts separated by semicolons, for all classes or, between bars"):
        class_prompts(text, 2)


def test_options_are_text() -> None:
    from ipg.methods import parse_options

    assert parse_options(Gals, {"prompts": " a bird "}).prompts == "a bird"
    with pytest.raises(ValueError, match="option prompts=3: expected text"):
        parse_options(Gals, {"prompts": 3})
