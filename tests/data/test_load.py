from pathlib import Path

import numpy as np
import pytest
import torch

from ipg.data import celeba, colored_fashion, colored_mnist
from ipg.data import mnist as mnist_files
from ipg.data.errors import DataError
from ipg.data.load import DATASETS, READERS, list_files, load
from ipg.data.mnist import read
from ipg.data.reading import Reading


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mnist_files, "TRAIN", 60)
    monkeypatch.setattr(mnist_files, "TEST", 30)
    generator = np.random.default_rng(0)
    path = tmp_path / "mnist.npz"
    np.savez(
        path,
        x_train=generator.integers(0, 256, (60, 28, 28), dtype=np.uint8),
        y_train=generator.integers(0, 10, 60, dtype=np.uint8),
        x_test=generator.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        y_test=generator.integers(0, 10, 30, dtype=np.uint8),
    )
    return path


def test_every_name_loads_the_table_of_that_name(small_mnist: Path) -> None:
    for name in DATASETS:
        if name not in READERS:
            path = small_mnist if "mnist" in name else None
            assert load(name, path=path).name == name


def test_arguments_are_passed_on(small_mnist: Path) -> None:
    mnist = load("colored-mnist-irm", path=small_mnist, size=28, seed=3)
    expected = colored_mnist.load(read(small_mnist), protocol="irm", size=28, seed=3)
    assert torch.equal(mnist.images, expected.images)
    fashion = load("colored-fashion-noisy", size=28, seed=2)
    assert torch.equal(fashion.images, colored_fashion.load(protocol="noisy", size=28, seed=2).images)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown data set 'cifar'; there are colored_fashion, .*colored_mnist_irm"):
        load("cifar")


@pytest.mark.parametrize(
    ("given", "meant"), [("waterbird100", "waterbirds100"), ("phtos", "photos"), ("photo-table", "photos-table.csv")]
)
def test_a_name_that_is_nearly_one_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos-table.csv").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"unknown data set '{given}'; did you mean {meant}\?"):
        load(given)


def test_embedded_data_takes_no_path() -> None:
    with pytest.raises(ValueError, match="takes no path, got 'somewhere'"):
        load("colored_fashion", path="somewhere")


