"""The pictures of the tutorial are what they are said to be: data and pairs that the project can read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ipg.data.load import load
from ipg.pairs.manifest import load_pairs


@pytest.fixture
def make(repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))

    def make(name: str = "scenes", **given: int) -> Path:
        counts = {"train": 8, "validation": 4, "test": 8, "pairs": 4, "held-out": 2} | given
        flags = [text for key, value in counts.items() for text in (f"--{key}", str(value))]
        script = repo_root / "examples" / "make_scenes.py"
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script), name, *flags], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{name}: 20 pictures and {counts['pairs']} pairs to guide by\n"
        return tmp_path / name

    return make


def test_the_ground_follows_the_animal_but_in_the_test_split(make: Callable[..., Path]) -> None:
    table = load(str(make() / "photos.csv"), size=64)
    assert (table.classes, table.attributes) == (("cat", "rabbit"), ("grass", "sand"))
    for split in ("train", "validation"):
        assert sorted(set(table.part(split).group.tolist())) == [1, 2]  # cat on sand, rabbit on grass
    assert torch.bincount(table.part("test").group).tolist() == [2, 2, 2, 2]


def test_pairs_are_of_one_animal_on_two_grounds(make: Callable[..., Path]) -> None:
    home = make()
    table = load(str(home / "photos.csv"), size=64)
    pairs = load_pairs(home / "pairs", table)
    assert (len(pairs), len(load_pairs(home / "pairs", table, split="validation"))) == (4, 2)
    assert pairs.label.tolist() == [0, 1, 0, 1]
    corner = (pairs.first[:, :, :8, :8].float() - pairs.second[:, :, :8, :8].float()).abs().mean(dim=(1, 2, 3))
    assert float(corner.min()) > 20  # the grounds differ
    assert (home / "masks" / "photos" / "cat" / "train-0000.png").exists()


def test_one_seed_one_set_of_pictures(make: Callable[..., Path]) -> None:
    first, again, other = (make(name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    name = Path("photos", "cat", "test-0004.jpg")
    assert (first / name).read_bytes() == (again / name).read_bytes() != (other / name).read_bytes()


def test_the_folder_alone_is_data_without_groups(make: Callable[..., Path]) -> None:
    table = load(str(make() / "photos"), size=64)
    assert table.classes == ("cat", "rabbit")
    assert len(table.attributes) == 1
