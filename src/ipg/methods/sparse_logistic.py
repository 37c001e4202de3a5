"""Logistic regression with an L1 penalty, by accelerated proximal gradient descent.

    min_{W, b}  1/n Σ_i CE(W x_i + b, y_i) + penalty · ‖W‖₁

Beck and Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems", 2009 (FISTA), with
the step 1/L for L = σ_max([X 1])² / (2n), which bounds the curvature of the softmax cross-entropy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["sparse_logistic"]


def sparse_logistic(
    inputs: Tensor, label: Tensor, classes: int, *, penalty: float, iterations: int = 1000
) -> tuple[Tensor, Tensor]:
    """Weights (K, D) and biases (K,) of the minimum, from inputs (n, D) and labels (n,)."""
    count, width = inputs.shape
    extended = torch.cat([inputs, inputs.new_ones(count, 1)], dim=1)  # (n, D + 1)
    curvature = float(torch.linalg.matrix_norm(extended, ord=2)) ** 2 / (2 * count)
    target = F.one_hot(label, classes).to(inputs.dtype)  # (n, K)
    weight = ahead = inputs.new_zeros(classes, width + 1)
    momentum = 1.0
    for _ in range(iterations):
        residual = torch.softmax(ahead @ extended.T, dim=0) - target.T  # (K, n)
        moved = ahead - residual @ extended / (count * curvature)
        shrunk = F.softshrink(moved[:, :-1], penalty / curvature)
        following = torch.cat([shrunk, moved[:, -1:]], dim=1)  # biases are not penalised
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / next_momentum * (following - weight)
        weight, momentum = following, next_momentum
    return weight[:, :-1], weight[:, -1]
