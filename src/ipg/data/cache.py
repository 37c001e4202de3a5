"""Images decoded once: one compact file of uint8 a data set and size, keyed by content, memory-mapped when used."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from ipg.data.decode import Fit, check_size, decode
from ipg.data.errors import DataError, ProblemsError
from ipg.data.locations import cache_folder
from ipg.data.parallel import in_order
from ipg.data.sources import Source
from ipg.data.stamps import Stamp
from ipg.files import leftovers, make_private, parse_json, replacing, write_json
from ipg.words import bytes_in_words, number_of

__all__ = ["CacheEntry", "UnreadableError", "cached_images", "clear_cache", "list_cache"]

VERSION = 1
"""Of what decoding makes of a file: raise it with every change, and old caches are left alone."""


class UnreadableError(ProblemsError):
    """Images that cannot be decoded: `reasons` has them by name."""

    def __init__(self, place: Path, reasons: dict[str, str]) -> None:
        self.reasons = reasons
        count, them = number_of(len(reasons), "image"), "it" if len(reasons) == 1 else "them"
        head = f"{place}: {count} cannot be read (`ipg data check` names all); replace or remove {them}"
        super().__init__([head, *(f"{name}: {reason}" for name, reason in reasons.items())])


@dataclass(frozen=True)
class CacheEntry:
    """One cached data set."""

    path: Path
    bytes: int
    facts: dict[str, object]
    """What it holds: `data`, `images`, `size`, `fit`, `date`; empty where the record is lost."""


def cached_images(
    source: Source,
    names: Sequence[str],
    *,
    size: int,
    fit: Fit,
    what: str,
    channels: int = 3,
    check: Callable[[], None] | None = None,
    against: Sequence[Stamp] = (),
) -> Tensor:
    """The named images, (N, 3, size, size) of uint8, memory-mapped from the cache, which is made where it is missing.

    Safe where several processes ask at once: one decodes, the others wait. The key is made of names, sizes and
    checksums of the files and of how they are decoded, so that changed files are decoded anew.

    Args:
        source: where the files are.
        names: of the files.
        size: the side of the images.
        fit: how they become square.
        what: they are called in messages.
        channels: how many are kept, from the first on; one for masks.
        check: called before they are decoded for the first time; what it raises is raised.
        against: stamps of the files that `check` compares them with: where those change it is called again.

    Raises:
        UnreadableError: some images cannot be decoded; all are named.
        DataError: the cache cannot be written.
    """
    check_size(size)
    if not names:
        raise DataError(f"{what} has no image")
    facts = {"version": VERSION, "size": size, "fit": fit} | ({} if channels == 3 else {"channels": channels})
    told = [facts, list(names), source.stamps(names), *([list(against)] if against else [])]
    key = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
    path = cache_folder() / "images" / f"{key}.u8"
    shape = (len(names), channels, size, size)
    try:
        if not _is_whole(path, shape):
            make_private(cache_folder())
            make_private(path.parent)
            with FileLock(path.with_suffix(".lock")):
                if not _is_whole(path, shape):
                    if check is not None:
                        check()
                    _build(path, source, names, size=size, fit=fit, what=what, channels=channels)
        if not path.with_suffix(".json").exists():  # also where who made the images was killed before
            about = {"data": what, "images": len(names), **facts, "date": time.strftime("%Y-%m-%d")}
            with suppress(OSError):  # a record for people alone
                write_json(path.with_suffix(".json"), about)
    except OSError as error:
        raise _unwritable(path, error, math.prod(shape)) from error
    return _map(path, shape)


def list_cache() -> list[CacheEntry]:
    """What is cached, the largest first."""
    found = []
    for path in (cache_folder() / "images").glob("*.u8"):
        try:
            facts = parse_json(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            facts = {}
        found.append(CacheEntry(path, path.stat().st_size, facts if isinstance(facts, dict) else {}))
    return sorted(found, key=lambda entry: -entry.bytes)


def clear_cache() -> int:
    """Delete what is cached, left-overs of killed processes too, except what is being made; returns the bytes freed.

    A run that has a file mapped keeps what it has.
    """
    freed = 0
    found = (path for kind in ("lock", "u8", "json") for path in (cache_folder() / "images").glob(f"*.{kind}"))
    for lock in {path.with_suffix(".lock") for path in found}:  # which some versions of filelock delete themselves
        try:
            with FileLock(lock, timeout=0):
                path = lock.with_suffix(".u8")
                freed += sum(map(_delete, [path, path.with_suffix(".json"), *leftovers(path)]))
        except Timeout:
            continue
    kinds = ("stamps/*.json", "attention/*.npy", "kernels/*.so")
    others = [path for kind in kinds for path in cache_folder().glob(kind)]
    return freed + sum(map(_delete, others))


def _delete(path: Path) -> int:
    size = path.stat().st_size if path.exists() else 0
    path.unlink(missing_ok=True)
    return size


def _is_whole(path: Path, shape: tuple[int, ...]) -> bool:
    return path.is_file() and path.stat().st_size == math.prod(shape)


def _build(path: Path, source: Source, names: Sequence[str], *, size: int, fit: Fit, what: str, channels: int) -> None:
    """Decode with all cores into a file that takes its name when it is whole."""
    for old in leftovers(path):  # of killed processes: whoever writes holds the lock
        old.unlink(missing_ok=True)
    wanted, free = len(names) * channels * size * size, shutil.disk_usage(path.parent).free
    if wanted > free:
        raise OSError(errno.ENOSPC, f"{bytes_in_words(free)} are free")
    with warnings.catch_warnings(), replacing(path) as temporary, temporary.open("wb") as file:
        warnings.filterwarnings("ignore", module="PIL")  # of metadata that is damaged, which does not matter
        reasons = _write(file, _decoded(source, names, size, fit, channels), names, what)
        if reasons:
            raise UnreadableError(source.place, reasons)


def _write(
    file: BinaryIO, images: Iterator[NDArray[np.uint8] | str], names: Sequence[str], what: str
) -> dict[str, str]:
    """Write the images one after the other, with a bar on a terminal; returns the reasons of the unreadable ones."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    shown = console.is_terminal or console.is_jupyter
    reasons: dict[str, str] = {}
    with Progress(console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(f"decoding {what}", total=len(names))
        for name, image in zip(names, images, strict=True):
            if isinstance(image, str):
                reasons[name] = image
            elif not reasons:
                file.write(image.data)
            bar.advance(task)
    return reasons


def _decoded(
    source: Source, names: Sequence[str], size: int, fit: Fit, channels: int
) -> Iterator[NDArray[np.uint8] | str]:
    """The images in order, or why they cannot be read."""

    def one(name: str) -> NDArray[np.uint8] | str:
        try:
            return decode(source.read(name), size=size, fit=fit)[:channels]
        except DataError as error:
            return str(error)

    return in_order(one, names)


def _map(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The file as a tensor that is read when it is used; writing to it changes the process' own copy alone."""
    try:
        return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c", shape=shape))
    except OSError as error:  # more than the memory: what could be written has to fit there, what is only read has not
        if error.errno != errno.ENOMEM:
            raise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the tensor must not be written to
        return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="r", shape=shape))


def _unwritable(path: Path, error: OSError, wanted: int) -> DataError:
    place = path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"the decoded images need {bytes_in_words(wanted)} in {place}, which is too full ({error.strerror}); free "
            f"some space (`ipg data cache --clear`), set IPG_CACHE to another folder, or ask for a smaller --size"
        )
    if error.errno == errno.EFBIG:
        return DataError(
            f"the decoded images need a file of {wanted:,} bytes in {place}, which is more than the limit on files "
            f"allows ({error.strerror}); raise it (ulimit -f), or ask for a smaller --size"
        )
    return DataError(
        f"the decoded images cannot be kept in {place} ({error.strerror or error}); set IPG_CACHE to a folder that you "
        f"may write to"
    )
