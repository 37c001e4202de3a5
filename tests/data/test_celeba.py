import gzip
from pathlib import Path

import pytest
import torch

from ipg.data import celeba
from ipg.data.celeba import parse_list, read
from ipg.data.errors import DataError, ProblemsError
from ipg.data.listing import RowsError

NAMES = [f"{number:06d}.jpg" for number in range(1, 31)]
ATTRIBUTES = ("Blond_Hair", "Male", "Smiling")


def value(row: int, column: int) -> int:
    return row // (column + 1) % 2


def partition(row: int) -> int:
    return 0 if row < 20 else 1 if row < 25 else 2


@pytest.fixture(autouse=True)
def thirty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celeba, "IMAGES", 30)


@pytest.fixture
def images(picture) -> dict[str, bytes]:
    return {name: picture(number, size=(18, 22), kind="JPEG") for number, name in enumerate(NAMES)}


def texts() -> tuple[str, str]:
    """The two lists as their authors give them."""
    lines = [" ".join([name, *(f"{2 * value(row, c) - 1:2d}" for c in range(3))]) for row, name in enumerate(NAMES)]
    attributes = f"{len(NAMES)}\n{' '.join(ATTRIBUTES)} \n" + "\n".join(lines) + "\n"
    return attributes, "".join(f"{name} {partition(row)}\n" for row, name in enumerate(NAMES))


@pytest.fixture(params=["authors", "flat", "kaggle", "zip", "bare zip", "subset"])
def home(request, tmp_path: Path, images, put, zipped, write_csv) -> Path:
    attributes, partitions = texts()
    if request.param in ("authors", "flat", "zip", "bare zip"):
        anno, eval_, img = ("Anno/", "Eval/", "Img/") if request.param == "authors" else ("", "", "")
        put(tmp_path / f"{anno}list_attr_celeba.txt", attributes.encode())
        put(tmp_path / f"{eval_}list_eval_partition.txt", partitions.encode())
        if "zip" in request.param:
            inner = "" if request.param == "bare zip" else "img_align_celeba/"
            zipped(tmp_path / "img_align_celeba.zip", {inner + name: data for name, data in images.items()})
        else:
            for name, data in images.items():
                put(tmp_path / f"{img}img_align_celeba" / name, data)
    elif request.param == "kaggle":
        rows = [[name, *(2 * value(row, c) - 1 for c in range(3))] for row, name in enumerate(NAMES)]
        write_csv(tmp_path / "list_attr_celeba.csv", ("image_id", *ATTRIBUTES), rows)
        write_csv(
            tmp_path / "list_eval_partition.csv",
            ("image_id", "partition"),
            [(name, partition(row)) for row, name in enumerate(NAMES)][::-1],
        )
        for name, data in images.items():
            put(tmp_path / "img_align_celeba" / "img_align_celeba" / name, data)
    else:
        lines = [",".join(["image_id", *ATTRIBUTES, "partition", "identity"])]
        lines += [
            ",".join(map(str, [name, *(value(row, c) for c in range(3)), partition(row), 9]))
            for row, name in enumerate(NAMES)
        ]
        put(tmp_path / "attributes.csv.gz", gzip.compress("\n".join(lines).encode()))
        for number in (0, 1):
            zipped(tmp_path / f"images-{number}.zip", {name: images[name] for name in NAMES[number::2]})
    return tmp_path


def test_every_layout_is_the_same_data(home: Path) -> None:
    listing = read("celeba", home)
    assert listing.files == tuple(NAMES)
    assert listing.label.tolist() == [value(row, 0) for row in range(30)]
    assert listing.attribute.tolist() == [value(row, 1) for row in range(30)]
    assert listing.split.tolist() == [partition(row) for row in range(30)]
    assert listing.classes == ("not blond hair", "blond hair")
    assert listing.attributes == ("not male", "male")
    assert (listing.name, listing.size, listing.fit) == ("celeba", 224, "crop")
    assert listing.table(16).images.shape == (30, 3, 16, 16)


