"""Small files of NumPy that would unpack to large ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipg.data import arrays, mnist
from ipg.data.arrays import check_npz
from ipg.data.errors import DataError
from ipg.pairs.opinions import read_opinions


@pytest.fixture
def zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of 200 thousand zeros, which is a bomb where the limit is low."""
    monkeypatch.setattr(arrays, "MANY_BYTES", 1 << 16)
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, features=np.zeros(200_000, dtype=np.uint8), image=np.array(["a"]))
    return path


def test_arrays_that_unpack_to_many_times_their_size_are_refused(zeros: Path) -> None:
    with pytest.raises(ValueError, match=r"features\.npy would unpack from \d+ to 200,128 bytes"):
        check_npz(zeros)


def test_arrays_that_are_as_large_as_they_look_are_read(zeros: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
    np.savez_compressed(zeros, features=noise)
    check_npz(zeros)
    np.save(zeros.with_suffix(".npy"), noise)
    check_npz(zeros.with_suffix(".npy"))


def test_whoever_reads_them_says_so(zeros: Path) -> None:
    with pytest.raises(DataError, match=r"zeros\.npz cannot be read as npz: features\.npy would unpack"):
        read_opinions(zeros)
    with pytest.raises(DataError, match=r"zeros\.npz cannot be read as an \.npz: features\.npy would unpack"):
        mnist.read(zeros)
