"""Compiled kernels on a CPU compute what our convolutional networks compute as written."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.models import build_model, native
from ipg.models.native import NativeConvNet, obstacle
from ipg.models.small import ConvNet, build_small
from ipg.rationale import HeadTap, find_head

pytestmark = [
    pytest.mark.usefixtures("one_thread", "own_random_state", "kernels"),
    pytest.mark.skipif(obstacle(half=False) is not None, reason="needs a C++ compiler"),
]
in_half = pytest.mark.skipif(obstacle(half=True) is not None, reason="needs a processor with AVX512-BF16")


def network(name: str, channels: int = 2) -> ConvNet:
    """Whose biases, and GroupNorm's weights, say something."""
    model = build_small(name, channels=channels, classes=3)
    assert isinstance(model, ConvNet)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def gradients(model: nn.Module, images: Tensor, label: Tensor, *, half: bool = False) -> list[Tensor]:
    """The logits, and the gradients of all parameters."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = model(images)
    F.cross_entropy(logits.to(images.dtype), label).backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [logits.detach(), *(one.clone() for one in found if one is not None)]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Of all gradients together, as a share of their length."""
    far, length = (torch.cat([(one - two).flatten() for one, two in pairs]).norm() for pairs in (
        list(zip([one.double() for one in found[1:]], expected[1:], strict=True)),
        [(one, torch.zeros_like(one)) for one in expected[1:]],
    ))  # fmt: skip
    return float(far / length)


def case(name: str, channels: int, size: tuple[int, int], count: int) -> tuple[ConvNet, Tensor, Tensor, list[Tensor]]:
    """A network, images, labels, and what is to be found, in double precision."""
    model, images = network(name, channels), torch.rand(count, channels, *size)
    label = torch.arange(count) % 3
    return model, images, label, gradients(copy.deepcopy(model).double(), images.double(), label)


CASES = [
    ("small_cnn", 2, (14, 14), 5),
    ("small_cnn", 3, (9, 30), 4),  # odd, not square, rows in parts
    ("small_cnn", 1, (2, 3), 3),  # hardly more than a border
    ("mnist_cnn", 2, (12, 8), 3),
]


@pytest.mark.parametrize(("name", "channels", "size", "count"), CASES)
def test_logits_and_gradients(name: str, channels: int, size: tuple[int, int], count: int) -> None:
    model, images, label, expected = case(name, channels, size, count)
    fast = NativeConvNet(model)
    found = gradients(fast, images, label)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-5, atol=1e-5)
    assert distance(found, expected) < 1e-5
    assert fast._able  # and it was not the network as written
    with torch.no_grad():
        assert torch.equal(fast(images), found[0])  # where nothing is kept