def test_other_attributes(home: Path) -> None:
    listing = read("celeba_subset", home, task=("Smiling", "Blond_Hair"))
    assert listing.label.tolist() == [value(row, 2) for row in range(30)]
    assert listing.attribute.tolist() == [value(row, 0) for row in range(30)]
    assert (listing.name, listing.classes) == ("celeba_subset:Smiling/Blond_Hair", ("not smiling", "smiling"))
    assert listing.size == 128


def test_tasks_share_their_images(home: Path) -> None:
    first, second = read("celeba", home), read("celeba", home, task=("Smiling", "Male"))
    assert first.files == second.files
    assert torch.equal(first.split, second.split)


@pytest.mark.parametrize("home", ["flat"], indirect=True)
class TestWrong:
    def test_unknown_and_equal_attributes(self, home: Path) -> None:
        with pytest.raises(DataError, match=r"no attribute 'Smile'; did you mean Smiling\? There are Blond_Hair, Male"):
            read("celeba", home, task=("Smile", "Male"))
        with pytest.raises(DataError, match="label and the shortcut are both Male"):
            read("celeba", home, task=("Male", "Male"))

    def test_a_part_is_not_called_celeba(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(celeba, "IMAGES", 202_599)
        with pytest.raises(DataError, match=r"lists 30 images, not CelebA's 202,599; load it as celeba_subset"):
            read("celeba", home)
        assert len(read("celeba_subset", home).files) == 30

    def test_missing_parts(self, home: Path) -> None:
        (home / "img_align_celeba").rename(home / "faces")
        with pytest.raises(DataError, match="has no img_align_celeba folder or zip; download"):
            read("celeba", home)
        (home / "list_eval_partition.txt").unlink()
        with pytest.raises(ProblemsError) as error:  # both, and the remedy once
            read("celeba", home)
        partition, images = error.value.problems
        assert partition.endswith("has no list_eval_partition.txt (nor .csv, nor either in Eval/)")
        assert "has no img_align_celeba folder or zip; download" in images
        with pytest.raises(DataError, match="is a file; expected the folder"):
            read("celeba", home / "list_attr_celeba.txt")

    def test_all_problems_at_once(self, home: Path) -> None:
        (home / "img_align_celeba" / NAMES[4]).unlink()
        attributes = (home / "list_attr_celeba.txt").read_text()
        (home / "list_attr_celeba.txt").write_text(attributes.replace(f"{NAMES[2]} -1", f"{NAMES[2]} 7"))
        (home / "list_eval_partition.txt").write_text(
            "".join(f"{name} {row % 4}\n" for row, name in enumerate(NAMES[:-1]))
        )
        with pytest.raises(ProblemsError) as error:
            read("celeba", home)
        said = "\n".join(error.value.problems)
        assert "line 5: Blond_Hair is '7', expected 1 or -1 or 0" in said
        assert "line 4: partition is '3', expected 0 or 1 or 2" in said
        assert f"{NAMES[-1]} is not in" in said
        assert f"there is no image '{NAMES[4]}'" in said
        assert isinstance(error.value, RowsError)
        assert error.value.rest is not None
        rest = error.value.rest()  # what is right: not 2, 4, the last, nor every fourth from 3
        good = [row for row in range(29) if row not in (2, 4) and row % 4 != 3]
        assert sorted(rest.files) == [NAMES[row] for row in good]
        at = {name: number for number, name in enumerate(rest.files)}
        assert [int(rest.label[at[NAMES[row]]]) for row in good] == [value(row, 0) for row in good]
        assert [int(rest.split[at[NAMES[row]]]) for row in good] == [row % 4 for row in good]

    def test_what_is_asked_for_and_what_is_there_at_once(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(celeba, "IMAGES", 202_599)
        (home / "img_align_celeba").rename(home / "faces")
        with pytest.raises(ProblemsError) as error:
            read("celeba", home, task=("Smile", "Mole"))
        assert [
            part in problem
            for part, problem in zip(
                ("no img_align_celeba", "lists 30 images", "no attribute 'Smile'", "no attribute 'Mole'"),
                error.value.problems,
                strict=True,
            )
        ] == [True] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no image"),
        ("2\nMale\n", "lists no image"),
        ("2\nMale Young\n1.jpg 1 1\n2.jpg 1\n", r"line 4 has 2 words, expected 3"),
    ],
)
def test_damaged_lists(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_list(text.encode(), "list.txt")
