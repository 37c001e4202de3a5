"""A GPU that is too small for a batch, for real: it is given little of its memory; and who else has some."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.training.loop import train
from ipg.training.materials import gather
from ipg.training.memory import OutOfMemoryError, memory_of_others

MEMORY = 1 << 30


@pytest.fixture
def little() -> Iterator[None]:
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + MEMORY  # beside what libraries keep once they are loaded
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("method", ["erm", "ipg", "jtt"])
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.usefixtures("little")
def test_the_batch_that_is_said_to_fit_does(
    make_table: Callable[..., ImageTable], tmp_path: Path, method: str, engine: str
) -> None:
    """Also beside what graphs keep, for the smaller last batch, and for a second stage after the first."""
    table = make_table(train=2100)
    table = replace(table, images=table.images.repeat_interleave(12, dim=2).repeat_interleave(12, dim=3))
    config = RunConfig(method=method, engine=engine, batch=2048, epochs=1, pairs=12, pair_batch=5, device="cuda")
    config = config.with_changes(model="small_cnn", precision="fp32", held_out_pairs=0)
    config = config.with_changes(options={"copies": 2} if method == "jtt" else {})
    with pytest.raises(OutOfMemoryError, match=r"^out of memory with --batch 2048; --batch \d+ fits") as caught:
        train(config, gather(config, table=table), folder=tmp_path / "run")
    found = re.search(r"--batch (\d+) fits", str(caught.value))
    assert found is not None
    smaller = config.with_changes(batch=int(found[1]))
    outcome = train(smaller, gather(smaller, table=table), folder=tmp_path / "smaller")
    assert outcome.rows[0]["step"] >= 2100 / smaller.batch


@pytest.mark.parametrize(("free", "ours", "others"), [(80, 0, 0), (69, 9, 0), (60, 12, 8), (0, 77, 3)])
def test_what_is_neither_ours_nor_the_libraries_is_of_others(
    monkeypatch: pytest.MonkeyPatch, free: int, ours: int, others: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: ours << 30)
    assert memory_of_others(torch.device("cuda")) == others << 30
    assert memory_of_others(torch.device("cpu")) == 0


def test_who_has_the_memory_is_said() -> None:
    alone = OutOfMemoryError(batch=128, pair_batch=None, fits=29, kept=False)
    assert str(alone) == "out of memory with --batch 128; --batch 29 fits, as was tried just now."
    beside = OutOfMemoryError(batch=128, pair_batch=None, fits=29, kept=False, others=98 << 30)
    assert str(beside) == f"{alone} Other processes have 98 GiB of the device: wait for them, or use fewer --workers."
