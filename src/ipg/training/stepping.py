"""One iteration at a time: pairs are fed, the method steps, what it reports is summed on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ipg.collectives import Peers
from ipg.comparison import compiled
from ipg.data.augment import Augmentation, look
from ipg.data.batches import Batches
from ipg.guidance import Pairs
from ipg.methods.base import Method
from ipg.pairs.pairset import PairSampler

__all__ = ["EagerStep", "Means", "PairFeed", "PreparedStep"]


class PairFeed:
    """Pairs whose rows are drawn outside the step and lie in a fixed place, so that a captured step can read them.

    Both members of a pair are seen through one view.
    """

    def __init__(
        self, sampler: PairSampler, *, augmentation: Augmentation | None = None, compile: bool = False
    ) -> None:
        self.sampler, self.augmentation = sampler, augmentation or Augmentation()
        self._view = compiled(look) if compile else look
        self._take = compiled(PairSampler.take) if compile else PairSampler.take
        self._rows = torch.zeros(sampler.batch_size, dtype=torch.int64, device=sampler.pairs.label.device)

    def feed(self) -> None:
        """Draw the rows of the next batch."""
        rows = self.sampler.draw_rows()
        if self._rows.is_cuda:
            rows = rows.pin_memory()  # or the copy would wait for the step before
        self._rows.copy_(rows, non_blocking=True)

    def draw(self) -> Pairs:
        """The batch that was fed."""
        batch: Pairs = self._take(self.sampler, self._rows)
        if not self.augmentation:
            return batch
        views = self.augmentation.draw(len(batch), batch.label.device)
        return replace(batch, first=self._view(batch.first, views), second=self._view(batch.second, views))


class Means:
    """Means of the scalars that steps report, summed on the device and copied only when somebody looks."""

    def __init__(self, *, compile: bool = False) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}  # the last entry counts
        self._add = compiled(_add) if compile else _add

    def add(self, values: dict[str, Tensor]) -> None:
        """Add what one step reports; steps may report different names."""
        names = tuple(values)
        if names not in self._sums:
            self._sums[names] = torch.zeros(len(names) + 1, device=next(iter(values.values())).device)
        self._add(self._sums[names], list(values.values()))

    def reset(self) -> None:
        """Begin anew, in place."""
        for total in self._sums.values():
            total.zero_()

    def over(self, peers: Peers) -> Means:
        """The means over the processes. The sums stay as they are, so that looking at them, however often, is free."""
        if peers.size == 1:
            return self
        averaged = Means()
        averaged._sums = {names: total.clone() for names, total in self._sums.items()}
        peers.mean_(averaged._sums.values())
        return averaged

    def numbers(self) -> dict[str, float]:
        """The means since the last reset; waits for the device."""
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        for names, total in self._sums.items():
            *values, count = total.tolist()
            if count:
                for name, value in zip(names, values, strict=True):
                    sums[name] = sums.get(name, 0.0) + value
                    counts[name] = counts.get(name, 0.0) + count
        return {name: sums[name] / counts[name] for name in sums}

    def state_dict(self) -> dict[str, Any]:
        """The sums so far."""
        return {"/".join(names): total for names, total in self._sums.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._sums = {tuple(names.split("/")): total for names, total in state.items()}


def _add(total: Tensor, values: list[Tensor]) -> None:
    """Add `values` and a count of 1 to `total`, in place."""
    total += torch.stack([*(value.float() for value in values), torch.ones_like(total[0])])


class EagerStep:
    """Runs a method's step as it is written."""

    preparing = 0.0
    """Seconds spent before the first iteration can run at full speed; none here."""

    def __init__(self, method: Method, batches: Batches, feed: PairFeed | None, means: Means) -> None:
        self.method, self.batches, self.feed, self.means = method, batches, feed, means

    def __call__(self, rows: Tensor) -> None:
        """One iteration on the task images of `rows`."""
        self.draw()
        self.step(rows)

    def timed(self) -> AbstractContextManager[None]:
        """Inside, seconds would count as preparation, of which there is none here."""
        return nullcontext()

    def rehearse(self, rows: Tensor) -> None:
        """Iterations on `rows` as they would go if batches were as large, as many as show what memory they take.

        The first has no optimizer state beside its activations yet.
        """
        for _ in range(2):
            self(rows)

    def release(self) -> None:
        """Give back what is kept of the device's memory between iterations, of a run that has to end: nothing here."""

    def draw(self) -> None:
        """Feed pairs if the step will use them."""
        if self.feed is not None and self.method.due:
            self.feed.feed()

    def step(self, rows: Tensor) -> None:
        """The part that runs on the device alone."""
        self.means.add(self.method.step(self.batches.take(rows)))


class PreparedStep(EagerStep):
    """The same over a network that is compiled before the first iteration."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what happens inside as preparation."""
        start = time.perf_counter()
        yield
        self.preparing += time.perf_counter() - start
