"""Where the bytes of images come from: a folder, or zip archives that are read without unpacking, by relative name."""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from ipg.data.errors import DataError
from ipg.data.stamps import Stamp, stamp_files
from ipg.words import are, number_of

__all__ = ["IMAGE_SUFFIXES", "FolderSource", "Source", "ZipSource", "is_image", "open_source", "passed_over"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""How the names of images end."""
UNREAD_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".xcf", ".exr", ".dcm"),
    *(".raw", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2", ".dng"),
)
"""How the names of images end whose formats are not read."""
LARGEST_FILE = 256 << 20
"""Bytes of one image file; more is refused, be it in an archive or not."""


class Source(ABC):
    """Files by relative names with forward slashes."""

    place: Path
    """The folder or archive, for messages."""

    @abstractmethod
    def names(self) -> list[str]:
        """All files, sorted; hidden ones and those that archivers add are left out."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of a file; DataError says why they cannot be had."""

    @abstractmethod
    def stamps(self, names: Sequence[str]) -> list[Stamp]:
        """Size and checksum of each file."""

    def find(self, name: str) -> str | None:
        """The name under which image `name` is there, with another suffix if need be; None where it is not.

        Raises:
            DataError: the name leads out of the data.
        """
        plain = self.normal(name)
        if self.has(plain):
            return plain
        others = (str(PurePosixPath(plain).with_suffix(suffix)) for suffix in (".jpg", ".jpeg", ".png", ".webp"))
        return next((other for other in others if self.has(other)), None)

    def normal(self, name: str) -> str:
        """The name relative to the data, without detours; DataError where it leads out of it."""
        plain = name.replace("\\", "/")
        inner: list[str] = []
        leaves = "\0" in plain
        if Path(plain).is_absolute():
            home = self.place.absolute().as_posix().rstrip("/") + "/"  # the root is one itself
            leaves, plain = leaves or not plain.startswith(home), plain.removeprefix(home)
        for part in plain.split("/"):
            if part == "..":
                leaves = leaves or not inner
                inner = inner[:-1]
            elif part not in ("", "."):
                inner.append(part)
        if leaves or not inner:
            raise DataError(f"{name!r} is not inside {self.place}")
        return "/".join(inner)


class FolderSource(Source):
    """The files of a folder; links inside it are followed."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def names(self) -> list[str]:
        """All files, sorted; hidden ones are left out."""
        found: list[str] = []
        seen: set[str] = set()  # a link may lead to a folder above it
        for folder, inner, files in os.walk(self.place, followlinks=True):
            real = os.path.realpath(folder)
            inner[:] = [] if real in seen else [name for name in inner if not _is_junk(name)]
            if real not in seen:
                found += [(Path(folder) / name).relative_to(self.place).as_posix() for name in files]
            seen.add(real)
        return sorted(name for name in found if not _is_junk(name))

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        try:
            return (self.place / name).is_file()
        except OSError:  # the name is longer than any file's
            return False

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        try:
            with (self.place / name).open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DataError("it is no plain file")
                _check_size(status.st_size)
                return file.read()
        except OSError as error:
            raise DataError(error.strerror or str(error)) from error

    def stamps(self, names: Sequence[str]) -> list[Stamp]:
        """Size and checksum of each file; files that have not changed are not read again."""
        return stamp_files(self.place, names)


class ZipSource(Source):
    """The files of one or several zip archives, stored or deflated, as if they were one folder.

    Args:
        archives: the zip files; no two may hold the same name.
        prefix: folder inside the archives that names are relative to.
    """

    def __init__(self, archives: Sequence[Path], *, prefix: str = "") -> None:
        self.place = archives[0] if len(archives) == 1 else archives[0].parent
        self._lock = threading.Lock()
        self._files: dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]] = {}
        for archive in archives:
            try:
                if archive.exists() and not archive.is_file():
                    raise ValueError("it is no plain file")
                opened = zipfile.ZipFile(archive)  # its own __del__ closes it
            except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
                remedy = "get the file again" if archive.suffix.lower() == ".zip" else "expected a folder or a zip"
                raise DataError(f"{archive} cannot be read as a zip archive: {error}; {remedy}") from error
            for info in opened.infolist():
                if info.is_dir() or _is_junk(info.filename) or not info.filename.startswith(prefix):
                    continue
                name = info.filename.removeprefix(prefix)
                if name in self._files:
                    raise DataError(
                        f"{name!r} is twice in {self.place}: in {self._files[name][0].filename} and {archive}; keep one"
                    )
                self._files[name] = opened, info

    def names(self) -> list[str]:
        """All files, sorted; those that archivers add are left out."""
        return sorted(self._files)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name in self._files

    def read(self, name: str) -> bytes:
        """The bytes of a file, checked against the archive's checksum."""
        if name not in self._files:
            raise DataError(f"{self.place} has no {name!r}")
        archive, info = self._files[name]
        _check_size(info.file_size)  # what is read never exceeds what the archive states
        try:
            with self._lock:  # zipfile counts its readers without one
                return archive.read(info)
        except Exception as error:  # damaged archives make the unpackers of Python stumble in many ways
            raise DataError(str(error) or type(error).__name__) from error

    def stamps(self, names: Sequence[str]) -> list[Stamp]:
        """Size and checksum of each file, as the archives state them."""
        return [Stamp(self._files[name][1].file_size, self._files[name][1].CRC) for name in names]


def open_source(place: Path) -> Source:
    """The files at `place`: a zip archive, a folder with `images*.zip` in it, or a folder of files."""
    if place.is_dir():
        archives = sorted(place.glob("images*.zip"))
        return ZipSource(archives) if archives else FolderSource(place)
    return ZipSource([place])


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def passed_over(names: Iterable[str]) -> str | None:
    """How many files are images of formats that are not read, in a sentence; None where there is none."""
    endings = [PurePosixPath(name).suffix.lower() for name in names if name.lower().endswith(UNREAD_SUFFIXES)]
    if not endings:
        return None
    files, kinds = number_of(len(endings), "file"), ", ".join(sorted(set(endings)))
    why = f"since images that end in {kinds} are not read: save such files as .jpg or .png"
    return f"{files} {are(len(endings))} passed over, {why}"


def _is_junk(name: str) -> bool:
    parts = name.split("/")
    return parts[-1].startswith(".") or "__MACOSX" in parts


def _check_size(size: int) -> None:
    if size > LARGEST_FILE:
        raise DataError(f"it has {size:,} bytes, more than the {LARGEST_FILE:,} that an image may have")
