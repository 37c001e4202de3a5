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
