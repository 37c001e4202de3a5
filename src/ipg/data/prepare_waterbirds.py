"""Waterbirds made from CUB-200-2011 and Places, with any correlation of bird and place.

Sagawa et al., "Distributionally Robust Neural Networks", ICLR 2020. Birds are cut out along CUB's segmentations and
laid on backgrounds of Places, each on one of its own:

    composite = round(bird * mask) + round(background * (1 - mask))

- A waterbird is a species whose name contains one of `WATERBIRDS`. Three land species do ("tern" is in Eastern Towhee,
  Western Meadowlark and Western Wood Pewee), an error that the released data has and so this has.
- Land is bamboo forest and broadleaf forest, water ocean and lake.
- CUB's test birds are the test split; a fifth of the others, drawn, are the validation split.
- On water stand 1 - s of the landbirds and s of the waterbirds in training, half of either elsewhere.

Differs from the paper: everything is drawn from one seed, so that releases of two strengths share their splits; JPEGs
are saved in quality 95; the masks are written beside them, to build pairs with.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from os import PathLike
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ipg.data.errors import DataError, ProblemsError
from ipg.data.parallel import Progress, carry_out
from ipg.files import parse_json, replacing, write_json, write_text
from ipg.seeds import derive_seed

__all__ = ["CATEGORIES", "WATERBIRDS", "Bird", "composite", "draw", "prepare"]

WATERBIRDS = (
    "albatross", "auklet", "cormorant", "frigatebird", "fulmar", "gull", "jaeger", "kittiwake", "pelican", "puffin",
    "tern", "gadwall", "grebe", "mallard", "merganser", "guillemot", "pacific_loon",
)  # fmt: skip
CATEGORIES = (("bamboo_forest", "forest/broadleaf"), ("ocean", "lake/natural"))
"""Of Places: those of land and those of water."""
VALIDATION = 0.2
QUALITY = 95
RECORD = "prepared.json"
"""What a folder was made with, so that an interrupted command goes on with the same."""


@dataclass(frozen=True)
class Bird:
    """A row of `metadata.csv`."""

    number: int
    file: str
    y: int
    split: int
    place: int
    background: str
    """As the official metadata has it, `/o/ocean/00000344.jpg`."""


def prepare(
    cub: str | PathLike[str],
    places: str | PathLike[str],
    output: str | PathLike[str],
    *,
    correlation: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Make a release of Waterbirds in the official layout; an interrupted call goes on where it stopped.

    Args:
        cub: the folder CUB_200_2011, with `images.txt`, `train_test_split.txt`, `images/` and, in it or beside it,
            `segmentations/`.
        places: the folder of Places365, with `b/bamboo_forest` and so on, or `bamboo_forest`, `forest-broadleaf`, ….
        output: the folder to make; `metadata.csv` comes last, so that all is there when it is.
        correlation: the share of training birds that stand where they belong, from 0 to 1.
        seed: of validation birds, places and backgrounds.
        progress: told of every image.

    Raises:
        ValueError: the correlation is out of range.
        DataError: files are missing or cannot be read; all are named.
    """
    if not 0 <= correlation <= 1:
        raise ValueError(f"correlation={correlation} is out of range: expected a share from 0 to 1")
    home, target = Path(cub).expanduser(), Path(output).expanduser()
    masks = _masks(home)
    scenery = _backgrounds(Path(places).expanduser())
    birds = draw(_birds(home), [list(kind) for kind in scenery], correlation=correlation, seed=seed)
    where = {**scenery[0], **scenery[1]}
    if problems := [
        f"there is no {path}; get CUB again"
        for bird in birds
        for path in (home / "images" / bird.file, masks / _png(bird.file))
        if not path.is_file()
    ]:
        raise ProblemsError(problems)
    plan = hashlib.sha256(json.dumps([astuple(bird) for bird in birds]).encode()).hexdigest()[:16]
    _begin(target, {"data": "waterbirds", "correlation": correlation, "seed": seed, "plan": plan})

    def make(bird: Bird) -> str | None:
        """Write the image of a bird and its mask; what is there is left alone."""
        picture, mask = target / bird.file, target / "masks" / _png(bird.file)
        if picture.exists() and mask.exists():
            return None
        try:
            image, shape = composite(home / "images" / bird.file, masks / _png(bird.file), where[bird.background])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return f"{bird.file} cannot be laid on {bird.background}: {error}"
        _save(mask, shape, "PNG")
        _save(picture, image, "JPEG")
        return None

    carry_out(make, birds, progress)
    lines = [f"{b.number},{b.file},{b.y},{b.split},{b.place},{b.background}" for b in birds]
    write_text(target / "metadata.csv", "\n".join(["img_id,img_filename,y,split,place,place_filename", *lines, ""]))
    return target


