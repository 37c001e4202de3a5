"""The program as its user meets it, two finished runs on the embedded images, and a data set that trains in no time."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ipg.cli import app

TINY = ("--epochs", "1", "--batch", "512", "--pairs", "8", "--held-out-pairs", "8")
MOST_LINES = 5
"""How long an error may be."""


class Finished:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run(*arguments: object) -> Finished:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="ipg")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Finished(result.exit_code, result.stdout, result.stderr)


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **changes}


def python_m_ipg(*arguments: object, **changes: Any) -> Finished:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ipg", *(str(argument) for argument in arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        **{"env": environment(), **changes},
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder of its own, on a terminal of 80 columns, without a data set of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("IPG_MNIST", str(tmp_path / "no-mnist"))
    monkeypatch.setenv("IPG_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("IPG_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def ipg() -> Callable[..., Finished]:
    """Runs a command in this process."""
    return run


@pytest.fixture(scope="session")
def process() -> Callable[..., Finished]:
    """Runs a command as `python -m ipg`."""
    return python_m_ipg


@pytest.fixture(scope="session")
def assert_refused() -> Callable[..., str]:
    """Runs a command that has to end in a few clear lines; returns them."""

    def refuse(*arguments: object, says: tuple[str, ...]) -> str:
        done = run(*arguments)
        assert done.code == 2, done
        lines = done.err.splitlines()
        assert 1 <= len(lines) <= MOST_LINES, done
        assert all(line.startswith("ipg: ") for line in lines), done
        assert "Traceback" not in done.err + done.out
        assert "Errno" not in done.err
        for part in says:
            assert part in done.err, done
        return done.err

    return refuse


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    """Settings that train in a second or two."""
    return TINY


@pytest.fixture(scope="session")
def embedded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs `guided` and `plain` on the embedded images; not to be changed."""
    folder = tmp_path_factory.mktemp("embedded")
    for name, method in (("guided", "ipg"), ("plain", "erm")):
        done = run("train", *TINY, "--method", method, "--output", folder / name)
        assert done.code == 0, done
        (folder / f"{name}.txt").write_text(done.out, encoding="utf-8")
    return folder


@pytest.fixture
def bars(make_table: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A data set of 200 small images by the name of `bars`; the options that train on it."""
    from ipg.data.load import DATASETS

    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed))
    return ["--data", "bars", "--epochs", "1", "--batch", "32", "--pairs", "8", "--held-out-pairs", "8"]


@pytest.fixture
def finished(bars: list[str], tmp_path: Path) -> Path:
    """The folder of a finished run on `bars`, to do with as one likes."""
    folder = tmp_path / "finished"
    done = run("train", *bars, "--output", folder)
    assert done.code == 0, done
    return folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos.csv`, `pairs.csv` and the finished run `plain` on them; not to be changed.

    Light from above or from below is the label, red or green the shortcut, in perfect agreement in training.
    """
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0)

    def picture(name: str, label: int, color: int) -> str:
        pixels = noise.integers(0, 40, (16, 24, 3), dtype=np.uint8)
        pixels[8 * label : 8 * label + 8, :, color] += 180
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
        return name

    rows = ["path,label,attribute,split"]
    for split, count in (("train", 40), ("validation", 12), ("test", 24)):
        for number in range(count):
            label = number % 2
            color = label if split == "train" else number // 2 % 2
            name = picture(f"images/{split}{number}.png", label, color)
            rows.append(f"{name},{('above', 'below')[label]},{('red', 'green')[color]},{split}")
    pairs = ["first,second,label,split"]
    for number in range(12):
        label, split = number % 2, "train" if number < 8 else "validation"
        members = ",".join(picture(f"pairs/{number}-{color}.png", label, color) for color in (0, 1))
        pairs.append(f"{members},{('above', 'below')[label]},{split}")
    (folder / "photos.csv").write_text("\n".join(rows) + "\n")
    (folder / "pairs.csv").write_text("\n".join(pairs) + "\n")
    (folder / "mine.py").write_text(OWN_MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPG_CACHE", str(tmp_path_factory.mktemp("photo-cache")))
        done = run(
            *("train", "--data", folder / "photos.csv", "--size", 16, "--model", "small_cnn", "--method", "erm"),
            *("--pairs", folder / "pairs.csv", "--epochs", 4, "--batch", 8, "--output", folder / "plain"),
        )
    assert done.code == 0, done
    return folder


OWN_MODELS = """
from torch import nn, tensor


def by_color():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    model[2].weight.data = tensor([[1.0, 0, 0], [0, 1, 0]])
    model[2].bias.data.zero_()
    return model


def by_one_logit():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1, bias=False))
    model[2].weight.data = tensor([[-1.0, 1, 0]])
    return model


def of_three():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))


def flat():
    return nn.Flatten(0)


def headless():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
"""Networks of somebody's own: two that go by colour alone, and some that do not fit."""


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Discs and squares on green or blue, with masks; the options that name them."""
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    rows: list[Sequence[str]] = [("path", "label", "attribute", "split")]
    for number in range(36):
        split = ("train", "train", "validation", "test")[number // 2 % 4]
        label = ("disc", "square")[number % 2]
        color = ("green", "blue")[number % 2 if split == "train" else number // 8 % 2]
        y, x = np.mgrid[:32, :32] - 16
        mask = (x**2 + y**2 < 64) if label == "disc" else (abs(x) < 7) & (abs(y) < 7)
        noise = np.random.default_rng(number).integers(0, 90, (8, 8, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(noise).resize((32, 32))).copy()
        image[..., 1 if color == "green" else 2] += 120
        image[mask] = (220, 40 + number, 60)
        for pixels, kind in ((image, "images"), (mask, "masks")):
            path = tmp_path / "shapes" / kind / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
        rows.append((f"images/{number:02d}.png", label, color, split))
    with (tmp_path / "shapes" / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (tmp_path / "shapes" / "masks").rename(tmp_path / "shapes" / "inner")
    (tmp_path / "shapes" / "inner").rename(tmp_path / "masks-images")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks-images").rename(tmp_path / "masks" / "images")
    return ("--data", "shapes/labels.csv", "--size", "32")
