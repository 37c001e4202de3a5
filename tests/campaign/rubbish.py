"""Rubbish in: a valid file is spoilt, and a command that reads it has to end as promised."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import pyarrow
from campaign import world
from campaign.forked import MEMORY, OUT_OF_MEMORY, SECONDS, Ending, command, preload
from campaign.mutate import spoil_bytes, spoil_json, spoil_jsonl, spoil_text
from campaign.odd_files import odd_safetensors, odd_zip
from campaign.odd_images import odd_image
from pyarrow import parquet

from ipg.config import RunConfig

PROMISE = (
    "Whatever is wrong with a file that a command reads, the command ends within 30 seconds and uses at most 2 GiB of"
    " memory. Either it succeeds, or it exits with status 2 and at most five lines that name the file or the setting "
    "in it. There is no traceback and no hang, and nothing is left behind that a later command would trust."
)
MEANS = (
    "There is a valid example of every kind of file that is read: configurations, studies, tables of images and of "
    "pairs (as CSV and as Parquet), images, zips, weights, checkpoints, records of runs, result rows, arrays and the "
    "embedded data. Each case damages the bytes, words or values of one of them, or replaces it by a file that is "
    "made to mislead. Then a process of its own runs a command that reads it. One case in 250 starts the command as a"
    " user would."
)
LIMITS = (
    "Input that is odd but valid is not refused; training from useless weights, for example, ends by naming the "
    "iteration at which it diverged. A long training run that you ask for takes long, and large valid data take the "
    "memory they need."
)
CASES = 10_000

REAL = 250
"""One in so many cases is a program of its own, as a user starts it."""
LINES = 5
SHORT = ("--epochs", "1", "--steps", "2", "--batch", "8", "--size", "16", "--model", "small_cnn", "--device", "cpu",
         "--pair-batch", "4", "--held-out-pairs", "4")  # fmt: skip
SCALARS = (0, -1, 2**40, 0.5, True, b"\xff", "", "\0", "../x", datetime(2026, 1, 1))
"""What a column of a table may hold in the place of text."""
TRAIN = ("train", *SHORT, "--output", "out")
"""Whatever a file says, no more than two iterations."""


Names = tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A kind of file: how it is spoilt, and who reads it."""

    spoil: Callable[[Random, Path], Names]
    """Spoils something in a folder; returns what a message may call it."""
    lines: Sequence[Sequence[str]]


def _as(name: str, *ways: Callable[[Random, bytes], bytes]) -> Callable[[Random, Path], Names]:
    """Spoils the file `name` in one of several ways; of settings a message may name the key alone."""
    keys = tuple(RunConfig.__dataclass_fields__) if name == "run.toml" else ()

    def spoil(draw: Random, folder: Path) -> Names:
        path = folder / name
        path.write_bytes(draw.choice(ways)(draw, path.read_bytes()))
        return (path.name, path.parent.name, *keys)

    return spoil


def _text(draw: Random, data: bytes) -> bytes:
    return spoil_text(draw, data.decode()).encode("utf-8", "replace")


def _json(draw: Random, data: bytes) -> bytes:
    return json.dumps(spoil_json(draw, json.loads(data))).encode()


def _rows(draw: Random, data: bytes) -> bytes:
    return spoil_jsonl(draw, data.decode()).encode("utf-8", "replace")


def _cells(draw: Random, data: bytes) -> bytes:
    """A Parquet whose columns are others, or hold something else."""
    columns = parquet.read_table(io.BytesIO(data)).to_pydict()
    name = draw.choice(list(columns))
    values = columns.pop(name)
    row = draw.randrange(len(values))
    match draw.randrange(6):
        case 0:
            columns[spoil_text(draw, name)] = values
        case 1:
            values = [spoil_text(draw, str(cell)) if place == row else str(cell) for place, cell in enumerate(values)]
        case 2:
            values[row] = None
        case 3:
            values = [draw.choice(SCALARS)] * len(values)
        case 4:
            values = [[value] for value in values]
    if name not in columns and draw.random() < 0.9:
        columns[name] = values
    made = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), made)
    return made.getvalue()


def _images(draw: Random, folder: Path) -> Names:
    """One to three images of the data."""
    chosen = draw.sample(sorted((folder / "photos").rglob("*.png")), draw.choice((1, 1, 3)))
    names = ["photos.csv", *(path.name for path in chosen)]
    for path in chosen:
        path.write_bytes(odd_image(draw, path.read_bytes()))
        if draw.random() < 0.1:
            names.append(path.rename(path.with_suffix(draw.choice((".jpg", ".gif", ".txt", ".png.zip")))).name)
    return tuple(names)