def draw(
    birds: Sequence[tuple[int, str, bool]], backgrounds: Sequence[Sequence[str]], *, correlation: float, seed: int
) -> list[Bird]:
    """Draw who is in validation, who stands on water and on which background.

    Args:
        birds: number, file and whether it is a training bird, as CUB lists them.
        backgrounds: the names of those of land and those of water.
        correlation: see `prepare`.
        seed: see `prepare`.
    """
    y = np.array([_is_waterbird(file) for _, file, _ in birds], dtype=int)
    split = np.where([train for *_, train in birds], 0, 2)
    train = np.flatnonzero(split == 0)
    split[_shuffled(train, seed, "validation")[: round(VALIDATION * len(train))]] = 1
    place = np.zeros_like(y)
    for number in (0, 1, 2):
        for kind in (0, 1):
            share = 0.5 if number else correlation if kind else 1 - correlation
            rows = _shuffled(np.flatnonzero((split == number) & (y == kind)), seed, f"place {number} {kind}")
            place[rows[: round(share * len(rows))]] = 1
    chosen = np.empty(len(birds), dtype=object)
    for kind, names in enumerate(backgrounds):
        rows = np.flatnonzero(place == kind)
        if len(names) < len(rows):
            raise DataError(
                f"{len(rows):,} birds stand on {('land', 'water')[kind]}, each on a background of its own, but Places "
                f"has {len(names):,} in {' and '.join(CATEGORIES[kind])}; get all of these categories"
            )
        order = _shuffled(np.arange(len(names)), seed, f"background {kind}")
        chosen[rows] = [names[number] for number in order[: len(rows)]]
    return [
        Bird(number, file, int(y[row]), int(split[row]), int(place[row]), str(chosen[row]))
        for row, (number, file, _) in enumerate(birds)
    ]


def composite(bird: Path, mask: Path, background: Path) -> tuple[Image.Image, Image.Image]:
    """The bird on the background, which is cropped in its middle and resized to fit, and the mask in grey."""
    with Image.open(bird) as opened:
        front = opened.convert("RGB")
    with Image.open(mask) as opened:
        shape = opened.convert("L")
    if shape.size != front.size:
        raise ValueError(f"the mask has {shape.size} pixels, the bird {front.size}")
    with Image.open(background) as opened:
        back = opened.convert("RGB")
    share = min(back.width / front.width, back.height / front.height)
    left, top = (back.width - share * front.width) / 2, (back.height - share * front.height) / 2
    box = (left, top, back.width - left, back.height - top)
    behind = np.asarray(back.resize(front.size, Image.Resampling.LANCZOS, box=box), dtype=np.float64)
    weight = np.asarray(shape, dtype=np.float64)[:, :, None] / 255  # (H, W, 1)
    mixed = np.round(np.asarray(front) * weight) + np.round(behind * (1 - weight))
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8)), shape


def _birds(cub: Path) -> list[tuple[int, str, bool]]:
    """Number, file and whether it is a training bird, as CUB lists them."""
    files, parts = (_pairs(cub / name) for name in ("images.txt", "train_test_split.txt"))
    if missing := [number for number in files if parts.get(number) not in ("0", "1")]:
        raise DataError(f"{cub / 'train_test_split.txt'} does not say 0 or 1 of image {missing[0]}; get CUB again")
    return [(int(number), file, parts[number] == "1") for number, file in files.items()]


def _pairs(path: Path) -> dict[str, str]:
    try:
        rows = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        pairs = {number: value.strip() for number, value in rows}
    except FileNotFoundError:
        raise DataError(f"there is no {path}; expected the folder CUB_200_2011") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if any(not number.isdecimal() or ".." in value for number, value in pairs.items()):
        raise DataError(f"{path} is not of CUB: expected a number and a value a line")
    return pairs


def _masks(cub: Path) -> Path:
    for place in (cub / "segmentations", cub.parent / "segmentations"):
        if place.is_dir():
            return place
    raise DataError(
        f"there is no folder segmentations in {cub} or beside it; CUB gives them as an archive of their own "
        f"(segmentations.tgz)"
    )


def _backgrounds(places: Path) -> list[dict[str, Path]]:
    """The backgrounds of land and of water: their official names, and where they are."""
    found = []
    for categories in CATEGORIES:
        files: dict[str, Path] = {}
        for category in categories:
            flat = category.replace("/", "-")
            folders = [places / inner for inner in (f"{category[0]}/{category}", category, flat, f"train/{flat}")]
            folder = next((folder for folder in folders if folder.is_dir()), None)
            if folder is None:
                raise DataError(f"there is no {folders[0]} (nor {flat}); expected the folder of Places365's images")
            images = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
            files |= {f"/{category[0]}/{category}/{path.name}": path for path in images}
        found.append(files)
    return found


def _begin(target: Path, record: Mapping[str, object]) -> None:
    """Make the folder, or see that it is the one of an interrupted call with the same settings."""
    there = target / RECORD
    if there.is_file():
        try:
            same = parse_json(there.read_text(encoding="utf-8")) == record
        except ValueError:
            same = False
        if not same:
            raise DataError(f"{target} holds data that was made with other settings or files; name another folder")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} is there already and not empty; name another folder with --output")
    else:
        write_json(there, record)


def _is_waterbird(file: str) -> bool:
    species = PurePosixPath(file).parts[0].partition(".")[2].lower()
    return any(name in species for name in WATERBIRDS)


def _shuffled(rows: NDArray[np.int64], seed: int, purpose: str) -> NDArray[np.int64]:
    return np.random.default_rng(derive_seed(seed, "waterbirds", purpose)).permutation(rows)


def _png(file: str) -> PurePosixPath:
    return PurePosixPath(file).with_suffix(".png")


def _save(path: Path, image: Image.Image, kind: str) -> None:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": QUALITY} if kind == "JPEG" else {}))
    with replacing(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
