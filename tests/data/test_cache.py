import errno
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from forking import Template

from ipg.data import cache
from ipg.data.cache import UnreadableError, cached_images, clear_cache, list_cache
from ipg.data.decode import decode
from ipg.data.errors import DataError
from ipg.data.locations import cache_folder
from ipg.data.sources import FolderSource, Source, ZipSource

NAMES = [f"{number}.png" for number in range(12)]


@pytest.fixture
def source(tmp_path: Path, picture, put) -> Source:
    for number, name in enumerate(NAMES):
        put(tmp_path / "data" / name, picture(number))
    return FolderSource(tmp_path / "data")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all files that are decoded."""
    seen: list[int] = []

    def watched(data: bytes, **options) -> np.ndarray:
        seen.append(len(data))
        return decode(data, **options)

    monkeypatch.setattr(cache, "decode", watched)
    return seen


def images_of(source: Source, names=NAMES, *, size: int = 8, fit="squeeze") -> torch.Tensor:
    return cached_images(source, names, size=size, fit=fit, what="toys")


def files() -> list[str]:
    return sorted(path.suffix for path in (cache_folder() / "images").iterdir())


def test_the_images_in_order(source: Source) -> None:
    images = images_of(source)
    assert (images.dtype, images.shape) == (torch.uint8, (12, 3, 8, 8))
    for image, name in zip(images, NAMES, strict=True):
        assert np.array_equal(image.numpy(), decode(source.read(name), size=8))


def test_decoded_once(source: Source, decoded: list[int]) -> None:
    first = images_of(source)
    assert len(decoded) == 12
    assert torch.equal(images_of(source), first)
    assert len(decoded) == 12


def test_other_settings_or_files_are_other_caches(source: Source, decoded: list[int], tmp_path: Path, picture) -> None:
    images_of(source)
    for options in ({"size": 9}, {"fit": "crop"}, {"names": NAMES[::-1]}):
        images_of(source, **options)
    assert len(decoded) == 4 * 12
    (tmp_path / "data" / NAMES[3]).write_bytes(picture(99))
    assert np.array_equal(images_of(source)[3].numpy(), decode(picture(99), size=8))
    assert len(decoded) == 5 * 12


def test_the_same_content_elsewhere_needs_no_decoding(
    source: Source, decoded: list[int], tmp_path: Path, zipped
) -> None:
    first = images_of(source)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    archive = zipped(tmp_path / "images.zip", {name: source.read(name) for name in NAMES})
    assert torch.equal(images_of(FolderSource(tmp_path / "copy")), first)
    assert torch.equal(images_of(ZipSource([archive])), first)
    assert len(decoded) == 12


def test_writing_to_the_images_leaves_the_cache_alone(source: Source) -> None:
    images = images_of(source)
    before = images.clone()
    images.zero_()
    assert torch.equal(images_of(source), before)


def test_memory_mapped_for_reading_alone_where_the_memory_is_too_small(source: Source, monkeypatch) -> None:
    expected = images_of(source).clone()
    mapped, modes = np.memmap, []

    def too_large(path, *, mode: str, **options):
        modes.append(mode)
        if mode == "c":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return mapped(path, mode=mode, **options)

    monkeypatch.setattr(np, "memmap", too_large)
    assert torch.equal(images_of(source), expected)
    assert modes == ["c", "r"]


def test_all_unreadable_images_are_named_and_nothing_is_kept(source: Source, tmp_path: Path, picture) -> None:
    (tmp_path / "data" / "3.png").write_bytes(picture(3)[:60])
    (tmp_path / "data" / "5.png").write_bytes(b"")
    with pytest.raises(
        UnreadableError, match=r"2 images cannot be read .*`ipg data check`.*5\.png: it is empty"
    ) as error:
        images_of(source)
    assert list(error.value.reasons) == ["3.png", "5.png"]
    assert set(files()) <= {".lock"}
    (tmp_path / "data" / "3.png").write_bytes(picture(3))
    with pytest.raises(UnreadableError, match=r"1 image cannot be read .* replace or remove it"):
        images_of(source)
    (tmp_path / "data" / "5.png").write_bytes(picture(5))
    assert len(images_of(source)) == 12


def test_several_at_once_decode_once(source: Source, decoded: list[int]) -> None:
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(images_of(source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decoded) == 12
    assert all(torch.equal(images, found[0]) for images in found[1:])


@pytest.mark.slow
def test_two_processes_at_once(template: Template, source: Source, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from ipg.data import cache
from ipg.data.sources import FolderSource
decode, seen = cache.decode, []
cache.decode = lambda data, **options: seen.append(1) or decode(data, **options)
images = cache.cached_images(FolderSource(Path({str(source.place)!r})), {NAMES}, size=900, fit="squeeze", what="toys")
print(len(seen), int(images.sum()))
"""
    script, logs = tmp_path / "script.py", [tmp_path / f"{number}.log" for number in range(3)]
    script.write_text(code)
    workers = [template.start(script, log=log) for log in logs]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0], [log.read_text() for log in logs]
    said = [log.read_text().split() for log in logs]
    assert sorted(int(decoded) for decoded, _ in said) == [0, 0, 12]
    assert len({total for _, total in said}) == 1


