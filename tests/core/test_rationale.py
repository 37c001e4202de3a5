"""Rationales against matrices that are built in full, and heads in the models people have."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ipg
import ipg.rationale as rationales
from ipg.rationale import (
    HeadNotFoundError,
    HeadTap,
    alignment,
    disagreeing,
    find_head,
    pairwise_distances,
    predicted_class,
    rationale,
    scaled_features,
    share,
    uniformity,
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


# -- distances ------------------------------------------------------------------------------------------------------


def head_and_features(n: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, n, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    label = torch.randint(classes, (n,), generator=generator)
    return first, second, weight, label


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 6),
    width=st.integers(1, 9),
    classes=st.integers(1, 7),
    seed=st.integers(0, 10_000),
    margin=st.sampled_from([0.0, 0.5, 3.0, 100.0]),
    labels=st.sampled_from(["one class", "all different", "random"]),
)
def test_losses_equal_those_of_built_rationales(
    naive: ModuleType, n: int, width: int, classes: int, seed: int, margin: float, labels: str
) -> None:
    first, second, weight, label = head_and_features(n, width, classes, seed)
    if labels != "random":
        label = torch.zeros(n, dtype=torch.long) if labels == "one class" else torch.arange(n)
    for tensor in (first, second, weight):
        tensor.requires_grad_()
    r_first = [naive.rationale(z, weight) for z in first]
    r_second = [naive.rationale(z, weight) for z in second]
    slow_align = naive.alignment(r_first, r_second)
    slow_uniform = naive.uniformity(r_first, r_second, label.tolist(), margin)

    one, two = scaled_features(first, weight), scaled_features(second, weight)
    distances = pairwise_distances(torch.stack([one, two]))
    align = alignment(one, two)
    uniform = uniformity(distances, label[:, None] != label, margin)

    close = {"atol": 1e-12, "rtol": 1e-12}
    built = torch.stack([torch.stack([naive.frobenius(a - b) for b in r]) for r in (r_first, r_second) for a in r])
    torch.testing.assert_close(distances.reshape(2 * n, n), built, **close)
    torch.testing.assert_close(align, slow_align, **close)
    torch.testing.assert_close(uniform, slow_uniform, **close)
    if labels == "one class":
        assert uniform.item() == 0
    inputs = (first, second, weight)
    slow = torch.autograd.grad(slow_align + slow_uniform, inputs)
    fast = torch.autograd.grad(align + uniform, inputs)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_uniformity_of_labels_that_all_differ_by_hand() -> None:
    # three points on a line at 0, 1, 3 in both members, margin 2: hinges 1 (0-1), 0 (0-3), 0 (1-3 = 2)
    points = torch.tensor([[0.0], [1.0], [3.0]])
    distances = pairwise_distances(torch.stack([points, points]))
    different = ~torch.eye(3, dtype=torch.bool)
    # two members, two orders: 4 hinges of 1, over 2 * 3²
    assert uniformity(distances, different, 2.0).item() == pytest.approx(4 / 18)
    # margin 2.5 adds 0.5 for the couple (1, 3) and lifts the first to 1.5
    assert uniformity(distances, different, 2.5).item() == pytest.approx(4 * (1.5 + 0.5) / 18)


def test_gradients_of_many_distances_are_those_of_few() -> None:
    """Of single precision, too, and far from the origin, against the naive form in double precision."""
    near = torch.randn(2, 7, 3) / 1024
    near[1, 4] = near[1, 2]  # one point, where there is no gradient
    pull = torch.randn(2, 7, 7)  # not symmetric
    for points in (near.double(), 3 + near):
        points.requires_grad_()
        exact = points.detach().double().requires_grad_()
        distances = rationales._ManyDistances.apply(points)
        assert torch.equal(distances, pairwise_distances(points))
        (many,) = torch.autograd.grad((distances * pull).sum(), points)
        (few,) = torch.autograd.grad((pairwise_distances(exact) * pull).sum(), exact)
        close = 1e-12 if points.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(many.double(), few, atol=close, rtol=close)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_differences_of_many_pairs_are_never_all_in_memory() -> None:
    """Those of `cdist` would be 2.1 GB."""
    n, width = 512, 1024
    points = torch.randn(2, n, width, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    pairwise_distances(points).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 2**28


def test_small_distances_survive_cancellation() -> None:
    # two rationales 0.0045 apart far from the origin: the matrix-product form of cdist answers something else
    far = torch.full((1, 512), 3.0)
    near = far + 0.0045 / 512**0.5
    both = torch.cat([far, near])
    truth = torch.linalg.vector_norm((far - near).double()).item()
    assert truth == pytest.approx(0.0045, rel=2e-3)
    ours = pairwise_distances(both[None])[0, 0, 1].item()
    assert ours == pytest.approx(truth, rel=1e-4)
    product = torch.cdist(both, both, compute_mode="use_mm_for_euclid_dist")[0, 1].item()
    assert abs(product - truth) > 0.5 * truth  # what is avoided
    assert alignment(far, near).item() == pytest.approx(truth, rel=1e-4)


def test_identical_members_have_a_zero_and_finite_gradient() -> None:
    features = torch.randn(4, 3, requires_grad=True)
    weight = torch.randn(2, 3, requires_grad=True)
    embedded = scaled_features(features, weight)
    same = embedded[:1].expand(4, 3)  # all four on one point
    label = torch.tensor([0, 1, 0, 1])
    loss = alignment(embedded, embedded.clone()) + uniformity(
        pairwise_distances(torch.stack([same, same])), label[:, None] != label, 1.0
    )
    assert loss.item() == pytest.approx(0.5)  # half of the couples differ, each short of the margin by all of it
    for gradient in torch.autograd.grad(loss, (features, weight)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    features, weight = torch.randn(6, 32).to(dtype), torch.randn(3, 32).to(dtype)
    embedded = scaled_features(features, weight)
    assert embedded.dtype == torch.float32
    torch.testing.assert_close(embedded, scaled_features(features.float(), weight.float()), atol=0, rtol=0)
    exact = scaled_features(features.double(), weight.double())
    torch.testing.assert_close(embedded.double(), exact, atol=1e-5, rtol=1e-6)
    model = nn.Linear(32, 3).to(dtype)
    r = rationale(model, features)
    assert r.dtype == torch.float32
    torch.testing.assert_close(r, features.float()[:, :, None] * model.weight.float().T)


def test_double_precision_stays() -> None:
    embedded = scaled_features(torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))
    assert embedded.dtype == torch.float64


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_disagreement_meets_the_threshold_it_equals(naive: ModuleType, dtype: torch.dtype, device: str) -> None:
    # k/n must compare with the number k/n as equal: a violated condition is δ ≥ τ
    for n in (1, 3, 7, 10, 49, 128):
        for k in range(n + 1):
            first = torch.eye(2, dtype=dtype, device=device)[torch.zeros(n, dtype=torch.long)]
            second = torch.eye(2, dtype=dtype, device=device)[(torch.arange(n) < k).long()]
            delta = share(disagreeing(first, second), dtype)
            assert delta.dtype == dtype
            assert bool(delta >= k / n), (k, n)
            assert not bool(delta > k / n), (k, n)
            assert delta.item() == pytest.approx(naive.disagreement([0] * n, [int(i < k) for i in range(n)]))
