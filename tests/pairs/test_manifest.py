import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.data.errors import DataError, ProblemsError
from ipg.pairs.manifest import load_pairs
from ipg.pairs.pairset import PairSampler
from ipg.pairs.rows import Manifest, Pair


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pairs").mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pairs" / f"{number}.png")
    return tmp_path / "pairs"


def pair(shapes, number: int, split: str = "train", **changes) -> Pair:
    row = shapes.rows(split)[number]
    values = {
        **{"first": f"data:{shapes.name(row)}", "second": f"{number}.png"},
        **{"label": shapes.table.classes[int(shapes.table.label[row])], "split": split, "builder": "toy"},
    }
    return Pair(**(values | changes))


def write(folder: Path, *pairs: Pair) -> Path:
    return Manifest(folder / "manifest.csv", pairs).write()


def test_pairs_on_the_classes_and_at_the_size_of_the_data(folder: Path, shapes) -> None:
    path = write(folder, pair(shapes, 0), pair(shapes, 1, label="0"), pair(shapes, 2, status="ok"))
    found = load_pairs(path, shapes.table, split="train")
    rows = shapes.rows("train")[:3]
    assert torch.equal(found.first, shapes.table.images[rows])
    assert torch.equal(found.label, shapes.table.label[rows])
    assert found.source.tolist() == [[row, row] for row in rows]
    assert (found.split, found.builder) == ("train", "toy")
    pixels = np.asarray(Image.open(folder / "1.png")).transpose(2, 0, 1)
    assert np.array_equal(found.second[1].numpy(), pixels)
    small = load_pairs(folder, shapes.listing.table(24))
    assert small.first.shape == small.second.shape == (3, 3, 24, 24)
    PairSampler(found, 2).draw()


def test_splits_are_told_apart_and_may_be_empty(folder: Path, shapes) -> None:
    path = write(folder, pair(shapes, 0), pair(shapes, 1, "validation"), pair(shapes, 2, builder="other"))
    assert len(load_pairs(path, shapes.table, split="validation")) == 1
    train = load_pairs(path, shapes.table)
    assert (len(train), train.builder) == (2, "other+toy")
    empty = load_pairs(write(folder, pair(shapes, 0)), shapes.table, split="validation")
    assert len(empty) == 0
    assert len(empty.take(torch.arange(0))) == 0


def test_rejected_pairs_are_left_out(folder: Path, shapes) -> None:
    rejected = pair(shapes, 1, status="rejected", reason="hair")
    assert len(load_pairs(write(folder, pair(shapes, 0), rejected), shapes.table)) == 1
    missing = pair(shapes, 2, second="none.png", status="rejected")
    assert len(load_pairs(write(folder, pair(shapes, 0), missing), shapes.table)) == 1
    with pytest.raises(DataError, match="all 1 pairs of train are rejected; `ipg pairs show` shows why"):
        load_pairs(write(folder, rejected), shapes.table)


def test_all_that_is_wrong_is_said_at_once(folder: Path, shapes, tmp_path: Path) -> None:
    (folder / "broken.png").write_bytes(b"GIF89a?")
    (tmp_path / "outside.png").write_bytes((folder / "0.png").read_bytes())
    disc, cross = (shapes.table.classes.index(name) for name in ("disc", "cross"))
    test_image = shapes.name(shapes.rows("test", label=disc)[0])
    first = f"data:{shapes.name(shapes.rows('train', label=disc)[0])}"
    other = f"data:{shapes.name(shapes.rows('train', label=cross)[0])}"
    wrong = [
        Pair(first, other, "disc", "train"),
        Pair(first, f"data:{test_image}", "disc", "train"),
        Pair(first, "none.png", "disc", "train"),
        Pair(first, "broken.png", "disc", "train"),
        Pair(first, "../outside.png", "disc", "train"),
        Pair(first, "0.png", "7", "train"),
        Pair("data:none.png", "0.png", "disc", "train"),
        Pair(first, "0.png", "disc", "train", label_first="cross"),
    ]
    path = write(folder, pair(shapes, 0), *wrong)
    with pytest.raises(ProblemsError) as caught:
        load_pairs(path, shapes.table)
    said = sorted((problem.removeprefix(f"{path} ") for problem in caught.value.problems), key=lambda text: text[:6])
    for line, part in (
        *((3, "labels differ: "), (4, f"another split: {test_image} is of test, the pair of train")),
        *((5, "none.png: there is no such file"), (6, "broken.png: "), (7, "is not inside"), (8, "the label is '7'")),
        *((9, "has no image 'none.png'"), (10, "labels differ: the first member is cross, the pair disc")),
    ):
        assert sum(text.startswith(f"line {line}: ") and part in text for text in said) == 1, (line, said)
    assert len(said) == 8


