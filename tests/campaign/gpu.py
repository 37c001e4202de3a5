"""A GPU: the same bits again in deterministic mode, also after a break, and batches that do not fit, for real."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from campaign.bars import bars, halves
from campaign.same import difference
from torch import Tensor

from ipg.config import RunConfig
from ipg.evaluation.parts import free_memory
from ipg.methods import METHODS, method_class
from ipg.training import loop
from ipg.training.capture import CapturedStep
from ipg.training.materials import gather
from ipg.training.memory import OutOfMemoryError
from ipg.training.stepping import EagerStep

PROMISE = (
    "With `--deterministic`, training on a GPU with any method gives the same bits when it is started again, and when"
    " it is stopped at any moment and continued. If a batch does not fit into the memory of the GPU, the run ends "
    "with a line that names a batch that does."
)
MEANS = (
    "A small training run with each method, captured as CUDA graphs: three times from the start, and three times "
    "stopped at a random iteration and continued from its last checkpoint. Everything that a run writes is compared "
    "with an uninterrupted run. Five methods are also trained with a random share of the GPU's memory and a batch "
    "that is too large for it, and then with the batch that the message named."
)
LIMITS = (
    "Bits may differ between two kinds of GPU, and without `--deterministic`. The batch that the message names may "
    "not fit if another process takes the memory meanwhile."
)
ROUNDS = 3
GREEDY = ("erm", "ipg", "joint", "groupdro", "jtt")
"""Methods that are given too little memory."""
TIMES = 4
SAME = 2 * ROUNDS * len(METHODS)
CASES = SAME + TIMES * len(GREEDY)
DEVICE = "cuda"
EPOCHS, STEPS, BATCH = 2, 8, 16
OPTIONS: dict[str, dict[str, Any]] = {"jtt": {"copies": 2}, "epg": {"annotated": 1.0}}
"""Options by method, beside the defaults."""


def missing() -> str | None:
    """Why this machine cannot try it."""
    return None if torch.cuda.is_available() else "there is no CUDA GPU here"


def prepare(folder: Path) -> Path:
    """The first run of each method is made when it is needed."""
    return folder


def attempt(here: Path, seed: int, number: int) -> str | None:
    """Train again, whole or in two parts, and compare; or train with too little memory."""
    draw = Random(f"{seed}/{number}")
    if number >= SAME:
        return starve(here / "case", GREEDY[number % len(GREEDY)], draw)
    turn, which = divmod(number, len(METHODS))
    method = list(METHODS)[which]
    reference = here / method
    if not reference.exists():
        train(reference, method)
    home = here / "case"
    moment = draw.randrange(1, EPOCHS * STEPS) if turn % 2 else None
    try:
        if moment is not None:
            with breaking(moment), patch.object(loop, "SAVE_SECONDS", draw.choice((0.0, 60.0))):
                train(home, method)
        train(home, method)
        wrong = difference(home, reference)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    at = "" if moment is None else f", ended at iteration {moment}"
    return None if wrong is None else f"{method}{at}: {wrong}"


class Broken(BaseException):
    """The end of a training that nobody asked for."""


@contextmanager
def breaking(moment: int) -> Iterator[None]:
    """Inside, training ends before the iteration of that number, counted over all its stages."""
    made = 0

    def counted(kind: type[EagerStep]) -> Any:
        real = kind.__call__

        def call(step: EagerStep, rows: Tensor) -> None:
            nonlocal made
            made += type(step) is kind
            if made > moment:
                raise Broken
            real(step, rows)

        return patch.object(kind, "__call__", call)

    with counted(EagerStep), counted(CapturedStep):
        try:
            yield
        except Broken:
            return


def train(folder: Path, method: str) -> None:
    """A small training by `method` in `folder`, which goes on where there is one."""
    model = "linear" if method == "ncm" else "small_cnn"
    config = RunConfig(method=method, model=model, epochs=EPOCHS, steps=STEPS, batch=BATCH, pairs=12, pair_batch=5)
    config = config.with_changes(every=2, held_out_pairs=6, device=DEVICE, deterministic=True, precision="fp32")
    config = config.with_changes(options=OPTIONS.get(method, {}))
    data = bars(train=160)
    masks = halves(data) if method_class(method).needs & {"masks", "attention"} else None
    loop.train(config, gather(config, table=data, masks=masks), folder=folder)


def starve(home: Path, method: str, draw: Random) -> str | None:
    """Train with too little memory, then with the batch that is said to fit."""
    data = bars(train=2048)
    data = replace(data, images=data.images.repeat_interleave(12, dim=2).repeat_interleave(12, dim=3))
    engine = draw.choice(("eager", "captured"))
    config = RunConfig(method=method, engine=engine, batch=2048, epochs=1, pairs=12, pair_batch=5, device=DEVICE)
    config = config.with_changes(model="small_cnn", precision="fp32", held_out_pairs=0, options=OPTIONS.get(method, {}))
    megabytes = draw.randrange(400, 1400)
    about = f"{method}, {engine}, {megabytes} MB"
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + (megabytes << 20)
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a capture has not had the memory for
            try:
                loop.train(config, gather(config, table=data), folder=home / "run")
            except OutOfMemoryError as error:
                said = str(error)
            else:
                return f"{about}: all fitted, so nothing was tried"
            named = re.fullmatch(r"out of memory with --batch 2048; --batch (\d+) fits, as was tried just now\.", said)
            if named is None:
                return f"{about}: {said}"
            free_memory()  # as a new process has it
            smaller = config.with_changes(batch=int(named[1]))
            loop.train(smaller, gather(smaller, table=data), folder=home / "smaller")
    except (OutOfMemoryError, torch.OutOfMemoryError) as error:
        return f"{about}: the batch that was named does not fit: {str(error)[:200]}"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        shutil.rmtree(home, ignore_errors=True)
    return None


def facts(here: Path) -> dict[str, Any]:
    """What the row keeps: the GPU is the hardware."""
    return {"hardware": torch.cuda.get_device_name(), "methods": len(METHODS)}
