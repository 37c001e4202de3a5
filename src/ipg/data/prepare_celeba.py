"""CelebA unpacked from the archives a person downloaded, from its authors or from Kaggle, into the official layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from ipg.data.celeba import parse_list
from ipg.data.errors import DataError, ProblemsError
from ipg.data.parallel import Progress, carry_out
from ipg.data.sources import FolderSource, Source, ZipSource
from ipg.files import replacing

__all__ = ["LISTS", "prepare"]

LISTS = ("list_attr_celeba", "list_eval_partition")
FOLDER = "img_align_celeba"
_IMAGE = re.compile(rf"(?:.*/)?{FOLDER}/([0-9]+\.(?:jpg|png|webp))")
_NEEDED = f"{FOLDER}.zip, {LISTS[0]}.txt and {LISTS[1]}.txt (or .csv), or Kaggle's archive that holds all three"


def prepare(archives: str | PathLike[str], output: str | PathLike[str], *, progress: Progress | None = None) -> Path:
    """Unpack CelebA; an interrupted call goes on where it stopped.

    Args:
        archives: the folder with what was downloaded: zips, and the lists plain or in a zip.
        output: the folder to make: `img_align_celeba/` and, when all images are there, the two lists.
        progress: told of every image.

    Raises:
        DataError: something is missing or damaged; all is named.
    """
    home, target = Path(archives).expanduser(), Path(output).expanduser()
    if not home.is_dir():
        raise DataError(f"there is no folder {home}; expected one with {_NEEDED}")
    zips = [ZipSource([path]) for path in sorted(home.glob("**/*.zip"))]
    lists = [_find_list([FolderSource(home), *zips], stem, home) for stem in LISTS]
    images = {found[1]: (zip_, name) for zip_ in zips for name in zip_.names() if (found := _IMAGE.fullmatch(name))}
    if not images:
        already = "; its images are unpacked already: use it as it is" if list(home.glob(f"**/{FOLDER}")) else ""
        raise DataError(f"{home} has no zip with images of CelebA{already or f'; expected {_NEEDED}'}")
    for name, data in lists:
        listed = parse_list(data, name)
        listed.require("image_id")
        if problems := [f"{image} of {name} is in no archive" for image in listed["image_id"] if image not in images]:
            raise ProblemsError(problems)

    def unpack(name: str) -> str | None:
        """Write an image, unless it is there already; returns what is wrong with it."""
        source, inner = images[name]
        path = target / FOLDER / name
        if path.is_file() and path.stat().st_size == source.stamps([inner])[0].size:
            return None
        try:
            data = source.read(inner)
        except DataError as error:
            return f"{name} cannot be read from {source.place}: {error}"
        with replacing(path) as temporary:
            temporary.write_bytes(data)
        return None

    carry_out(unpack, images, progress)
    for name, data in lists:
        with replacing(target / name) as temporary:
            temporary.write_bytes(data)
    return target


def _find_list(sources: Sequence[Source], stem: str, home: Path) -> tuple[str, bytes]:
    """The name and bytes of a list."""
    for source in sources:
        for name in source.names():
            if re.fullmatch(rf"(?:.*/)?{stem}\.(?:txt|csv)", name):
                return name.rpartition("/")[2], source.read(name)
    raise DataError(f"{home} has no {stem}.txt (nor .csv, nor a zip with it); expected {_NEEDED}")