def made_at(folder: Path, **settings: object) -> None:
    record = {split: {"settings": settings, "pairs": "x"} for split in ("train", "validation")}
    (folder / "build.json").write_text(json.dumps(record))


def test_files_that_were_made_smaller_are_refused(folder: Path, shapes) -> None:
    path = write(folder, pair(shapes, 0), pair(shapes, 1, "validation"))
    made_at(folder, size=32)
    for split in ("train", "validation"):
        with pytest.raises(
            DataError, match="pairs are of images of 32 pixels, the network is to see 48; build them"
        ) as e:
            load_pairs(path, shapes.table, split=split)
        assert "again with --size 48, or take --size 32" in str(e.value)
    for size in (48, 64):
        made_at(folder, size=size)
        assert len(load_pairs(path, shapes.table)) == 1
    two = shapes.rows("train", label=0)[:2]
    first, second = (f"data:{shapes.name(row)}" for row in two)
    made_at(folder, size=32)
    existing = write(folder, pair(shapes, 0, first=first, second=second, label="0"))
    assert len(load_pairs(existing, shapes.table)) == 1  # nothing was made


def test_larger_files_are_brought_to_the_size_of_the_data_as_its_images_are(folder: Path, shapes) -> None:
    """A file that is the image itself stays the same image at every size."""
    row = shapes.rows("train")[0]
    Image.fromarray(shapes.table.images[row].permute(1, 2, 0).numpy()).save(folder / "0.png")
    made_at(folder, size=48)
    path = write(folder, pair(shapes, 0), pair(shapes, 1))
    with pytest.warns(UserWarning, match="1 of 2 pairs of train show the same image twice at 24 pixels"):
        found = load_pairs(path, shapes.listing.table(24))
    assert torch.equal(found.first[0], found.second[0])


def test_pairs_of_another_draw_of_the_split(folder: Path, shapes) -> None:
    other = f"data:{shapes.name(shapes.rows('validation')[0])}"
    path = write(folder, pair(shapes, 0), Pair(other, "1.png", "disc", "train"))
    drawn = replace(shapes.table, drawn=0)
    made_at(folder, size=48, seed=3)  # as it was kept before the split had a seed of its own
    with pytest.raises(ProblemsError) as caught:
        load_pairs(path, drawn)
    first, second = caught.value.problems[:2]
    assert (
        "were made with split_seed 3, and the split of labels is now drawn by split_seed 0: give --split-seed 3"
        in first
    )
    assert "by a column `split`" in first
    assert "(the split is drawn by split_seed 0: a column `split` in a table fixes it)" in second
    made_at(folder, size=48, seed=3, split_seed=0)
    with pytest.raises(ProblemsError) as caught:
        load_pairs(path, drawn)
    assert "another split" in caught.value.problems[0]
    with pytest.raises(ProblemsError) as caught:
        load_pairs(path, shapes.table)
    assert "split_seed" not in str(caught.value)


def test_pairs_without_a_difference_are_told(folder: Path, shapes) -> None:
    same = pair(shapes, 0, second=f"data:{shapes.name(shapes.rows('train')[0])}")
    path = write(folder, same, pair(shapes, 1))
    with pytest.warns(UserWarning, match=r"1 of 2 pairs of train show the same image twice at 48 pixels and teach"):
        assert len(load_pairs(path, shapes.table)) == 2
    with pytest.raises(DataError, match=r"all 2 pairs of train show the same image twice at 48 pixels, and teach"):
        load_pairs(write(folder, same, same), shapes.table)
