import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ipg.data.errors import DataError
from ipg.pairs.features import joined, read_attributes, read_features, thumbnails


def test_features_in_the_order_of_the_table(shapes, tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(len(shapes.table), 5)).astype(np.float32)
    names = np.array(shapes.table.names)
    order = np.random.default_rng(1).permutation(len(names))
    np.save(tmp_path / "a.npy", features)
    np.savez(tmp_path / "b.npz", features=features[order], names=names[order])
    np.savez(tmp_path / "c.npz", features=features)
    metadata = {"names": json.dumps(names[order].tolist())}
    save_file({"features": torch.from_numpy(features[order])}, tmp_path / "d.safetensors", metadata=metadata)
    save_file({"features": torch.from_numpy(features)}, tmp_path / "e.safetensors")
    for name in ("a.npy", "b.npz", "c.npz", "d.safetensors", "e.safetensors"):
        assert np.array_equal(read_features(tmp_path / name, shapes.table), features), name


def test_files_that_hold_no_features(shapes, tmp_path: Path) -> None:
    features = np.zeros((3, 2))
    np.save(tmp_path / "flat.npy", np.zeros(5))
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    np.savez(tmp_path / "other.npz", weights=features)
    np.savez(tmp_path / "few.npz", features=features, names=np.array(["a", "b", "c"]))
    np.savez(tmp_path / "odd.npz", features=features, names=np.array(["a"]))
    np.savez(tmp_path / "single.npz", features=features, names=np.array("a"))
    (tmp_path / "broken.npz").write_bytes(b"PK no zip")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    for name, names in (("deep", "[" * 100_000), ("number", "3"), ("lists", "[[1], [2], [3]]")):
        save_file({"features": torch.zeros(3, 2)}, tmp_path / f"{name}.safetensors", metadata={"names": names})
    for name, says in (
        *(("flat.npy", r"of shape \(5,\); expected numbers"), ("text.npy", "expected numbers")),
        *(("other.npz", "cannot be read as features"), ("few.npz", "has no features of 44 images, the first of them")),
        *((f"{name}.npz", "3 rows of features but 1 names") for name in ("odd", "single")),
        ("broken.npz", "cannot be read as features"),
        *(("broken.safetensors", "cannot be read as features"), ("none.npy", "cannot be read as features")),
        *((f"{name}.safetensors", "cannot be read as features") for name in ("deep", "number", "lists")),
    ):
        with pytest.raises(DataError, match=says):
            read_features(tmp_path / name, shapes.table)


def test_further_attributes(shapes, tmp_path: Path) -> None:
    table = shapes.table
    lines = ["file,Hat,Label,Shortcut,Not_Shortcut,Beard,identity"]
    for row in reversed(range(len(table))):
        label, attribute = int(table.label[row]), int(table.attribute[row])
        lines.append(
            f"{shapes.name(row)},{int(row % 5 == 0)},{label},{attribute},{1 - attribute},{2 * (row % 3 == 0) - 1},{row}"
        )
    (tmp_path / "a.csv").write_text("\n".join(lines))
    values, names = read_attributes(tmp_path / "a.csv", table)
    assert names == ("Hat", "Beard")
    assert values.tolist() == [[int(row % 5 == 0), int(row % 3 == 0)] for row in range(len(table))]


def test_attributes_that_tell_one_value_from_the_others_are_left_out(shapes, tmp_path: Path) -> None:
    table = replace(shapes.table, attribute=torch.arange(len(shapes.table)) % 3, attributes=("grass", "sea", "snow"))
    lines = ["file,Hat,Snow,Not_Snow"]
    lines += [f"{shapes.name(row)},{int(row % 5 == 0)},{int(row % 3 == 2)},{int(row % 3 != 2)}" for row in range(44)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert len(table) == 44
    assert read_attributes(tmp_path / "a.csv", table)[1] == ("Hat",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,Hat\nnobody.png,1\n", "no column names the images of labels, such as"),
        ("file,Hat\nFIRST,1\n", "lacks 43 images of labels"),
    ],
)
def test_attributes_of_other_images(shapes, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.csv").write_text(text.replace("FIRST", shapes.name(0)))
    with pytest.raises(DataError, match=says):
        read_attributes(tmp_path / "a.csv", shapes.table)
    lines = ["file,name", *(f"{name},x" for name in shapes.table.names)]
    (tmp_path / "b.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="has no column of 0 and 1"):
        read_attributes(tmp_path / "b.csv", shapes.table)


def test_thumbnails_tell_scenes_apart(shapes) -> None:
    found = thumbnails(shapes.table.images)
    assert found.shape == (len(shapes.table), 4 * 16 * 16)
    grass, sea = (found[shapes.rows("train", attribute=number)] for number in (0, 1))
    assert torch.cdist(grass, grass).mean() < 0.5 * torch.cdist(grass, sea).mean()


def test_joined_weighs_both_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    features, others = torch.randn(300, 20, generator=generator), torch.randint(2, (300, 6), generator=generator)
    points = joined(features.numpy(), others)
    for part in (points[:, :20], points[:, 20:]):
        squares = torch.cdist(part, part).square()
        assert float(squares.sum() / (300 * 300)) == pytest.approx(1, abs=1e-3)
    heavy = joined(features, others, weight=4)
    torch.testing.assert_close(heavy[:, 20:], 2 * points[:, 20:])
    assert joined(features, torch.zeros(300, 2)).isfinite().all()