@pytest.fixture
def files(tmp_path: Path, picture, put, write_csv, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is Waterbirds, CelebA and one's own at once: cats and dogs."""
    monkeypatch.setattr(celeba, "IMAGES", 24)
    names = [f"{('cat', 'dog')[n % 2]}/{n:02d}.png" for n in range(24)]
    for n, name in enumerate(names):
        put(tmp_path / "img_align_celeba" / name, picture(n))
        put(tmp_path / name, picture(n))
    write_csv(
        tmp_path / "metadata.csv",
        ("img_filename", "y", "split", "place"),
        [(name, n % 2, n // 8, n % 2) for n, name in enumerate(names)],
    )
    write_csv(
        tmp_path / "attributes.csv",
        ("image_id", "Blond_Hair", "Male", "Young", "partition"),
        [(name, n % 2, n // 2 % 2, n // 4 % 2, n // 8) for n, name in enumerate(names)],
    )
    write_csv(tmp_path / "labels.csv", ("path", "label"), [(name, name[:3]) for name in names])
    return tmp_path


@pytest.mark.parametrize("name", [name for name in READERS if "95" not in name and name != "folder"])
def test_image_files_by_name(files: Path, name: str) -> None:
    table = load(name.replace("_", "-"), path=files, size=8)
    assert (table.name, table.images.shape) == (name, (24, 3, 8, 8))
    listing = list_files(name, path=files)
    assert listing is not None
    assert listing.files == table.names


def test_readers_are_data_sets_and_the_others_have_no_files() -> None:
    assert set(READERS) < set(DATASETS)
    assert list_files("colored-fashion") is None


@pytest.mark.parametrize("name", ["celeba:Young/Blond_Hair", "celeba-subset:Young/Blond_Hair"])
def test_attributes_of_ones_choice(files: Path, name: str) -> None:
    table = load(name, path=files, size=8)
    assert (table.name, table.classes) == (name.replace("-", "_"), ("not young", "young"))


@pytest.mark.parametrize("name", ["celeba:Young", "celeba:", "celeba:/Male", "celeba:Young/"])
def test_attributes_that_are_not_two(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected the label and the shortcut, e\.g\. celeba:Smiling/Male"):
        load(name)


def test_paths_of_ones_own(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    (files / "img_align_celeba").rename(files / "pets")
    expected = load("folder", path="pets", size=8)
    for name in ("pets", str(files / "pets"), "./pets"):
        table = load(name, size=8)
        assert (table.name, table.classes) == ("pets", ("cat", "dog"))
        assert torch.equal(table.images, expected.images)
        assert torch.equal(table.split, expected.split)
    assert torch.equal(load("pets", size=8, seed=1).split, expected.split)
    assert not torch.equal(load("pets", size=8, reading=Reading(1)).split, expected.split)
    listed = load("labels.csv", size=8)
    assert (listed.name, listed.images.shape) == ("labels", (24, 3, 8, 8))
    assert load("labels.csv", size=8, path="pets").names == listed.names
    (files / "labels.csv").rename(files / "pets" / "moved.csv")
    assert load("labels.csv", size=8, path="pets/moved.csv").names == listed.names
    assert load("./old/pets", size=8, path="pets").name == "pets"  # the folder has moved


def test_a_folder_without_a_path() -> None:
    with pytest.raises(ValueError, match="say where they are with --data-path"):
        load("folder")


@pytest.mark.parametrize("name", ["nowhere/photos", "labels.csv", "labels.parquet"])
def test_paths_that_lead_nowhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="there is no"):
        load(name)


def test_absolute_paths_below_the_root(files: Path, write_csv) -> None:
    names = [f"{('cat', 'dog')[n % 2]}/{n:02d}.png" for n in range(24)]
    place = write_csv(files / "t" / "abs.csv", ("path", "label"), [(files / name, name[:3]) for name in names])
    assert load(str(place), path="/", size=8).names == tuple(str(files / name)[1:] for name in names)
    (files / "other").mkdir()
    with pytest.raises(
        DataError, match=r"is not inside .*other; name a folder that all images are in with --data-path"
    ):
        load(str(place), path=files / "other", size=8)


@pytest.mark.parametrize("name", ["celeba", "waterbirds", "folder", "colored_mnist", "celeba:Young/Male"])
def test_a_folder_here_that_is_called_like_a_data_set(
    files: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("IPG_MNIST", str(tmp_path / "nowhere"))
    here = name.partition(":")[0]
    asked = [load] if here == "colored_mnist" else [load, list_files]
    for ask in asked:
        with pytest.raises(DataError) as caught:
            ask(name)
        assert "write ./" not in str(caught.value)
    (files / "img_align_celeba").rename(files / here)
    for ask in asked:
        with pytest.raises(DataError, match=rf"write \./{here} if it is images of your own"):
            ask(name)
    assert load(f"./{here}", size=8).classes == ("cat", "dog")


def test_columns_are_for_ones_own(files: Path) -> None:
    for name in ("waterbirds100", "colored_fashion", "celeba:Young/Male"):
        with pytest.raises(ValueError, match=f"{name} has columns of its own: leave --label-column out"):
            load(name, reading=Reading(label_column="y"))
    with pytest.raises(ValueError, match="has columns of its own: leave --path-column out"):
        list_files("celeba", path=files, reading=Reading(path_column="y"))


def test_labels_that_are_none_are_refused_and_listed(files: Path, write_csv) -> None:
    rows = [(f"{('cat', 'dog')[n % 2]}/{n:02d}.png", n) for n in range(24)]
    place = str(write_csv(files / "wrong.csv", ("path", "label"), rows))
    with pytest.raises(DataError, match="nearly as many labels as images: is `label` the right column"):
        load(place, size=8)
    assert list_files(place) is not None
