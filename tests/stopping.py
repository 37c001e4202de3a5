"""Training that is asked to stop in the middle, as by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ipg.training.interrupt import StopRequest
from ipg.training.loop import Training

__all__ = ["stop_at"]


@contextmanager
def stop_at(step: int, *, method: str | None = None) -> Iterator[None]:
    """Inside, runs are asked to stop at that step; those of one method alone where it is named."""
    between = Training._between_steps

    def asked(run: Training, request: StopRequest) -> None:
        request.made |= run.progress.step == step and method in (None, run.config.method)
        between(run, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_between_steps", asked)
        yield
