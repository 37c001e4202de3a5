"""Rationales by hand and against the naive form, and heads in the models people have."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import ipg
from ipg.rationale import (
    HeadNotFoundError,
    HeadTap,
    disagreeing,
    find_head,
    predicted_class,
    rationale,
    unwrap,
)

# -- finding the head -----------------------------------------------------------------------------------------------


def assert_head_makes_the_logits(model: nn.Module, head: nn.Linear, images: Tensor, *, atol: float = 1e-5) -> None:
    """The head that is found is `head`, and its rationales add up to what the model really puts out."""
    assert find_head(model) is head
    model.eval()
    with torch.no_grad():
        output = model(images)
        r = rationale(model, images)
    logits = getattr(output, "logits", output)
    assert r.shape == (len(images), head.in_features, head.out_features)
    torch.testing.assert_close(r.sum(dim=1) + head.bias, logits, atol=atol, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("test_resnet", "fc"),
        ("mobilenetv2_035", "classifier"),
        ("test_convnext", "head.fc"),
        ("test_vit", "head"),
        ("test_efficientnet", "classifier"),
    ],
)
def test_find_head_timm(name: str, where: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False, num_classes=3)
    size = model.default_cfg["input_size"][-1] if "vit" in name else 64
    assert_head_makes_the_logits(model, model.get_submodule(where), torch.randn(2, 3, size, size))


def test_find_head_timm_without_classifier_says_what_to_pass() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_resnet", pretrained=False, num_classes=0)
    with pytest.raises(HeadNotFoundError, match=r"get_classifier\(\) \(Identity\)\. It has no nn\.Linear"):
        find_head(model)


def test_find_head_trusts_get_classifier_when_it_names_two_heads() -> None:
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.head_dist = nn.Linear(4, 2), nn.Linear(4, 2)

        def get_classifier(self) -> tuple[nn.Linear, nn.Linear]:
            return self.head, self.head_dist

    with pytest.raises(HeadNotFoundError, match=r"get_classifier\(\) \(tuple\).*head=model\.my_classifier\.$"):
        find_head(Distilled())


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("resnet", "fc"),
        ("mobilenet_v2", "classifier.1"),
        ("vit", "heads.head"),
        ("densenet", "classifier"),
        ("swin", "head"),
    ],
)
def test_find_head_torchvision(name: str, where: str) -> None:
    models = pytest.importorskip("torchvision.models")
    build = {
        "resnet": lambda: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=3),
        "mobilenet_v2": lambda: models.MobileNetV2(num_classes=3, width_mult=0.1),
        "vit": lambda: models.VisionTransformer(32, 16, 1, 2, 16, 32, num_classes=3),
        "densenet": lambda: models.DenseNet(4, (1, 1), 8, num_classes=3),
        "swin": lambda: models.SwinTransformer([4, 4], 8, [1, 1], [1, 2], [2, 2], num_classes=3),
    }
    model = build[name]()
    head = model.get_submodule(where)
    assert isinstance(head, nn.Linear)
    nn.init.normal_(head.weight)  # torchvision starts the vision transformer's head at zero
    assert_head_makes_the_logits(model, head, torch.randn(2, 3, 32, 32))


def test_conv_head_is_refused_with_a_remedy() -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        model = models.squeezenet1_1(weights=None, num_classes=2)
    with pytest.raises(
        HeadNotFoundError, match=r"SqueezeNet: looked at .*classifier \(Sequential\).*has no nn\.Linear"
    ):
        find_head(model)


@pytest.mark.parametrize("family", ["vit", "resnet"])
def test_find_head_hugging_face(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    if family == "vit":
        config = transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=32,
            num_labels=3,
        )
        model = transformers.ViTForImageClassification(config)
        head = model.classifier
    else:
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
        )
        model = transformers.ResNetForImageClassification(config)
        head = model.classifier[-1]
    assert_head_makes_the_logits(model, head, torch.randn(2, 3, 32, 32))


def test_find_head_sequential_and_linear() -> None:
    head = nn.Linear(4, 2)
    assert find_head(head) is head
    assert find_head(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), head)) is head
    assert (
        find_head(nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout(), head)))) is head
    )
    with pytest.raises(HeadNotFoundError, match=r"the model itself \(Sequential\)"):
        find_head(nn.Sequential(head, nn.ReLU()))
    with pytest.raises(HeadNotFoundError):
        find_head(nn.Sequential())


def test_find_head_through_wrappers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = torch.compile(model, backend="eager")
    assert unwrap(compiled) is model
    assert find_head(compiled) is model[-1]
    assert find_head(nn.DataParallel(compiled)) is model[-1]
    assert unwrap(model) is model


def test_find_head_through_lightning_fabric() -> None:
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu")
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    wrapped = fabric.setup(model)
    assert unwrap(wrapped) is model
    assert find_head(wrapped) is model[-1]


def test_rationale_of_a_compiled_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(5, 3)
    try:
        torch.testing.assert_close(rationale(compiled, x), rationale(model, x))
    finally:
        torch.compiler.reset()


def test_explicit_head_wins() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.logit_layer = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.logit_layer(self.body(x).relu())

    model, x = Named(), torch.randn(2, 3)
    with pytest.raises(HeadNotFoundError, match="no linear head found in Named"):
        rationale(model, x)
    r = rationale(model, x, head=model.logit_layer)
    torch.testing.assert_close(r.sum(dim=1) + model.logit_layer.bias, model(x))
    with pytest.raises(HeadNotFoundError, match=r"head must be an nn\.Linear, got ReLU"):
        rationale(model, x, head=nn.ReLU())  # type: ignore[arg-type]


# -- listening at the head ------------------------------------------------------------------------------------------


def test_tap_keeps_nothing_unless_it_listens() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    tap = HeadTap(model[-1])
    model(torch.randn(2, 3))
    with pytest.raises(RuntimeError, match="no features reached the head"):
        tap.take()
    x = torch.randn(2, 3)
    with tap.listen():
        model(x)
    model(torch.randn(7, 3))
    features, logits = tap.take()
    assert torch.equal(features, model[0](x))
    assert torch.equal(logits, model(x))
    with pytest.raises(RuntimeError, match="no features"):  # taken is forgotten
        tap.take()
    tap.remove()
    with tap.listen():
        model(x)
    with pytest.raises(RuntimeError, match="no features"):
        tap.take()


def test_bypassed_head_is_an_error_with_a_remedy() -> None:
    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.fc.weight, self.fc.bias)

    with pytest.raises(RuntimeError, match=r"no features reached the head.*pass the layer it really uses as head="):
        rationale(Bypass(), torch.randn(2, 3))


def test_head_that_runs_twice_is_an_error() -> None:
    layer = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="the head ran 2 times in one forward pass"):
        rationale(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 3))


def test_features_before_pooling_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"the head's input has shape \(2, 5, 3\).*Pass the layer after pooling"):
        rationale(nn.Sequential(nn.Linear(3, 2)), torch.randn(2, 5, 3))


def test_hook_leaves_with_the_call() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    rationale(model, torch.randn(2, 3))
    assert not model[0]._forward_hooks


# -- the rationale --------------------------------------------------------------------------------------------------


def test_rationale_entries_by_hand() -> None:
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        head.bias.copy_(torch.tensor([0.5, 0.0, -0.5]))
    r = ipg.rationale(head, torch.tensor([[10.0, 100.0]]))
    # R[d, k] = z_d W[k, d]
    assert r.tolist() == [[[10.0, 30.0, 50.0], [200.0, 400.0, 600.0]]]
    assert (r.sum(dim=1) + head.bias).tolist() == [[210.5, 430.0, 649.5]]


def test_single_logit_head() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    x = torch.randn(6, 3)
    r = rationale(model, x)
    assert r.shape == (6, 4, 1)
    torch.testing.assert_close(r.sum(dim=1) + model[-1].bias, model(x))
    logits = torch.tensor([[-1.0], [2.0], [0.0], [3.0]])
    assert predicted_class(logits).tolist() == [0, 1, 0, 1]
    assert disagreeing(logits, torch.tensor([[1.0], [1.0], [-5.0], [-3.0]])).tolist() == [True, False, False, True]


def test_predictions_are_what_the_naive_form_predicts(naive: ModuleType) -> None:
    for classes in range(1, 8):
        logits = torch.randn(20, classes, dtype=torch.float64)
        assert predicted_class(logits).tolist() == [naive.predict(row) for row in logits]