def test_damaged_metadata_does_not_matter(tmp_path: Path, picture, put) -> None:
    put(tmp_path / "1.jpg", picture(1, kind="JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + bytes(20)))
    assert images_of(FolderSource(tmp_path), ["1.jpg"]).shape == (1, 3, 8, 8)


def test_what_a_killed_process_left_is_cleared_away(source: Source) -> None:
    images_of(source)
    (path,) = (cache_folder() / "images").glob("*.u8")
    path.unlink()
    left = path.parent / f".{path.name}.xyz.tmp"
    left.write_bytes(b"half of it")
    images_of(source)
    assert not left.exists()


def test_a_cache_file_that_was_cut_is_made_anew(source: Source) -> None:
    expected = images_of(source).clone()
    (path,) = (cache_folder() / "images").glob("*.u8")
    path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(images_of(source), expected)


def test_too_little_space_is_said_before_decoding(source: Source, decoded: list[int], monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(
        DataError, match=r"need 2\.3 kB in .* too full \(1\.0 kB are free\).*--clear.*IPG_CACHE.*--size"
    ):
        images_of(source)
    assert decoded == []


def test_a_disk_that_fills_up_leaves_no_half_file(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_write", fill_up)
        with pytest.raises(DataError, match="too full"):
            images_of(source)
    assert set(files()) <= {".lock"}
    assert len(images_of(source)) == 12


def test_a_place_that_cannot_be_written(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be kept in .*set IPG_CACHE to a folder that you may write to"):
        images_of(source)


def test_nothing_to_decode(source: Source) -> None:
    with pytest.raises(DataError, match="toys has no image"):
        images_of(source, names=[])


def test_listing_and_clearing(source: Source) -> None:
    assert list_cache() == []
    assert clear_cache() == 0
    images = images_of(source)
    images_of(source, size=16)
    large, small = list_cache()
    assert (large.bytes, small.bytes) == (12 * 3 * 16 * 16, 12 * 3 * 8 * 8)
    facts = {name: small.facts[name] for name in ("data", "images", "size", "fit")}
    assert facts == {"data": "toys", "images": 12, "size": 8, "fit": "squeeze"}
    for text in ("{", "[" * 100_000):
        small.path.with_suffix(".json").write_text(text)
        assert list_cache()[1].facts == {}
    assert clear_cache() >= large.bytes + small.bytes
    assert list_cache() == []
    assert int(images.sum()) > 0  # what is mapped stays


def test_clearing_leaves_what_is_being_made(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    write = cache._write

    def while_writing(*arguments):
        assert clear_cache() == 0
        return write(*arguments)

    monkeypatch.setattr(cache, "_write", while_writing)
    assert len(images_of(source)) == 12
    assert len(list_cache()) == 1


def test_the_key_is_pinned(tmp_path: Path, zipped, picture) -> None:
    """A change of the key makes everybody decode anew: raise VERSION on purpose, never by accident."""
    source = ZipSource([zipped(tmp_path / "x.zip", {"a.ppm": b"P6 1 1 255\nabc"})])
    images_of(source, ["a.ppm"])
    (record,) = (cache_folder() / "images").glob("*.json")
    assert json.loads(record.read_text())["version"] == cache.VERSION == 1
    assert record.stem == "a68ec28cffc822a0bdbe3e978909e8ae"
