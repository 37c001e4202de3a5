"""What grows: tables, folders, pairs and studies of any size, made from a seed, and the command that reads each."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["KINDS", "Kind"]

SPLITS = ("train", "train", "validation", "test")
PICTURES = 4000
"""Images where their number is not what grows."""
TRAIN = ("train", "--size", "8", "--model", "small_cnn", "--epochs", "1", "--steps", "20", "--batch", "64", "--device",
         "cpu", "--pairs", "pairs.csv", "--held-out-pairs", "64", "--output", "run")  # fmt: skip
STUDY = """\
dataset = "colored_fashion"
seeds = {seeds}
[base]
epochs = 1
pairs = 40
"""
ARM = '[[arm]]\nmethod = "ipg"\nprotocol = "tuned"\nconfig = {{ alpha = 0.{number:02} }}\n'
ARMS = 10


@dataclass(frozen=True)
class Kind:
    """Something that may be large."""

    title: str
    sizes: tuple[int, int, int]
    make: Callable[[Path, int, int], None]
    """Makes it in a folder, of a size, from a seed."""
    line: Sequence[str]
    """The command that reads it."""
    seconds: float | None = None
    """The aim at the largest size."""
    memory: int | None = None
    """The aim at the largest size, in bytes resident."""


def _pictures(count: int, side: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """Images that all differ: coarse blocks of any brightness, and some noise."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        blocks = draw.normal(draw.uniform(70, 190), 45, (4, 4, 3)).repeat(side // 4, axis=0).repeat(side // 4, axis=1)
        yield (blocks + draw.normal(0, 6, blocks.shape)).clip(0, 255).astype(np.uint8)


def _table(folder: Path, count: int, seed: int, classes: int = 2) -> None:
    """A zip of images of 8 x 8 and a table with a row for each."""
    with (folder / "table.csv").open("w", encoding="utf-8", newline="") as table:
        out = csv.writer(table)
        out.writerow(["path", "label", "attribute", "split"])
        with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
            for number, picture in enumerate(_pictures(count, 8, seed)):
                name = f"{number % 1000:03}/{number:07}.ppm"
                archive.writestr(name, b"P6 8 8 255\n" + picture.tobytes())
                place = number // classes
                out.writerow([name, f"c{number % classes:04}", ("sea", "land")[place % 2], SPLITS[place // 2 % 4]])


def _classes(folder: Path, count: int, seed: int) -> None:
    """As many classes over the same images, four or more of each, and a few pairs."""
    _table(folder, PICTURES * 2, seed, classes=count)
    _pairs_table(folder, 256, seed, [f"c{number % count:04}" for number in range(256)])


def _folder(folder: Path, count: int, seed: int) -> None:
    """PNG files of 16 x 16 in a folder for each of ten classes."""
    for number, picture in enumerate(_pictures(count, 16, seed)):
        place = folder / "pictures" / f"class {number % 10}" / f"{number:06}.png"
        if number < 10:
            place.parent.mkdir(parents=True)
        Image.fromarray(picture).save(place, compress_level=1)


def _pairs(folder: Path, count: int, seed: int) -> None:
    """Pairs of files beside a table of images that stays as large as it is."""
    _table(folder, PICTURES, seed)
    _pairs_table(folder, count, seed, ["c0000", "c0001"] * (count // 2))


def _pairs_table(folder: Path, count: int, seed: int, labels: Sequence[str]) -> None:
    (folder / "pairs").mkdir()
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as table:
        out = csv.writer(table)
        out.writerow(["first", "second", "label", "split"])
        for number, picture in enumerate(_pictures(count, 8, seed + 1)):
            members = [f"pairs/{number:05}-{which}.png" for which in (0, 1)]
            for member, image in zip(members, (picture, picture[..., ::-1]), strict=True):
                Image.fromarray(np.ascontiguousarray(image)).save(folder / member, compress_level=1)
            out.writerow([*members, labels[number], ("train", "train", "train", "validation")[number // 2 % 4]])


def _study(folder: Path, count: int, seed: int) -> None:
    """A study of which every second trial is done, each with a row as a trial writes it."""
    _trials(folder, count, seed, every=2)


def _report(folder: Path, count: int, seed: int) -> None:
    """A study of which all trials are done."""
    _trials(folder, count, seed, every=1)


def _trials(folder: Path, count: int, seed: int, *, every: int) -> None:
    from ipg.experiments.study import load_study

    arms = "".join(ARM.format(number=number) for number in range(1, ARMS + 1))
    (folder / "study.toml").write_text(STUDY.format(seeds=count // ARMS) + arms, encoding="utf-8")
    (folder / "results").mkdir()
    draw = np.random.default_rng(seed)
    with (folder / "results" / "trials.jsonl").open("w", encoding="utf-8") as out:
        for trial in load_study(folder / "study.toml").trials[::every]:
            out.write(json.dumps({**trial.identity, "config": trial.config.flat(), **_outcome(draw)}) + "\n")


def _outcome(draw: np.random.Generator) -> dict[str, Any]:
    """What a trial found, as large as it is in truth."""
    right = draw.uniform(0.5, 1, 4)
    names = [f"{label}, {colour}" for label in ("garment", "footwear or bag") for colour in ("red", "green")]
    groups = {name: {"accuracy": share, "count": 1500} for name, share in zip(names, right, strict=True)}
    metrics = {"average": right.mean(), "group_mean": right.mean(), "worst_group": right.min(), "groups": groups}
    metrics["pair_disagreement"] = draw.uniform()
    return {
        "selection": "last", "split": "test", "selected_epoch": 1, "metrics": metrics, "last_metrics": metrics,
        "predictions": "A" * 1000, "seconds": 12.5, "hardware": "made up",
        "versions": {"ipg": "0", "python": "3", "torch": "2"}, "commit": "0" * 40, "date": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip


GIB = 1 << 30
CHECK = ("data", "check")
TABLE = ("--data", "table.csv", "--data-path", "pictures.zip")
KINDS: dict[str, Kind] = {
    "manifest": Kind(
        "rows of a table",
        (10_000, 100_000, 1_000_000),
        _table,
        (*CHECK, "table.csv", "--data-path", "pictures.zip", "--size", "8"),
    ),
    "folder": Kind(
        "images in a folder",
        (1000, 10_000, 100_000),
        _folder,
        (*CHECK, "pictures", "--size", "16"),
        memory=GIB,
    ),
    "audit": Kind(
        "pairs audited",
        (100, 1000, 10_000),
        _pairs,
        ("pairs", "audit", "pairs.csv", *TABLE, "--dry-run"),
        memory=2 * GIB,
    ),
    "pairs": Kind("pairs trained on", (100, 1000, 10_000), _pairs, (*TRAIN, *TABLE)),
    "classes": Kind("classes trained on", (10, 100, 1000), _classes, (*TRAIN, *TABLE)),
    "study": Kind(
        "trials of a study, listed",
        (50, 500, 5000),
        _study,
        ("study", "study.toml", "--results", "results", "--list"),
        seconds=2.0,
    ),
    "report": Kind(
        "trials of a report",
        (50, 100, 500),
        _report,
        ("table", "study.toml", "--results", "results", "--format", "html", "--output", "table.html"),
    ),
}
"""All of them, by name."""
