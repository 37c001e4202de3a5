"""The kernels of networks, by triton's interpreter, which has to be asked for before triton is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ipg.models.small import _convolved


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["fused_cases.py", "frozen_norm_cases.py"])
def test_kernels(cases: str) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        str(Path(__file__).with_name(cases)),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


FLOATS, COUNTS, SIZES = ("eps", "low", "high"), ("positions", "channels"), {"span": 32, "block": 128}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("name", ["forward_kernel", "backward_kernel", "second_backward_kernel"])
@pytest.mark.parametrize("activations", ["*bf16", "*fp32"])
def test_kernels_of_norms_compile_for_a_gpu_that_is_not_there(
    name: str, activations: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the interpreter takes, the compiler may refuse."""
    triton = pytest.importorskip("triton")
    backends = pytest.importorskip("triton.backends")
    if "nvidia" not in backends.backends:
        pytest.skip("needs triton's compiler for NVIDIA's GPUs")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ipg.models import frozen_norm_kernels as kernels

    assert set(kernels.__all__) == {"forward_kernel", "backward_kernel", "second_backward_kernel"}
    kernel = getattr(kernels, name)
    kinds = {"weight": "*fp32", "bias": "*fp32", "mean": "*fp32", "variance": "*fp32", "parts": "*fp32"}
    kinds |= dict.fromkeys(FLOATS, "fp32") | dict.fromkeys(COUNTS, "i32") | dict.fromkeys(SIZES, "constexpr")
    signature = {given: kinds.get(given, activations) for given in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=SIZES)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["cubin"]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_convolution_by_patches(channels: int, stride: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 8, 3, stride=stride, padding=1).double()
    images = torch.rand(2, channels, 7, 9, dtype=torch.float64)
    for bias in (layer.bias, None):
        found = _convolved(layer, images, bias)
        assert found.shape == layer(images).shape
        torch.testing.assert_close(found, F.conv2d(images, layer.weight, bias, stride, 1), atol=1e-12, rtol=1e-12)