def _any_of(*names: str, way: Callable[[Random, bytes], bytes]) -> Callable[[Random, Path], Names]:
    """Spoils one of several files, by its bytes or in its own way."""
    return lambda draw, folder: _as(draw.choice(names), way, spoil_bytes)(draw, folder)


def _embedded(draw: Random, folder: Path) -> Names:
    """The data that comes with the program, in a copy of it."""
    import ipg.data

    for name in ("fashion_mnist_20k.json", "fashion_mnist_20k.png"):
        shutil.copy(Path(ipg.data.__file__).with_name(name), folder / name)
    return _any_of("fashion_mnist_20k.json", "fashion_mnist_20k.png", way=spoil_bytes)(draw, folder)


CHECK, PREDICT = ("data", "check"), ("predict", "run")
READ_RUN = (
    ("report", "run", "--output", "out.html"),
    ("evaluate", "run"),
    ("doctor", "run"),
    (*PREDICT, "photos", "--output", "out.csv"),
    ("train", "--config", "run.toml", "--output", "run"),
)


def _read_table(kind: str) -> list[Sequence[str]]:
    """Commands that read a table of images."""
    return [
        (*CHECK, f"photos.{kind}", "--size", "16"),
        (*TRAIN, "--data", f"photos.{kind}", "--pairs", f"pairs.{kind}"),
        (*PREDICT, f"photos.{kind}", "--output", "out.csv"),
    ]


def _read_pairs(kind: str) -> list[Sequence[str]]:
    """Commands that read a table of pairs."""
    return [
        ("pairs", "show", f"pairs.{kind}", "--output", "out.html"),
        ("pairs", "audit", f"pairs.{kind}", "--data", f"photos.{kind}", "--dry-run"),
        (*TRAIN, "--data", f"photos.{kind}", "--pairs", f"pairs.{kind}"),
    ]


FAMILIES: dict[str, Family] = {
    "configuration": Family(_as("run.toml", _text, _text, spoil_bytes), [(*TRAIN, "--config", "run.toml")]),
    "study": Family(
        _as("study.toml", _text, _text, spoil_bytes),
        [("study", "study.toml", "--list"), ("table", "study.toml", "--results", "results")],
    ),
    "table": Family(_as("photos.csv", _text, _text, spoil_bytes), _read_table("csv")),
    "pairs": Family(
        _as("pairs.csv", _text, _text, spoil_bytes),
        [*_read_pairs("csv"), ("pairs", "audit", "pairs.csv", "--dry-run")],
    ),
    "parquet table": Family(_as("photos.parquet", _cells, _cells, spoil_bytes), _read_table("parquet")),
    "parquet pairs": Family(_as("pairs.parquet", _cells, _cells, spoil_bytes), _read_pairs("parquet")),
    "images": Family(
        _images,
        [
            (*CHECK, "photos.csv", "--size", "16"),
            (*PREDICT, "photos", "--output", "out.csv"),
            ("pairs", "show", "pairs.csv", "--output", "out.html"),
            (*TRAIN, "--data", "photos.csv", "--pairs", "pairs.csv"),
        ],
    ),
    "zip": Family(
        _as("photos.zip", odd_zip),
        [
            (*CHECK, "photos.zip", "--size", "16"),
            (*PREDICT, "photos.zip", "--output", "out.csv"),
            (*TRAIN, "--data", "photos.zip", "--method", "erm", "--pairs", "0", "--held-out-pairs", "0"),
        ],
    ),
    "weights": Family(
        _as("weights.safetensors", odd_safetensors),
        [
            (*TRAIN, "--config", "run.toml", "--weights", "weights.safetensors"),
            ("evaluate", "--model", "weights.safetensors", "--data", "photos.csv", "--size", "16"),
        ],
    ),
    "torch weights": Family(
        _as("weights.pth", spoil_bytes), [(*TRAIN, "--config", "run.toml", "--weights", "weights.pth")]
    ),
    "model of a run": Family(_as("run/model.safetensors", odd_safetensors), READ_RUN),
    "checkpoint": Family(
        _as("stopped/checkpoint.safetensors", odd_safetensors),
        [("train", "--config", "run.toml", "--output", "stopped")],
    ),
    "record of a run": Family(_any_of("run/config.json", "run/result.json", way=_json), READ_RUN),
    "metrics of a run": Family(_as("run/metrics.jsonl", _rows, spoil_bytes), READ_RUN),
    "rows": Family(
        _as("results/trials.jsonl", _rows, _rows, spoil_bytes),
        [("table", "study.toml", "--results", "results"), ("study", "study.toml", "--results", "results", "--list")],
    ),
    "opinions": Family(
        _as("said.npz", spoil_bytes), [("pairs", "audit", "pairs.csv", "--predictions", "said.npz", "--dry-run")]
    ),
    "digits": Family(_as("mnist.npz", spoil_bytes), [(*CHECK, "colored_mnist", "--data-path", "mnist.npz")]),
    "idx": Family(
        _any_of("idx/train-images-idx3-ubyte", "idx/t10k-labels-idx1-ubyte", way=spoil_bytes),
        [(*CHECK, "colored_mnist", "--data-path", "idx")],
    ),
    "embedded data": Family(_embedded, [(*CHECK, "colored_fashion")]),
}
"""Kinds of files."""
DIVERGED = "NaN or infinite"
"""Of a training that was begun with weights or settings that are valid and of no use."""
FINDS = {"check", "predict", "audit", "doctor"}
"""Commands that exit with 1 where they ended well and have found something."""


