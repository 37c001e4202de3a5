"""Waterbirds: photographs of birds cut out and laid on land or water, which mostly agrees with the kind of bird.

Sagawa et al., "Distributionally Robust Neural Networks", ICLR 2020 (birds of CUB-200-2011 on backgrounds of Places; in
training 95 % stand where they belong), and Petryk et al., "On Guiding Visual Attention with Language Specification",
CVPR 2022 (the -100 release, in which all do, and the reverse task: tell the place, whatever the bird).

The official layout is read: `metadata.csv` (`img_filename,y,split,place`) with the images in folders beside it, or in
`images*.zip` beside it, or all in one zip. JPEG, WebP or PNG, whatever suffix `metadata.csv` gives. `split` is 0, 1, 2
for train, validation, test; `y` and `place` are 0 for land and 1 for water.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path, PurePosixPath

import torch

from ipg.data.columns import Columns, parse_csv, read_columns
from ipg.data.decode import Fit
from ipg.data.errors import DataError, gathered
from ipg.data.listing import Listing, RowsError, look_for_files, without_fault
from ipg.data.locations import locate
from ipg.data.sources import Source, ZipSource, open_source

__all__ = ["RELEASES", "read"]

BIRDS = ("landbird", "waterbird")
PLACES = ("on land", "on water")
RELEASES: dict[str, tuple[float | None, Fit, tuple[str, ...]]] = {
    "waterbirds100": (1.0, "squeeze", ("waterbird_1.0_forest2water2", "waterbird_complete100_forest2water2")),
    "waterbirds95": (0.95, "zoom", ("waterbird_complete95_forest2water2",)),
    "waterbirds": (None, "squeeze", ()),
}
"""The share of training birds that stand where they belong, how images become square, and names of the folder."""
_REMEDY = (
    "get the release from its authors, or build it from CUB and Places with `ipg data prepare waterbirds` "
    "(docs/data.md says how)"
)


def read(release: str, path: str | PathLike[str] | None = None, *, reverse: bool = False) -> Listing:
    """Read a release of Waterbirds.

    Args:
        release: of `RELEASES`; `waterbirds` takes any correlation of bird and place.
        path: its folder, or the zip of it. Default: the folder of that name in `IPG_DATA`.
        reverse: the label is the place and the attribute the bird.

    Returns:
        `content` is the species of the bird, for the reverse task the place.

    Raises:
        DataError: it is missing, incomplete or another release; all that is wrong is said at once.
    """
    strength, fit, folders = RELEASES[release]
    columns, source = _open(locate(release, path, _REMEDY), folders)
    columns.require("img_filename", "y", "split", "place")
    problems: list[str] = []
    bird, place = (torch.tensor(columns.numbers(name, {"0": 0, "1": 1}, problems)) for name in ("y", "place"))
    split = torch.tensor(columns.numbers("split", {"0": 0, "1": 1, "2": 2}, problems))
    there, missing = look_for_files(source, columns["img_filename"], columns.where)
    problems += missing
    counted = (split == 0) & (bird >= 0) & (place >= 0)
    with gathered(problems):
        _check_strength(release, strength, float((bird == place)[counted].double().mean()), columns.what)
    usable = without_fault(there, bird, place, split)

    def rest() -> Listing:
        """The images with which nothing is wrong."""
        files, rows = tuple(usable), list(usable.values())
        species = [PurePosixPath(file).parent.name for file in files]
        numbers = {name: number for number, name in enumerate(sorted(set(species)))}
        return Listing(
            name=f"{release}_reverse" if reverse else release,
            source=source,
            files=files,
            label=(place if reverse else bird)[rows],
            attribute=(bird if reverse else place)[rows],
            split=split[rows],
            content=place[rows] if reverse else torch.tensor([numbers[name] for name in species]),
            classes=PLACES if reverse else BIRDS,
            attributes=BIRDS if reverse else PLACES,
            size=224,
            fit=fit,
        ).by_split()

    if problems:
        raise RowsError(problems, rest if usable else None)
    return rest()


def _open(place: Path, folders: tuple[str, ...]) -> tuple[Columns, Source]:
    """The metadata and the images at `place`, or in an official folder below it."""
    if not place.is_dir():
        names = [name for name in ZipSource([place]).names() if PurePosixPath(name).name == "metadata.csv"]
        if not names:
            raise DataError(f"{place} has no metadata.csv in it: it is no release of Waterbirds; {_REMEDY}")
        name = min(names, key=len)
        source = ZipSource([place], prefix=name.removesuffix("metadata.csv"))
        return parse_csv(source.read("metadata.csv"), f"{place}/{name}"), source
    for home in (place, *(place / folder for folder in folders)):
        if (home / "metadata.csv").is_file():
            return read_columns(home / "metadata.csv"), open_source(home)
    raise DataError(f"{place} has no metadata.csv: it is no release of Waterbirds; {_REMEDY}")


def _check_strength(release: str, expected: float | None, found: float, what: str) -> None:
    """A figure must not be given for another release than it was measured on."""
    if not found >= 0:
        raise DataError(f"{what} has no training image (split 0); it has to have some")
    if expected is not None and abs(found - expected) > (0.0 if expected == 1 else 0.02):
        fitting = "waterbirds100" if found == 1 else "waterbirds95" if abs(found - 0.95) <= 0.02 else "waterbirds"
        raise DataError(
            f"{what} is not {release}: {found:.1%} of its training birds stand where they belong, expected "
            f"{expected:.0%}; load it as {fitting}"
        )
