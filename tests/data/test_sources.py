import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from ipg.data import sources
from ipg.data.errors import DataError
from ipg.data.sources import FolderSource, Source, ZipSource, is_image, open_source, passed_over

FILES = {"a/1.jpg": b"one", "a/2.webp": b"two" * 50, "b/3.PNG": b"", "list.csv": b"x"}


@pytest.fixture(params=["folder", "zip", "deflated", "zips"])
def source(request, tmp_path: Path, put, zipped) -> Source:
    if request.param == "folder":
        for name, data in FILES.items():
            put(tmp_path / "data" / name, data)
        for junk in (".DS_Store", "a/._1.jpg", "__MACOSX/a/1.jpg"):
            put(tmp_path / "data" / junk, b"junk")
        return open_source(tmp_path / "data")
    if request.param == "zips":
        names = list(FILES)
        zipped(tmp_path / "images-0.zip", {name: FILES[name] for name in names[:2]})
        zipped(tmp_path / "images-1.zip", {name: FILES[name] for name in names[2:]})
        zipped(tmp_path / "masks.zip", {"a/1.jpg": b"no image"})
        return open_source(tmp_path)
    files = {**FILES, "__MACOSX/a/._1.jpg": b"junk"}
    return open_source(zipped(tmp_path / "data.zip", files, deflated=request.param == "deflated"))


def test_the_same_files_whatever_they_lie_in(source: Source) -> None:
    assert source.names() == sorted(FILES)
    assert {name: source.read(name) for name in source.names()} == FILES
    assert [tuple(stamp) for stamp in source.stamps(list(FILES))] == [(len(d), zlib.crc32(d)) for d in FILES.values()]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a/1.jpg", "a/1.jpg"),
        ("./a//1.jpg", "a/1.jpg"),
        ("b/../a/1.jpg", "a/1.jpg"),
        ("a\\1.jpg", "a/1.jpg"),
        ("a/1.webp", "a/1.jpg"),
        ("a/2.jpg", "a/2.webp"),
        ("a/4.jpg", None),
        ("a", None),
    ],
)
def test_names_are_found_without_detours_and_with_other_suffixes(source: Source, name: str, found: str | None) -> None:
    assert source.find(name) == found


@pytest.mark.parametrize(
    "name", ["../secret.jpg", "a/../../secret.jpg", "/etc/passwd", "..\\secret.jpg", "a\0.jpg", "."]
)
def test_names_that_lead_out_of_the_data(source: Source, name: str) -> None:
    with pytest.raises(DataError, match="is not inside"):
        source.find(name)


def test_absolute_names_inside_the_folder(tmp_path: Path, put) -> None:
    path = put(tmp_path / "data" / "a" / "1.jpg", b"one")
    assert FolderSource(tmp_path / "data").find(str(path)) == "a/1.jpg"
    with pytest.raises(DataError, match="is not inside"):
        FolderSource(tmp_path / "dat").find(str(path))


def test_links_are_followed_and_circles_end(tmp_path: Path, put) -> None:
    put(tmp_path / "elsewhere" / "1.jpg", b"one")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data")
    assert FolderSource(tmp_path / "data").names() == ["a/1.jpg"]


def test_files_that_cannot_be_read(source: Source) -> None:
    with pytest.raises(DataError):
        source.read("a/4.jpg")


def test_something_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").mkdir()
    with pytest.raises(DataError, match="directory"):
        FolderSource(tmp_path).read("1.jpg")


def test_a_file_too_large_to_be_an_image(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGEST_FILE", 100)
    assert source.read("a/1.jpg") == b"one"
    with pytest.raises(DataError, match="150 bytes, more than the 100"):
        source.read("a/2.webp")


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, zipped) -> None:
    path = zipped(tmp_path / "bomb.zip", {"1.jpg": bytes(300 << 20)}, deflated=True)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="314,572,800 bytes, more than"):
        ZipSource([path]).read("1.jpg")


def test_a_zip_that_lies_about_its_size(tmp_path: Path, zipped) -> None:
    path = zipped(tmp_path / "liar.zip", {"1.jpg": bytes(1 << 20)}, deflated=True)
    data = path.read_bytes().replace(struct.pack("<I", 1 << 20), struct.pack("<I", 100))
    path.write_bytes(data)
    with pytest.raises(DataError):
        ZipSource([path]).read("1.jpg")


@pytest.mark.parametrize("data", [b"", b"garbage" * 100, b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(200)])
def test_garbage_for_a_zip(tmp_path: Path, data: bytes, put) -> None:
    path = put(tmp_path / "images.zip", data)
    if data.startswith(b"PK\x05\x06"):
        assert ZipSource([path]).names() == []  # an empty archive
        return
    with pytest.raises(DataError, match=r"images\.zip cannot be read as a zip archive"):
        ZipSource([path])


def test_a_damaged_member_is_named_when_it_is_read(tmp_path: Path, zipped) -> None:
    path = zipped(tmp_path / "images.zip", {"1.jpg": b"0123456789" * 9, "2.jpg": b"fine"})
    path.write_bytes(path.read_bytes().replace(b"0123456789", b"012345678x", 1))
    source = ZipSource([path])
    assert source.read("2.jpg") == b"fine"
    with pytest.raises(DataError, match="Bad CRC-32"):
        source.read("1.jpg")


def test_an_encrypted_member(tmp_path: Path, zipped) -> None:
    path = zipped(tmp_path / "images.zip", {"1.jpg": b"secret"})
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="encrypted"):
        ZipSource([path]).read("1.jpg")


def test_a_name_in_two_archives(tmp_path: Path, zipped) -> None:
    archives = [zipped(tmp_path / f"images-{n}.zip", {"1.jpg": bytes(n)}) for n in (0, 1)]
    with pytest.raises(DataError, match=r"'1\.jpg' is twice in .*images-0\.zip and .*images-1\.zip"):
        ZipSource(archives)


def test_names_relative_to_a_folder_of_the_archive(tmp_path: Path, zipped) -> None:
    path = zipped(tmp_path / "x.zip", {"top/a/1.jpg": b"1", "other/1.jpg": b"2"})
    assert ZipSource([path], prefix="top/").names() == ["a/1.jpg"]


def test_archives_are_closed_when_nobody_needs_them(tmp_path: Path, zipped) -> None:
    source = ZipSource([zipped(tmp_path / "x.zip", {"1.jpg": b"1"})])
    archive: zipfile.ZipFile = source._files["1.jpg"][0]
    file = archive.fp
    assert file is not None
    assert not file.closed
    del source, archive
    assert file.closed


def test_images_by_name() -> None:
    assert [name for name in ("a.JPG", "b.webp", "c.txt", "d.csv", "e.tiff") if is_image(name)] == [
        "a.JPG",
        "b.webp",
        "e.tiff",
    ]


def test_images_of_formats_that_are_not_read() -> None:
    assert passed_over(["a.jpg", "b.txt", "heic"]) is None
    assert passed_over(["a.jpg", "b.AVIF"]) == (
        "1 file is passed over, since images that end in .avif are not read: save such files as .jpg or .png"
    )


def test_what_is_no_zip_by_its_name(tmp_path: Path, put) -> None:
    with pytest.raises(DataError, match=r"images\.txt cannot be read as a zip .*; expected a folder or a zip$"):
        ZipSource([put(tmp_path / "images.txt", b"text")])


@pytest.mark.skipif(os.name != "posix", reason="needs named pipes")
def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.jpg")
    assert FolderSource(tmp_path).find("1.jpg") is None
