"""Algorithm 1 of the paper, line by line, as slowly as it is printed: the oracle that the real one is held against.

Written from the paper (section 3 and Algorithm 1) and from nothing in `ipg`. Every image runs alone, every rationale
is built, every sum is a loop and the condition is an `if`. Autograd differentiates and torch's optimizer is `update`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Module):
    """A feature extractor φ and a linear classifier h."""

    def __init__(self, extractor: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.extractor(x))


@dataclass
class Correction:
    alignment: float
    uniformity: float
    disagreement: float
    norm: float
    gradients: list[Tensor]


@dataclass
class Outcome:
    correction: Correction
    task_loss: float
    task_norm: float
    scale: float
    violated: bool
    clipped: bool
    floored: bool
    gradients: list[Tensor]


def rationale(z: Tensor, weight: Tensor) -> Tensor:
    return torch.diag(z) @ weight.T  # (D, K)


def frobenius(matrix: Tensor) -> Tensor:
    """The Frobenius norm; at the zero matrix the value and the gradient are 0."""
    squares = (matrix * matrix).sum()
    return squares.sqrt() if squares > 0 else squares


def predict(logits: Tensor) -> int:
    """The class of the largest probability; a single logit is the log-odds of class 1."""
    if len(logits) == 1:
        return int(torch.sigmoid(logits[0]) > 0.5)
    probabilities = torch.softmax(logits, dim=0).tolist()
    return probabilities.index(max(probabilities))


def alignment(first: list[Tensor], second: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=first[0].dtype)
    for one, other in zip(first, second, strict=True):
        total = total + frobenius(one - other)
    return total / len(first)


def uniformity(first: list[Tensor], second: list[Tensor], label: list[int], margin: float) -> Tensor:
    n = len(label)
    total = torch.zeros((), dtype=first[0].dtype)
    for q in (first, second):
        for i in range(n):
            for j in range(n):
                if label[i] != label[j]:
                    distance = frobenius(q[i] - q[j])
                    if distance < margin:
                        total = total + (margin - distance)
    return total / (2 * n**2)


def disagreement(first: list[int], second: list[int]) -> float:
    return sum(one != other for one, other in zip(first, second, strict=True)) / len(first)


def mean_distance_of_different_labels(first: list[Tensor], second: list[Tensor], label: list[int]) -> float:
    """What a relative margin is a multiple of."""
    distances = []
    for q in (first, second):
        for i in range(len(label)):
            for j in range(len(label)):
                if label[i] != label[j]:
                    distances.append(frobenius(q[i] - q[j]).item())
    return sum(distances) / len(distances)


def rationales(model: Net, images: Tensor) -> tuple[list[Tensor], list[int]]:
    """Lines 2 to 4 for one member of each pair: the rationale matrices and the predicted classes."""
    matrices, classes = [], []
    for image in images:
        z = model.extractor(image[None])[0]
        matrices.append(rationale(z, model.head.weight))
        classes.append(predict(model.head(z).detach()))
    return matrices, classes


def trainable(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def length(gradients: list[Tensor]) -> float:
    return math.sqrt(sum(float(entry) ** 2 for gradient in gradients for entry in gradient.flatten().tolist()))


def correct(
    model: Net, optimizer: torch.optim.Optimizer, first: Tensor, second: Tensor, label: Tensor, *, margin: float
) -> Correction:
    """Lines 1 to 10."""
    y = label.tolist()  # line 1
    q, classes = rationales(model, first)  # lines 2, 3, 4
    q_prime, classes_prime = rationales(model, second)
    l_a = alignment(q, q_prime)  # line 5
    l_u = uniformity(q, q_prime, y, margin)  # line 6
    l_c = l_a + l_u  # line 7
    delta = disagreement(classes, classes_prime)  # line 8
    parameters = trainable(optimizer)
    found = torch.autograd.grad(l_c, parameters, allow_unused=True)  # line 9
    g_c = [torch.zeros_like(p) if g is None else g.clone() for p, g in zip(parameters, found, strict=True)]
    for parameter, gradient in zip(parameters, g_c, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()  # line 10
    optimizer.zero_grad()
    return Correction(l_a.item(), l_u.item(), delta, length(g_c), g_c)


def task_update(
    model: Net,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    correction: Correction,
    *,
    alpha: float,
    tau: float,
    epsilon: float,
    strict: bool = False,
) -> Outcome:
    """Lines 11 to 20."""
    loss = F.cross_entropy(model(x), y)  # line 11
    parameters = trainable(optimizer)
    g_t = [g.clone() for g in torch.autograd.grad(loss, parameters)]  # line 12
    task_norm = length(g_t)
    delta, norm = correction.disagreement, correction.norm
    scale, clipped, floored = 1.0, False, False
    violated = delta > tau if strict else delta >= tau
    if violated:  # line 13
        scale = alpha / task_norm * norm if task_norm > 0 else 0.0  # line 14
    else:  # line 15
        limit = 2 * max(epsilon, norm)
        if task_norm > limit:  # line 16
            scale = limit / task_norm  # line 17
            clipped, floored = True, epsilon > norm
    for parameter, gradient in zip(parameters, g_t, strict=True):
        gradient.mul_(scale)
        parameter.grad = gradient.clone()
    optimizer.step()  # line 20
    optimizer.zero_grad()
    return Outcome(correction, loss.item(), task_norm, scale, violated, clipped, floored, g_t)
