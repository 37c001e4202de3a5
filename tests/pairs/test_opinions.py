from pathlib import Path

import numpy as np
import pytest
import torch

from ipg.data.errors import DataError
from ipg.pairs.opinions import Codes, answers, read_opinions

IMAGES = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


def test_of_a_function() -> None:
    found = answers(lambda images: images.float().mean(dim=(1, 2, 3)), ["a", "b"], IMAGES)
    assert [float(one) for one in found if one is not None] == [0, 0]
    with pytest.raises(ValueError, match=r"of 2 images an opinion says \(3,\); expected a row each"):
        answers(lambda images: torch.zeros(3), ["a", "b"], IMAGES)


def test_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("image,label,attribute,Hat,Beard\na,blond,male,0,1\nb,dark,male,1,1\n")
    opinions = read_opinions(tmp_path / "p.csv")
    assert not callable(opinions.label)
    assert opinions.label is not None
    one, other, nobody = answers(opinions.label, ["a", "b", "c"], IMAGES)
    assert one is not None
    assert other is not None
    assert not torch.equal(one, other)
    assert nobody is None
    assert opinions.attribute is not None
    assert len({int(one) for one in answers(opinions.attribute, ["a", "b"], IMAGES) if one is not None}) == 1
    assert opinions.others is not None
    assert [one.tolist() for one in answers(opinions.others, ["a", "b"], IMAGES) if one is not None] == [[0, 0], [1, 0]]
    assert opinions.features is None


def test_from_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", image=np.array(["a", "b"]), features=np.eye(2), label=np.array([0, 1]))
    opinions = read_opinions(tmp_path / "p.npz")
    assert opinions.features is not None
    assert [one.tolist() for one in answers(opinions.features, ["b"], IMAGES) if one is not None] == [[0, 1]]
    assert opinions.attribute is None


def test_files_without_opinions(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image\na\n")
    (tmp_path / "b.csv").write_text("picture,label\na,0\n")
    (tmp_path / "c.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "d.npz", image=np.array(["a"]))
    np.savez(tmp_path / "e.npz", image=np.array(["a"]), logits=np.zeros(1))
    np.savez(tmp_path / "f.npz", image=np.array(["a"]), label=np.zeros(2))
    np.savez(tmp_path / "g.npz", image=np.array(["a"]), label=np.array(["cat"]))
    np.savez(tmp_path / "h.npz", image=np.array("a"), attribute=np.array(3))
    np.savez(tmp_path / "i.npz", image=np.array("a"), features=np.zeros(1))
    np.savez(tmp_path / "j.npz", image=np.array(["a", "b"]), features=np.array([[0.0, 1.0], [np.nan, 2.0]]))
    for name, says in (
        *(("a.csv", "has no column but image"), ("b.csv", "has no column image"), ("c.npz", "cannot be read as npz")),
        *(("d.npz", "holds image; expected image, and label"), ("e.npz", "holds logits; expected label")),
        ("f.npz", "has 1 images but 2 rows of label"),
        ("g.npz", r"holds <U3 of shape \(1,\) as label; expected numbers, a row an image; a CSV may have texts"),
        ("h.npz", r"holds int64 of shape \(\) as attribute; expected numbers, a row an image$"),
        ("i.npz", r"as features; expected numbers, \(N, D\)$"),
        ("j.npz", "holds NaN or infinity as features; leave out images of which nothing is known"),
    ):
        with pytest.raises(DataError, match=says):
            read_opinions(tmp_path / name)


def test_what_ipg_predict_writes(tmp_path: Path) -> None:
    lines = ("path,predicted,probability,p_cat,p_dog,error", "a,cat,0.9,0.9,0.1,", "b,dog,0.8,0.2,0.8,", "c,,,,,bad")
    (tmp_path / "p.csv").write_text("\n".join(lines))
    opinions = read_opinions(tmp_path / "p.csv")
    assert (opinions.attribute, opinions.others, opinions.features) == (None, None, None)
    assert not callable(opinions.label)
    assert opinions.label is not None
    assert {name: int(number) for name, number in opinions.label.items()} == {"a": 0, "b": 1}  # c cannot be read
    (tmp_path / "p.csv").write_text("path,label,predicted\na,cat,dog\n")
    with pytest.raises(DataError, match="has both label and predicted"):
        read_opinions(tmp_path / "p.csv")


def test_files_that_belong_together_have_one_number_for_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,label\na,cat\n")
    (tmp_path / "b.csv").write_text("image,label\nb,bird\nc,cat\n")
    codes: Codes = {}
    found = [read_opinions(tmp_path / name, codes).label for name in ("a.csv", "b.csv")]
    assert found == [{"a": torch.tensor(0)}, {"b": torch.tensor(1), "c": torch.tensor(0)}]