@in_half
@pytest.mark.parametrize(("name", "channels", "size", "count"), CASES[:2])
def test_in_half_precision_no_further_away_than_as_written(
    name: str, channels: int, size: tuple[int, int], count: int
) -> None:
    model, images, label, expected = case(name, channels, size, count)
    written = distance(gradients(model, images, label, half=True), expected)
    fast = NativeConvNet(model)
    assert 1e-4 < distance(gradients(fast, images, label, half=True), expected) < 1.5 * written < 0.3
    assert fast._able


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=in_half)])
def test_threads_share_the_images_and_the_same_bits_come_again(half: bool) -> None:
    model, images, label, _ = case("small_cnn", 2, (14, 14), 5)
    fast = NativeConvNet(model)
    found = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found[threads], again = (gradients(fast, images, label, half=half) for _ in range(2))
        assert all(torch.equal(one, two) for one, two in zip(found[threads], again, strict=True))
    torch.set_num_threads(1)
    for threads in (2, 3):
        assert torch.equal(found[threads][0], found[1][0])
        for one, two in zip(found[threads], found[1], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_no_image() -> None:
    fast = NativeConvNet(network("small_cnn"))
    assert gradients(fast, torch.rand(0, 2, 14, 14), torch.zeros(0, dtype=torch.int64))[0].shape == (0, 3)
    assert fast._able


def test_what_is_not_a_number_does_not_pass_for_one() -> None:
    images = torch.rand(2, 2, 14, 14)
    images[1, 0, 3, 3] = torch.nan
    logits = NativeConvNet(network("small_cnn"))(images)
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()


def test_the_head_is_found_and_listened_to() -> None:
    model = network("small_cnn")
    fast = NativeConvNet(model)
    assert find_head(fast) is model.head
    tap = HeadTap(find_head(fast))
    with tap.listen():
        said = fast(torch.rand(4, 2, 14, 14))
    features, logits = tap.take()
    assert torch.equal(logits, said)
    assert features.shape == (4, 32)
    assert copy.deepcopy(fast)(torch.rand(1, 2, 14, 14)).shape == (1, 3)


def test_frozen_layers_have_no_gradient() -> None:
    model, images, label, _ = case("small_cnn", 2, (14, 14), 5)
    full = gradients(NativeConvNet(model), images, label)
    model.body[0].requires_grad_(False)
    some = gradients(NativeConvNet(model), images, label)
    assert len(some) == len(full) - 2
    assert all(torch.equal(one, two) for one, two in zip(some[1:], full[3:], strict=True))
    model.body.requires_grad_(False)
    assert len(gradients(NativeConvNet(model), images, label)) == 3


def test_gradients_of_images_are_those_of_the_network_as_written() -> None:
    model, images = network("small_cnn"), torch.rand(2, 2, 14, 14, requires_grad=True)
    (found,) = torch.autograd.grad(NativeConvNet(model)(images).sum(), images)
    (expected,) = torch.autograd.grad(model(images).sum(), images)
    assert torch.equal(found, expected)


def test_gradients_of_gradients_are_refused() -> None:
    model = network("small_cnn")
    loss = NativeConvNet(model)(torch.rand(2, 2, 14, 14)).square().sum()
    (gradient,) = torch.autograd.grad(loss, model.body[0].weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_networks_without_kernels() -> None:
    assert not NativeConvNet.suits(ConvNet(2, 2, widths=(16, 24), strides=(1, 2)))
    assert not NativeConvNet.suits(ConvNet(2, 2, widths=(16,), strides=(3,)))
    assert not NativeConvNet.suits(build_small("small_vit", channels=2, classes=2))
    assert NativeConvNet.suits(network("mnist_cnn"))
    for name in ("bcos_small_cnn", "xdnn_small_cnn"):  # with other layers in the place of these
        assert not NativeConvNet.suits(build_model(name, channels=2, classes=2, size=14))
    model = network("small_cnn")
    model.body[1] = nn.GELU()
    assert not NativeConvNet.suits(model)


# -- the compiler ------------------------------------------------------------------------------------------------------


@pytest.fixture
def afresh() -> Iterator[None]:
    """Nothing is known of compilers or kernels, before and after."""
    for known in (native.load, native._compiler, native._macros):
        known.cache_clear()
    yield
    for known in (native.load, native._compiler, native._macros):
        known.cache_clear()


@pytest.mark.usefixtures("afresh")
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    for half in (False, True):
        assert obstacle(half=half) == "no C++ compiler is found (g++ or clang++, or what CXX names)"


@pytest.mark.usefixtures("afresh")
def test_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_macros", lambda compiler: "#define __AVX2__ 1\n")
    assert obstacle(half=False) is None
    assert "has no bf16 (AVX512-BF16)" in (obstacle(half=True) or "")
    monkeypatch.undo()


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Takes the place of the compiler."""
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize(
    ("script", "told"),
    [("echo note >&2; echo 'x.h:1: error: no such flag' >&2; exit 1", "no such flag"), ("exit 3", "status 3")],
)
def test_what_cannot_be_compiled_runs_as_written_with_one_notice(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, monkeypatch, script)
    model, images = network("small_cnn"), torch.rand(2, 2, 14, 14)
    fast = NativeConvNet(model)
    with pytest.warns(UserWarning, match=f"cannot be compiled and runs as written: .*compiler says: .*{told}"):
        logits = fast(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fast(images), logits)
    assert torch.equal(logits, model(images))
    assert not list((tmp_path / "cache" / native.KERNELS).iterdir())


@pytest.mark.usefixtures("afresh")
def test_what_was_compiled_is_kept_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_CACHE", str(tmp_path))
    compiled = []
    real = native._compile
    monkeypatch.setattr(native, "_compile", lambda *given: (compiled.append(given), real(*given)))
    model, images = network("small_cnn"), torch.rand(1, 2, 2, 2)
    logits = NativeConvNet(model)(images)
    native.load.cache_clear()  # as another process
    assert torch.equal(NativeConvNet(model)(images), logits)
    assert len(compiled) == 1
    (kept,) = (tmp_path / native.KERNELS).iterdir()
    assert kept.suffix == ".so"
    if hasattr(os, "getuid"):
        assert (tmp_path / native.KERNELS).stat().st_mode & 0o077 == 0
        native.load.cache_clear()
        monkeypatch.setattr(os, "getuid", lambda: kept.stat().st_uid + 1)  # somebody else's are not run
        assert torch.equal(NativeConvNet(model)(images), logits)
        assert len(compiled) == 2
