"""Which iterations correct: each k-th, or, ours, a k that follows the disagreement. This file needs torch alone.

`every="auto"` corrects at every iteration while pairs disagree, and more and more rarely while they do not:

    k ← 1                       at the start, and whenever a correction finds a disagreement above τ
    k ← min(2 k, longest(α))    whenever it finds none

Why so. Where pairs agree a correction has little left to say, and its cost is the method's whole cost; where one has
come to disagree the shortcut is being learnt back, which k steps towards it have allowed: so k grows step by step and
falls at once. It stays where k α < 1, the bound below which the corrective loss falls from cycle to cycle
(docs/theory.md), and at most `LONGEST`, so that a rise is never long unseen. With α ≥ 0.5 that leaves k = 1.

Whether an iteration corrects is decided by the host, and the disagreement lies on the device. So each correction sets k
by what the *previous* one found: a number that has arrived by then, so that the device never runs out of work, and that
is the same whenever it is read, so that a resumed run goes the same way.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ipg.settings import check_state

__all__ = ["GROWTH", "LONGEST", "Every", "FollowingPace", "Pace", "longest", "next_pace"]

Every = int | Literal["auto"]
"""How rarely to correct: each k-th iteration, or as the disagreement says."""

GROWTH = 2
"""What a correction without disagreement multiplies k by."""

LONGEST = 16
"""The largest k, however small alpha is."""


def longest(alpha: float) -> int:
    """The largest k that `every="auto"` comes to: a power of `GROWTH` with k α < 1, at most `LONGEST`."""
    k = 1
    while k * GROWTH <= LONGEST and k * GROWTH * alpha < 1:
        k *= GROWTH
    return k


def next_pace(k: int, disagreement: float, *, tau: float, most: int) -> int:
    """What k becomes after a correction that found `disagreement`."""
    return min(k * GROWTH, most) if disagreement <= tau else 1


class Pace:
    """Each k-th iteration corrects, the first included."""

    def __init__(self, k: int) -> None:
        self.k = k

    def due(self, iteration: int) -> bool:
        """Whether `iteration` corrects; known without asking the device."""
        return iteration % self.k == 0

    def note(self, iteration: int, disagreement: Tensor) -> None:
        """Hear of the correction at `iteration`, which is on its way on the device."""

    def limit(self, *, alpha: float, tau: float) -> None:
        """Hear of the guidance's alpha and tau, which may be changed between iterations."""

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on, beside the number of the iteration."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""


class FollowingPace(Pace):
    """`every="auto"`: k follows the disagreement.

    Args:
        alpha: the guidance's, which bounds k.
        tau: the disagreement up to which k grows.
        like: a tensor of the device and dtype that the disagreement will have.
    """

    def __init__(self, *, alpha: float, tau: float, like: Tensor) -> None:
        super().__init__(1)
        self._dtype, self._limits = like.dtype, (math.nan, math.nan)
        self.limit(alpha=alpha, tau=tau)
        self._last: int | None = None  # the last iteration that corrected
        self._found = _Message(like)

    def limit(self, *, alpha: float, tau: float) -> None:
        """Keep within the bound of `alpha`, and to `tau`, from now on."""
        if (limits := (alpha, tau)) != self._limits:
            self._limits, self.most = limits, longest(alpha)
            self.k = min(self.k, self.most)
            self.tau = torch.tensor(tau, dtype=self._dtype, device="cpu").item()  # or its equal might lie above it

    def due(self, iteration: int) -> bool:
        """Whether `iteration` corrects."""
        return self._last is None or iteration - self._last >= self.k

    def note(self, iteration: int, disagreement: Tensor) -> None:
        """Set k by what the correction before this one found; nothing while a correction is captured, not made."""
        if disagreement.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if self._last is not None:
            self.k = next_pace(self.k, self._found.read(), tau=self.tau, most=self.most)
        self._found.send(disagreement)
        self._last = iteration

    def state_dict(self) -> dict[str, Any]:
        """k, the last iteration that corrected, and what it found; waits for it."""
        return {"k": self.k, "last": self._last, "disagreement": self._found.read()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, within the bound of this alpha; from that of a fixed pace, begin at once."""
        if state:
            check_state("Guidance's pace", state, {"k": 1, "last": (0, None), "disagreement": math.nan})
        self.k, self._last = min(state.get("k", 1), self.most), state.get("last")
        self._found.put(state.get("disagreement", math.nan))


class _Message:
    """A number on its way from the device; from a GPU it travels while the host goes on."""

    def __init__(self, like: Tensor) -> None:
        self._value = torch.tensor(math.nan, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)
        self._arrival = torch.cuda.Event() if like.is_cuda else None  # type: ignore[no-untyped-call]

    def send(self, number: Tensor) -> None:
        """Send a scalar; what was sent before must have been read."""
        if self._arrival is None:
            self._value = number.detach().clone()
        else:
            self._value.copy_(number.detach(), non_blocking=True)
            self._arrival.record(torch.cuda.current_stream(number.device))

    def put(self, number: float) -> None:
        """Have a number arrive at once."""
        self._wait()
        self._value.fill_(number)

    def read(self) -> float:
        """The number that was sent last, once it is there."""
        self._wait()
        return float(self._value)

    def _wait(self) -> None:
        if self._arrival is not None:
            self._arrival.synchronize()
