from pathlib import Path

import pytest

from ipg.data import celeba
from ipg.data.errors import DataError, ProblemsError
from ipg.data.prepare_celeba import prepare

NAMES = [f"{number:06d}.jpg" for number in range(1, 13)]
ATTRIBUTES = "12\nBlond_Hair Male\n" + "".join(f"{name} {1 - 2 * (n % 2):2d} -1\n" for n, name in enumerate(NAMES))
PARTITION = "".join(f"{name} {n % 3}\n" for n, name in enumerate(NAMES))


@pytest.fixture(params=["authors", "kaggle"])
def archives(request, tmp_path: Path, picture, put, zipped, monkeypatch) -> Path:
    monkeypatch.setattr(celeba, "IMAGES", 12)
    home = tmp_path / "downloads"
    images = {name: picture(n, kind="JPEG") for n, name in enumerate(NAMES)}
    if request.param == "authors":
        put(home / "Anno" / "list_attr_celeba.txt", ATTRIBUTES.encode())
        put(home / "Eval" / "list_eval_partition.txt", PARTITION.encode())
        zipped(
            home / "Img" / "img_align_celeba.zip", {f"img_align_celeba/{name}": data for name, data in images.items()}
        )
    else:
        rows = ["image_id,Blond_Hair,Male", *(f"{name},{1 - 2 * (n % 2)},-1" for n, name in enumerate(NAMES))]
        parts = ["image_id,partition", *(f"{name},{n % 3}" for n, name in enumerate(NAMES))]
        files = {f"img_align_celeba/img_align_celeba/{name}": data for name, data in images.items()}
        files["list_attr_celeba.csv"] = "\n".join(rows).encode()
        files["list_eval_partition.csv"] = "\n".join(parts).encode()
        files["../../evil.jpg"] = files["img_align_celeba/../../../000001.jpg"] = b"out of the folder"
        zipped(home / "archive.zip", files, deflated=True)
    return home


def test_unpacked_into_what_the_reader_takes(archives: Path, tmp_path: Path, picture) -> None:
    told: list[int] = []
    made = prepare(archives, tmp_path / "out" / "celeba", progress=lambda done, total: told.append(done))
    listing = celeba.read("celeba", made)
    assert listing.label.tolist() == [1, 1, 0, 0] * 3 or sorted(listing.label.tolist()) == [0] * 6 + [1] * 6
    assert sorted(listing.files) == NAMES
    assert (made / "img_align_celeba" / NAMES[0]).read_bytes() == picture(0, kind="JPEG")
    assert told == list(range(1, 13))
    everything = {path.relative_to(tmp_path / "out").parts[0] for path in (tmp_path / "out").rglob("*")}
    assert everything == {"celeba"}
    assert len(list(made.rglob("*"))) == 12 + 3


def test_an_interrupted_command_goes_on(archives: Path, tmp_path: Path) -> None:
    made = prepare(archives, tmp_path / "out")
    kept, cut = made / "img_align_celeba" / NAMES[0], made / "img_align_celeba" / NAMES[1]
    whole, before = cut.read_bytes(), kept.stat().st_mtime_ns
    cut.write_bytes(whole[:50])
    (made / "img_align_celeba" / NAMES[2]).unlink()
    prepare(archives, tmp_path / "out")
    assert cut.read_bytes() == whole
    assert kept.stat().st_mtime_ns == before
    assert len(celeba.read("celeba", made).files) == 12


@pytest.mark.parametrize("archives", ["authors"], indirect=True)
class TestWrong:
    def test_missing_parts(self, archives: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"there is no folder .*nowhere; expected one with img_align_celeba"):
            prepare(tmp_path / "nowhere", tmp_path / "out")
        (archives / "Img" / "img_align_celeba.zip").unlink()
        with pytest.raises(DataError, match=r"has no zip with images of CelebA; expected img_align_celeba\.zip"):
            prepare(archives, tmp_path / "out")
        (archives / "Img" / "img_align_celeba").mkdir()
        with pytest.raises(DataError, match="unpacked already: use it as it is"):
            prepare(archives, tmp_path / "out")
        (archives / "Anno" / "list_attr_celeba.txt").unlink()
        with pytest.raises(DataError, match=r"has no list_attr_celeba\.txt"):
            prepare(archives, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_images_that_no_archive_has(self, archives: Path, tmp_path: Path) -> None:
        path = archives / "Eval" / "list_eval_partition.txt"
        path.write_text(path.read_text() + "000013.jpg 0\n000014.jpg 0\n")
        with pytest.raises(ProblemsError, match=r"000013\.jpg of list_eval_partition\.txt is in no archive") as error:
            prepare(archives, tmp_path / "out")
        assert len(error.value.problems) == 2

    def test_damaged_archives(self, archives: Path, tmp_path: Path, picture) -> None:
        path = archives / "Img" / "img_align_celeba.zip"
        whole, image = path.read_bytes(), picture(3, kind="JPEG")
        path.write_bytes(whole.replace(image, image[:-9] + bytes(9)))
        with pytest.raises(ProblemsError, match=r"000004\.jpg cannot be read from .*Bad CRC-32"):
            prepare(archives, tmp_path / "out")
        assert not (tmp_path / "out" / "list_attr_celeba.txt").exists()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="cannot be read as a zip archive"):
            prepare(archives, tmp_path / "out")
