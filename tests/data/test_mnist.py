import gzip
import hashlib
import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ipg.data import mnist as mnist_files
from ipg.data.errors import DataError
from ipg.data.mnist import Digits, default_path, fetch, read

TRAIN, TEST = 12, 5
Arrays = dict[str, NDArray[np.generic]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_files, "TRAIN", TRAIN)
    monkeypatch.setattr(mnist_files, "TEST", TEST)


@pytest.fixture
def arrays() -> Arrays:
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.integers(0, 256, (TRAIN, 28, 28), dtype=np.uint8),
        "y_train": generator.integers(0, 10, TRAIN, dtype=np.uint8),
        "x_test": generator.integers(0, 256, (TEST, 28, 28), dtype=np.uint8),
        "y_test": generator.integers(0, 10, TEST, dtype=np.uint8),
    }


def idx(array: NDArray[np.generic]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_npz(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def write_folder(folder: Path, arrays: Arrays, *, dotted: bool = False, zipped: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    for name, array in zip(mnist_files.MD5, arrays.values(), strict=True):
        stem = name.removesuffix(".gz")
        stem = stem.replace("-idx", ".idx") if dotted else stem
        data = idx(array)
        (folder / (stem + ".gz" * zipped)).write_bytes(gzip.compress(data, mtime=0) if zipped else data)
    return folder


def check_same(digits: Digits, arrays: Arrays) -> None:
    assert digits.train == TRAIN
    assert digits.images.dtype == torch.uint8
    assert digits.labels.dtype == torch.int64
    assert np.array_equal(digits.images.numpy(), np.concatenate([arrays["x_train"], arrays["x_test"]]))
    assert np.array_equal(digits.labels.numpy(), np.concatenate([arrays["y_train"], arrays["y_test"]]))


def test_reads_npz(tmp_path: Path, arrays: Arrays) -> None:
    check_same(read(write_npz(tmp_path / "mnist.npz", arrays)), arrays)


def test_reads_npz_with_wide_labels(tmp_path: Path, arrays: Arrays) -> None:
    wide = arrays | {"y_train": arrays["y_train"].astype(np.int64), "y_test": arrays["y_test"].astype(">i4")}
    check_same(read(write_npz(tmp_path / "mnist.npz", wide)), arrays)


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_reads_a_folder_of_idx_files(tmp_path: Path, arrays: Arrays, dotted: bool, zipped: bool) -> None:
    check_same(read(write_folder(tmp_path, arrays, dotted=dotted, zipped=zipped)), arrays)


def test_environment_names_the_place(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_MNIST", str(write_npz(tmp_path / "mine.npz", arrays)))
    assert default_path() == tmp_path / "mine.npz"
    check_same(read(), arrays)
    monkeypatch.setenv("IPG_MNIST", "")
    assert default_path() == Path.home() / ".cache" / "ipg" / "mnist"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no MNIST at .*nowhere: fetch MNIST with `ipg data fetch mnist`"):
        read(tmp_path / "nowhere")


def test_folder_without_a_file_names_it(tmp_path: Path, arrays: Arrays) -> None:
    (write_folder(tmp_path, arrays) / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"has no t10k-labels-idx1-ubyte \(nor t10k-labels.idx1-ubyte"):
        read(tmp_path)


def test_truncated_idx_file(tmp_path: Path, arrays: Arrays) -> None:
    path = write_folder(tmp_path, arrays, zipped=False) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="train-images-idx3-ubyte is truncated or corrupt"):
        read(tmp_path)


def test_images_and_labels_mixed_up(tmp_path: Path, arrays: Arrays) -> None:
    swapped = dict(zip(arrays, [arrays[key] for key in ("y_train", "x_train", "x_test", "y_test")], strict=True))
    with pytest.raises(DataError, match="is not MNIST: its training part must have images"):
        read(write_folder(tmp_path, swapped))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"x_train": a["x_train"][:-1]}, r"training part .* got \(11, 28, 28\) and \(12,\)"),
        (lambda a: a | {"y_test": a["y_test"][:-1]}, r"test part .* got \(5, 28, 28\) and \(4,\)"),
        (lambda a: a | {"x_test": a["x_test"][:, ::2, ::2]}, r"test part .* got \(5, 14, 14\)"),
        (lambda a: a | {"y_train": a["y_train"] + 10}, r"labels must lie in 0…9"),
        (lambda a: a | {"x_train": a["x_train"] / 255}, "x_train must be uint8, got float64"),
        (lambda a: a | {"y_train": a["y_train"].astype(object)}, "cannot be read as an .npz"),
        (
            lambda a: {key: a[key] for key in ("x_train", "y_train")},
            "x_test.*expected x_train, y_train, x_test, y_test",
        ),
    ],
)
def test_npz_that_is_not_mnist(
    tmp_path: Path, arrays: Arrays, change: Callable[[Arrays], Arrays], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(write_npz(tmp_path / "mnist.npz", change(arrays)))


def saved_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "broken",
    [lambda data: b"", lambda data: b"no archive", lambda data: data[: len(data) // 2], lambda data: saved_array()],
    ids=["empty", "text", "truncated", "npy"],
)
def test_broken_npz(tmp_path: Path, arrays: Arrays, broken: Callable[[bytes], bytes]) -> None:
    path = write_npz(tmp_path / "mnist.npz", arrays)
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(DataError, match=r"cannot be read as an \.npz"):
        read(path)


def test_corrupt_bytes_in_an_npz(tmp_path: Path, arrays: Arrays) -> None:
    path = write_npz(tmp_path / "mnist.npz", arrays)
    data = bytearray(path.read_bytes())
    data[2000] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot be read as an \.npz"):
        read(path)


def test_digits_are_validated() -> None:
    images, labels = torch.zeros(4, 28, 28, dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    with pytest.raises(DataError, match="images must be uint8"):
        Digits(images.float(), labels, train=4)
    with pytest.raises(DataError, match="labels must be int64 of shape"):
        Digits(images, labels[:3], train=4)
    with pytest.raises(DataError, match="train=5 is out of range"):
        Digits(images, labels, train=5)


class Mirror:
    """A mirror in a folder, reached by file:// addresses."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self.folder = write_folder(folder, arrays)
        self.address = folder.as_uri() + "/"

    def md5(self) -> dict[str, str]:
        return {name: hashlib.md5((self.folder / name).read_bytes()).hexdigest() for name in mnist_files.MD5}


@pytest.fixture
def mirror(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    mirror = Mirror(tmp_path / "mirror", arrays)
    monkeypatch.setattr(mnist_files, "MD5", mirror.md5())
    monkeypatch.setattr(mnist_files, "MIRRORS", (mirror.address,))
    return mirror


def test_fetch_then_read(tmp_path: Path, mirror: Mirror, arrays: Arrays) -> None:
    seen: dict[str, tuple[int, int | None]] = {}
    target = tmp_path / "deep" / "mnist"
    assert fetch(target, progress=lambda name, done, total: seen.update({name: (done, total)})) == target
    check_same(read(target), arrays)
    sizes = {name: (target / name).stat().st_size for name in mnist_files.MD5}
    assert seen == {name: (size, size) for name, size in sizes.items()}
    assert sorted(path.name for path in target.iterdir()) == sorted(mnist_files.MD5)


def test_fetch_downloads_only_what_is_missing_or_broken(tmp_path: Path, mirror: Mirror) -> None:
    target = fetch(tmp_path / "mnist")
    (target / "train-labels-idx1-ubyte.gz").write_bytes(b"broken")
    (target / "t10k-labels-idx1-ubyte.gz").unlink()
    seen: set[str] = set()
    fetch(target, progress=lambda name, done, total: seen.add(name))
    assert seen == {"train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}
    assert read(target).train == TRAIN


def test_second_mirror_steps_in(
    tmp_path: Path, mirror: Mirror, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Mirror(tmp_path / "wrong", arrays | {"y_test": arrays["y_test"][::-1].copy()})
    gone = (tmp_path / "gone").as_uri() + "/"
    monkeypatch.setattr(mnist_files, "MIRRORS", (gone, wrong.address, mirror.address))
    check_same(read(fetch(tmp_path / "mnist")), arrays)


def test_without_network_one_sentence_and_no_leftovers(
    tmp_path: Path, mirror: Mirror, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Mirror(tmp_path / "wrong", arrays | {"x_train": arrays["x_train"][::-1].copy()})
    monkeypatch.setattr(mnist_files, "MIRRORS", ((tmp_path / "gone").as_uri() + "/", wrong.address))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz could not be downloaded") as caught:
        fetch(tmp_path / "mnist")
    assert "wrong checksum" in str(caught.value)
    assert "set IPG_MNIST" in str(caught.value)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_fetch_into_a_file(tmp_path: Path, mirror: Mirror) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match="taken cannot hold MNIST's files"):
        fetch(tmp_path / "taken")


def test_real_mnist_is_the_original(mnist: Digits) -> None:
    assert int(mnist.images[:60_000].sum()) == 1567298545
    assert int(mnist.images[60_000:].sum()) == 264923200
    assert mnist.train == 60_000
    assert mnist.labels[:5].tolist() == [5, 0, 4, 1, 9]