@dataclass(frozen=True)
class World:
    """What cases start from, and where they happen."""

    seeds: Path
    place: Path


def prepare(folder: Path) -> World:
    """Make the valid files, and import the program."""
    (folder / "seeds").mkdir()
    world.make(folder / "seeds")
    preload()
    return World(folder / "seeds", folder / "place")


def attempt(here: World, seed: int, number: int) -> str | None:
    """Spoil a file in a fresh copy and try a command on it."""
    draw = Random(f"{seed}/{number}")
    kind = list(FAMILIES)[number % len(FAMILIES)]
    line, ending, folder, spoilt = trial(here, kind, draw, real=number % REAL == REAL - 1)
    wrong = verdict(line, ending, folder, spoilt)
    return None if wrong is None else f"{kind}: ipg {' '.join(line)}: {wrong}"


def trial(here: World, kind: str, draw: Random, *, real: bool = False) -> tuple[Sequence[str], Ending, Path, Names]:
    """One command on one spoilt file."""
    folder = here.place / "inner" / "case"
    shutil.rmtree(here.place, ignore_errors=True)
    shutil.copytree(here.seeds, folder)
    family = FAMILIES[kind]
    spoilt = family.spoil(draw, folder)
    line = draw.choice(family.lines)
    if kind == "embedded data":
        _embed(folder)
    environment = {"IPG_CACHE": str(folder / "cache"), "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    logs = here.place / "logs"
    logs.mkdir()
    ending = command(line, folder=folder, logs=logs, environment=environment, real=real and kind != "embedded data")
    return line, ending, folder, spoilt


def _embed(folder: Path) -> None:
    """Let the program, here and in its forks, find its own data in `folder`."""
    from ipg.data import colored_fashion

    colored_fashion.FACTS = folder / "fashion_mnist_20k.json"
    colored_fashion.SPRITE = folder / "fashion_mnist_20k.png"


def verdict(line: Sequence[str], ending: Ending, folder: Path, spoilt: Names) -> str | None:
    """What is not as promised."""
    said = ending.err.strip()
    if ending.code < 0:
        return f"over {SECONDS} s" if ending.code == -14 else f"signal {-ending.code}"
    if ending.memory > MEMORY or OUT_OF_MEMORY in said:
        return f"{ending.memory >> 20} MiB: {said[-200:]}"
    if "Traceback" in said + ending.out:
        return " | ".join(said.splitlines()[-3:])[-400:]
    if ending.code not in (0, 2) and not (ending.code == 1 and FINDS & set(line)):
        return f"exit {ending.code}: {said[-200:]}"
    if ending.code == 2:
        lines = said.splitlines()
        if not 1 <= len(lines) <= LINES or not all(text.startswith("ipg: ") for text in lines):
            return f"{len(lines)} lines: {said[:200]}"
        if not set(spoilt) & _words(said) and DIVERGED not in said:
            return f"does not name {spoilt[0]}: {said[:300]}"
    return _left(folder, ending.code)


def _words(said: str) -> set[str]:
    """Parts of paths in a message."""
    return {word.strip(".") for word in re.split(r"[^\w.-]+", said)}


def _left(folder: Path, code: int) -> str | None:
    """What should not be there after a command."""
    around = {path.name for path in (folder.parent, folder.parent.parent) for path in path.iterdir()}
    if strangers := around - {"case", "inner", "logs"}:
        return f"wrote outside: {', '.join(strangers)}"
    if Path("/tmp/ipg-climbed.png").exists():
        return "wrote to an absolute name"
    parts = [path.name for path in folder.rglob(".*.tmp")]
    if parts:
        return f"left {parts[0]}"
    made = [path for path in (folder / "out", folder / "out.csv", folder / "out.html") if path.exists()]
    if code == 2 and any(path.is_file() or (path / "done").exists() for path in made):
        return f"left {made[0].name}, which looks finished"
    return None
