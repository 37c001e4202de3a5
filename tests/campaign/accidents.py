"""What happens to files between two runs: data that changes, and run folders of earlier versions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from PIL import Image

__all__ = ["ACCIDENTS", "AGES"]

# -- data --------------------------------------------------------------------------------------------------------------


def _image(draw: Random, seeds: Path) -> Path:
    return draw.choice(sorted((seeds / "photos").rglob("*.png")))


def _vanishes(draw: Random, seeds: Path) -> str:
    lost = _image(draw, seeds)
    lost.unlink()
    return lost.name


def _is_cut(draw: Random, seeds: Path) -> str:
    cut = _image(draw, seeds)
    cut.write_bytes(cut.read_bytes()[: draw.randrange(cut.stat().st_size)])
    return cut.name


def _is_another(draw: Random, seeds: Path) -> str:
    """Other pixels, and perhaps the old times."""
    other = _image(draw, seeds)
    times = other.stat().st_atime_ns, other.stat().st_mtime_ns
    Image.effect_noise((16, 16), 100).convert("RGB").save(other)
    if draw.random() < 0.5:
        os.utime(other, ns=times)
    return other.name


def _row_goes(name: str) -> Callable[[Random, Path], str]:
    def accident(draw: Random, seeds: Path) -> str:
        lines = (seeds / name).read_text(encoding="utf-8").splitlines()
        del lines[draw.randrange(1, len(lines))]
        (seeds / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return name

    return accident


def _label_changes(draw: Random, seeds: Path) -> str:
    lines = (seeds / "photos.csv").read_text(encoding="utf-8").splitlines()
    row = draw.randrange(1, len(lines))
    path, label, *rest = lines[row].split(",")
    lines[row] = ",".join([path, {"cat": "dog", "dog": "cat"}[label], *rest])
    (seeds / "photos.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "photos.csv"


def _table_goes(name: str) -> Callable[[Random, Path], str]:
    def accident(draw: Random, seeds: Path) -> str:
        (seeds / name).unlink()
        return name

    return accident


ACCIDENTS: tuple[Callable[[Random, Path], str], ...] = (
    _vanishes, _is_cut, _is_another, _is_another, _row_goes("photos.csv"), _row_goes("pairs.csv"), _label_changes,
    _table_goes("photos.csv"), _table_goes("pairs.csv"),
)  # fmt: skip
"""Each does something to the data, and gives what a message has to name."""

# -- run folders -------------------------------------------------------------------------------------------------------

NEWER = {
    "config": ("crop", "flip", "freeze", "masks", "normalization", "start", "steps", "weights"),
    "origin": ("data_path", "named", "network", "classes", "shape", "pairs", "held_out_pairs"),
}
"""What the first version did not write down of a run's settings and of where it comes from."""


def _without(part: str) -> Callable[[Random, Path], None]:
    """A record that does not yet say all that is said today."""

    def age(draw: Random, run: Path) -> None:
        path = run / "config.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        for name in draw.sample(NEWER[part], draw.randrange(1, len(NEWER[part]))):
            record[part].pop(name, None)
        path.write_text(json.dumps(record), encoding="utf-8")
        _before_digests(draw, run)

    return age


def _before_digests(draw: Random, run: Path) -> None:
    """A marker with nothing in it."""
    if (run / "done").exists():
        (run / "done").write_text("", encoding="utf-8")


def _before_checksums(draw: Random, run: Path) -> None:
    """Checkpoints in the form that was first."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for path in run.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            structure = file.metadata()["structure"]
        save_file(load_file(path), path, metadata={"format": "ipg-checkpoint-1", "structure": structure})
    _before_digests(draw, run)


AGES: tuple[Callable[[Random, Path], None], ...] = (
    _before_digests, _before_checksums, _without("config"), _without("origin"),
)  # fmt: skip
"""Each makes a run folder older."""
