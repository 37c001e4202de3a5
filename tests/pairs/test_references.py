from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.data.decode import Fit, decode
from ipg.data.errors import DataError
from ipg.data.load import load
from ipg.data.table import ImageTable
from ipg.pairs.references import References, name_of, to_rgb
from ipg.pairs.rows import Pair


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "pairs"
    (home / "images").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(home / "images" / "a.png")
    Image.fromarray(pixels).save(tmp_path / "outside.png")
    (home / "images" / "broken.png").write_bytes(b"\x89PNG no more")
    (home / "images" / "empty.png").write_bytes(b"")
    return home


def test_images_of_the_data_and_files(folder: Path, shapes) -> None:
    references = References(folder, shapes.table)
    assert torch.equal(references.image(f"data:{shapes.name(3)}"), shapes.table.images[3])
    pixels = np.asarray(Image.open(folder / "images" / "a.png")).transpose(2, 0, 1)
    assert np.array_equal(references.image("images/a.png").numpy(), pixels)
    assert np.array_equal(references.image("./images/../images/a.png").numpy(), pixels)
    assert References(folder, size=20).image("images/a.png").shape == (3, 20, 20)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("../outside.png", "'../outside.png' is not inside"),
        ("images/../../outside.png", "is not inside"),
        ("/etc/passwd", "'/etc/passwd' is not inside"),
        ("images/none.png", "images/none.png: there is no such file"),
        ("images/broken.png", "images/broken.png: "),
        ("images/empty.png", "it is empty"),
        ("data:none.png", "shapes.* has no image 'none.png'|labels has no image 'none.png'"),
    ],
)
def test_what_leads_nowhere(folder: Path, shapes, reference: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        References(folder, shapes.table).image(reference)


def test_a_name_from_another_folder_is_known_again(folder: Path, shapes) -> None:
    table = replace(shapes.table, names=tuple(f"train/{row}.png" for row in range(len(shapes.table))))
    references, name = References(folder, table), "train/3.png"
    for given in ("3.png", "elsewhere/3.png", "elsewhere\\3.png", "/home/me/train/3.png"):
        with pytest.raises(DataError) as caught:
            references.row(given)
        assert str(caught.value).endswith(f"has no image {given!r}; is {name!r} meant?")


def test_of_two_images_that_may_be_meant_none_is_named(folder: Path, shapes) -> None:
    table = replace(shapes.table, names=tuple(f"{row}/a.png" for row in range(len(shapes.table))))
    with pytest.raises(DataError, match=r"has no image 'a.png'$"):
        References(folder, table).row("a.png")


def test_without_a_data_set(folder: Path) -> None:
    with pytest.raises(DataError, match=r"'x.png' is an image of a data set; say which with --data"):
        References(folder).image("data:x.png")


def test_two_channels(fashion: ImageTable, tmp_path: Path) -> None:
    image = fashion.images[0]
    Image.fromarray(to_rgb(image).permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    references = References(tmp_path, fashion)
    assert torch.equal(references.image("a.png"), image)
    Image.new("RGB", (14, 14), "white").save(tmp_path / "b.png")
    with pytest.raises(DataError, match="two channels, this one has three"):
        references.image("b.png")
    assert torch.equal(to_rgb(image[:1]), image[:1].repeat(3, 1, 1))


def test_images_without_files_go_by_number_and_content(fashion: ImageTable, tmp_path: Path) -> None:
    name = name_of(fashion, 17)
    assert name.startswith("17-")
    assert References(tmp_path, fashion).row(name) == 17
    with pytest.raises(DataError, match="another --seed or --size"):
        References(tmp_path, fashion).row("17-00000000")


def test_sources(shapes, tmp_path: Path) -> None:
    references = References(tmp_path, shapes.table)
    first, second = shapes.name(1), shapes.name(5)
    assert references.sources(Pair(f"data:{first}", f"data:{second}", "disc", "train")) == [1, 5]
    assert references.sources(Pair(f"data:{first}", "a.png", "disc", "train")) == [1, 1]
    assert references.sources(Pair("a.png", "b.png", "disc", "train", made_of=(second, first))) == [5, 5]
    assert references.sources(Pair("a.png", "b.png", "disc", "train")) == [-1, -1]


def of_photographs(home: Path) -> ImageTable:
    """Upright photographs that are no squares, as data of one's own."""
    random = np.random.default_rng(1)
    for number in range(4):
        place = home / ("cat", "dog")[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (90, 60, 3), dtype=np.uint8)).save(place)
    return load(str(home), size=16)


def test_files_that_are_no_squares_become_so_as_those_of_the_data_did(tmp_path: Path) -> None:
    """Or a pair would show what its network never sees: a mark at an edge, perhaps."""
    table = of_photographs(tmp_path / "photos")
    references = References(tmp_path, table)
    assert table.names is not None
    for row, name in enumerate(table.names):
        assert torch.equal(references.image(f"photos/{name}"), table.images[row])
    assert torch.equal(References(tmp_path, size=16).image(f"photos/{table.names[0]}"), table.images[0])


@pytest.mark.parametrize(
    ("fit", "taken"), [("crop", "crop"), ("squeeze", "squeeze"), ("zoom", "squeeze"), (None, "crop")]
)
def test_files_of_pairs_are_no_larger_than_what_was_kept_of_the_data(
    tmp_path: Path, fit: Fit | None, taken: Fit
) -> None:
    table = replace(of_photographs(tmp_path / "photos"), fit=fit)
    assert table.names is not None
    name = f"photos/{table.names[0]}"
    expected = decode((tmp_path / name).read_bytes(), size=16, fit=taken)
    assert np.array_equal(References(tmp_path, table).image(name).numpy(), expected)
    squeezed = decode((tmp_path / name).read_bytes(), size=16, fit="squeeze")
    assert np.array_equal(References(tmp_path, table, fit="squeeze").image(name).numpy(), squeezed)
