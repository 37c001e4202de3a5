import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ipg.data.errors import DataError
from ipg.data.table import ImageTable
from ipg.pairs import matched, recolored
from ipg.pairs.manifest import load_pairs
from ipg.pairs.plan import Plan, of_pair_set, write
from ipg.pairs.record import RECORD, read_record
from ipg.pairs.rows import Manifest

SETTINGS = {"builder": "recolored", "data": "fashion", "seed": 0, "size": 14, "count": 8}


def counted(plan: Plan) -> tuple[Plan, list[int]]:
    """The plan, and the pairs that were made of it."""
    made: list[int] = []

    def make(number: int) -> dict[str, Tensor]:
        made.append(number)
        return dict(plan.make(number))

    return replace(plan, make=make), made


@pytest.mark.parametrize("build", [recolored.build, matched.random])
def test_on_disk_and_back(build: Callable[..., object], table: ImageTable, tmp_path: Path) -> None:
    pairs = build(table, 8)
    plan = of_pair_set(table, pairs)
    manifest = write(plan, tmp_path / "new" / "pairs", settings=SETTINGS)
    for found in (load_pairs(manifest.path, table), plan.pair_set()):
        assert torch.equal(found.first, pairs.first)
        assert torch.equal(found.second, pairs.second)
        assert torch.equal(found.label, pairs.label)
        assert torch.equal(found.source, pairs.source)
        assert (found.split, found.builder) == (pairs.split, pairs.builder)


def test_images_that_exist_are_referred_to(fashion: ImageTable, tmp_path: Path) -> None:
    write(of_pair_set(fashion, recolored.build(fashion, 4)), tmp_path / "a", settings=SETTINGS)
    assert sorted(path.name for path in (tmp_path / "a" / "images").iterdir()) == [
        f"train-0000{number}-second.png" for number in range(4)
    ]
    noisy = matched.random(replace(fashion, attribute=torch.arange(len(fashion)) % 2), 4)
    write(of_pair_set(fashion, noisy), tmp_path / "b", settings=SETTINGS)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [RECORD, "manifest.csv"]


def test_goes_on_where_it_was_stopped(fashion: ImageTable, tmp_path: Path) -> None:
    plan, made = counted(of_pair_set(fashion, recolored.build(fashion, 8)))
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(replace(plan, parallel=False), tmp_path, settings=SETTINGS, progress=stop)
    assert made == [0, 1, 2]
    assert not (tmp_path / "manifest.csv").exists()
    write(plan, tmp_path, settings=SETTINGS, progress=lambda *values: told.append(values))
    assert sorted(made) == list(range(8))
    assert told == [(number, 8) for number in range(1, 9)]
    write(plan, tmp_path, settings=SETTINGS)
    assert len(made) == 8
    (tmp_path / plan.pairs[5].second).unlink()
    write(plan, tmp_path, settings=SETTINGS)
    assert made[8:] == [5]


def test_an_audit_is_not_lost_when_the_command_is_given_again(fashion: ImageTable, tmp_path: Path) -> None:
    plan = of_pair_set(fashion, recolored.build(fashion, 4))
    manifest = write(plan, tmp_path, settings=SETTINGS)
    manifest.with_pairs([replace(pair, status="rejected") for pair in manifest.pairs]).write()
    assert {pair.status for pair in write(plan, tmp_path, settings=SETTINGS).pairs} == {"rejected"}


def test_both_splits_in_one_folder(fashion: ImageTable, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        pairs = recolored.build(fashion, 6, split=split)
        write(of_pair_set(fashion, pairs), tmp_path, settings=SETTINGS | {"split": split, "count": len(split)})
    assert [pair.split for pair in Manifest.read(tmp_path).pairs] == ["train"] * 6 + ["validation"] * 6
    for split in ("train", "validation"):
        expected = recolored.build(fashion, 6, split=split)
        assert torch.equal(load_pairs(tmp_path, fashion, split=split).second, expected.second)
    assert set(read_record(tmp_path)) == {"train", "validation"}
    other = of_pair_set(fashion, recolored.build(fashion, 6, split="validation"))
    with pytest.raises(DataError, match="holds train pairs that were made otherwise \\(data fashion, now mnist\\)"):
        write(other, tmp_path, settings=SETTINGS | {"data": "mnist", "split": "validation", "count": 10})


def test_a_folder_that_holds_something_else(fashion: ImageTable, tmp_path: Path) -> None:
    plan = of_pair_set(fashion, recolored.build(fashion, 4))
    write(plan, tmp_path, settings=SETTINGS)
    with pytest.raises(DataError, match=r"made otherwise \(count 8, now 9; seed 0, now 1\); name another --output"):
        write(plan, tmp_path, settings=SETTINGS | {"count": 9, "seed": 1})
    write(plan, tmp_path, settings=SETTINGS | {"data_path": "moved"})
    with pytest.raises(DataError, match="pairs of other images: the data has changed since"):
        write(of_pair_set(fashion, recolored.build(fashion, 4, seed=5)), tmp_path, settings=SETTINGS)
    (tmp_path / RECORD).unlink()
    with pytest.raises(DataError, match="holds pairs already; name another --output"):
        write(plan, tmp_path, settings=SETTINGS)


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"train": 3})])
def test_a_damaged_record(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(DataError, match="delete it, and name the data with --data"):
        read_record(tmp_path)


def test_parquet_is_refused_before_anything_is_made(
    fashion: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise DataError("Parquet needs pyarrow")

    monkeypatch.setattr("ipg.pairs.plan.check_parquet", missing)
    with pytest.raises(DataError, match="needs pyarrow"):
        write(of_pair_set(fashion, recolored.build(fashion, 4)), tmp_path / "p", settings=SETTINGS, parquet=True)
    assert not (tmp_path / "p").exists()
