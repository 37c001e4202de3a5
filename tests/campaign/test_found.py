"""What mutated inputs have found, each by its smallest case."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.config import ConfigError, RunConfig, load_config
from ipg.data.decode import decode
from ipg.data.errors import DataError
from ipg.data.folder import read
from ipg.data.load import load
from ipg.data.sources import FolderSource, ZipSource
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import load_study
from ipg.experiments.tables.rows import measured_of
from ipg.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from ipg.training.folder import FolderError, RunFolder, read_jsonl

# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "epochs = " + "9" * 5000])
def test_settings_too_deep_or_too_long_to_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML"):
        load_config(tmp_path / "run.toml")


def test_a_whole_number_beyond_all_fractions() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate=1000.*expected a number"):
        RunConfig.from_mapping({"learning_rate": 10**400})


@pytest.mark.parametrize(("given", "what"), [("p+hotos.csv", "no table"), ("/nonexistent/x", "nothing at")])
def test_data_that_are_not_there_are_called_by_their_setting(given: str, what: str) -> None:
    with pytest.raises(DataError, match=rf"there is {what} {re.escape(given)}; data is the name of a data set, or"):
        load(given)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_in_the_place_of_a_file(device: str) -> None:
    with pytest.raises(DataError, match=f"{device} cannot be read as a zip archive"):
        read(device)
    if device == "/dev/zero":
        with pytest.raises(ConfigError, match=r"/dev/zero is not valid TOML: it has more than"):
            load_config(Path(device))


# -- tables and folders -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [10**12, 10**30, int("9" * 900)])
def test_groups_with_huge_numbers_are_names(photos: Path, group: int) -> None:
    rows = [f"{n}.png,{'ab'[n % 2]},{group if n % 2 else 0}" for n in range(4)]
    (photos / "all.csv").write_text("\n".join(["path,label,group", *rows]))
    found = read(photos / "all.csv")
    assert found.attributes == ("0", str(group))
    assert found.attribute.tolist() == [n % 2 for n in range(4)]


def test_a_label_with_more_digits_than_python_reads(photos: Path) -> None:
    rows = [f"{n}.png,{'9' * 5000 if n % 2 else '1'}" for n in range(4)]
    (photos / "all.csv").write_text("\n".join(["path,label", *rows]))
    assert read(photos / "all.csv").classes == ("1", "9" * 5000)


def test_a_name_longer_than_any_files(tmp_path: Path) -> None:
    assert FolderSource(tmp_path).find("x" * 5000 + ".png") is None


@pytest.mark.parametrize("method", [12, 14, 99])
def test_a_file_in_an_archive_packed_in_another_way_than_it_says(tmp_path: Path, method: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.png", b"12345678" * 9)
    data = bytearray(buffer.getvalue())
    struct.pack_into("<H", data, data.rfind(b"PK\x01\x02") + 10, method)
    (tmp_path / "all.zip").write_bytes(data)
    with pytest.raises(DataError):
        ZipSource([tmp_path / "all.zip"]).read("a.png")


# -- images -------------------------------------------------------------------------------------------------------


def test_transparency_in_parts_is_as_in_one_go() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (600, 5, 4), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    laid = Image.alpha_composite(Image.new("RGBA", (5, 600), "white"), Image.fromarray(pixels)).convert("RGB")
    whole = np.asarray(laid.resize((64, 64), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(decode(buffer.getvalue(), size=64), whole)


def test_pillow_adds_no_lines_of_its_own(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "TIFF")
    data = buffer.getvalue()
    samples = struct.pack("<HHIHH", 277, 3, 1, 3, 0)  # the tag of samples per pixel: one short, 3
    assert data.count(samples) == 1
    (tmp_path / "odd.tif").write_bytes(data.replace(samples, struct.pack("<HHIHH", 277, 3, 1, 30979, 0)))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from ipg.data.decode import decode\nfrom ipg.data.errors import DataError\n"
        "try:\n    decode(Path(sys.argv[1]).read_bytes(), size=8)\nexcept DataError:\n    sys.exit(2)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "odd.tif")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.slow
def test_many_large_images_at_once_take_the_memory_of_one(tmp_path: Path) -> None:
    from campaign import forked
    from campaign.odd_images import JUST_ALLOWED

    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("LA", (JUST_ALLOWED, JUST_ALLOWED)).save(tmp_path / label / f"{number}.png")
    line = ["data", "check", str(tmp_path), "--size", "8"]
    environment = {"IPG_CACHE": str(tmp_path / "cache")}
    ending = forked.command(line, folder=tmp_path, logs=tmp_path, environment=environment, real=True)
    assert ending.code == 0, ending
    assert ending.memory < forked.MEMORY


# -- the machine --------------------------------------------------------------------------------------------------


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom ipg.cli.errors import clear\n"
        "from ipg.files import write_text\nimport typer\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    clear(write_text)(Path(sys.argv[1]), 'x' * 5000)\n"
        "except typer.Exit as end:\n    sys.exit(end.exit_code)\n"
    )
    (tmp_path / "notes.txt").write_text("old")
    run = [sys.executable, "-c", code, str(tmp_path / "notes.txt")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ipg: {tmp_path / 'notes.txt'}: File too large. What was saved before is whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("notes.txt", "old")]


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    with run.claim({"config": {"epochs": 1}, "data": {}}, {}):
        run.finish({"weight": torch.zeros(2)}, [{"epoch": 1}], {"metrics": {"average": 0.5}})
    return run


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "model.safetensors"])
def test_a_digit_that_changed_is_damage(finished: RunFolder, name: str) -> None:
    assert finished.finished() is not None
    data = (finished.path / name).read_bytes()
    (finished.path / name).write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with pytest.raises(FolderError, match=f"{name} is damaged"):
        finished.finished()


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff", b"{"])
def test_metrics_that_cannot_be_read(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line)
    with pytest.raises(FolderError, match=r"metrics\.jsonl is damaged and cannot be read"):
        read_jsonl(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("marker", ["[1]", "7", "{", "\xff"])
def test_a_marker_that_is_damaged(finished: RunFolder, marker: str) -> None:
    finished.done.write_bytes(marker.encode("latin-1"))
    with pytest.raises(FolderError, match="done is damaged"):
        finished.finished()


def test_a_run_of_before_there_were_digests(finished: RunFolder) -> None:
    finished.done.write_text("")
    found = finished.finished()
    assert found is not None
    assert found[2] == {"metrics": {"average": 0.5}}


def test_every_bit_of_a_checkpoint_counts(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, {"step": 3, "weight": torch.arange(4.0), "kinds": [torch.ones(1, dtype=torch.int16), ()]})
    whole = path.read_bytes()
    assert load_checkpoint(path)["step"] == 3
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors"):
            load_checkpoint(path)


def test_a_checkpoint_of_before_there_were_checksums(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    structure = json.dumps({"dict": [["weight", {"tensor": "weight"}]]})
    path = tmp_path / "old.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata={"format": "ipg-checkpoint-1", "structure": structure})
    assert load_checkpoint(path)["weight"].tolist() == [1, 1]


# -- rows ---------------------------------------------------------------------------------------------------------


def test_lines_that_are_no_rows(tmp_path: Path) -> None:
    lines = ["[" * 100_000, '{"key": ["a"]}', '{"key": {}}', "7", '{"n": ' + "9" * 5000 + "}", '{"key": "a"}']
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    assert Store(tmp_path).done() == {"a"}
    assert len(read_rows(tmp_path / "trials.jsonl")) == 3


ROW: dict[str, Any] = {
    "dataset": "bars", "method": "erm", "protocol": "paper", "seed": 0, "split": "test", "config": {}, "seconds": 1.0,
    "metrics": {"average": 0.5, "groups": {"a, b": {"accuracy": None, "count": 0}}}, "last_metrics": {},
    "hardware": "CPU", "versions": {"torch": "2", "python": "3"}, "commit": "abc", "date": "2026-01-01",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Callable[[dict[str, Any]], object]:
    """Makes the table of a study with one row."""
    (tmp_path / "mine.toml").write_text(
        'dataset = "bars"\nseeds = 1\n[[arm]]\nmethod = "erm"\nprotocol = "paper"\n', encoding="utf-8"
    )

    def make(row: dict[str, Any]) -> object:
        (tmp_path / "trials.jsonl").write_text(json.dumps(row) + "\n")
        return measured_of(load_study(tmp_path / "mine.toml"), tmp_path / "trials.jsonl")

    return make


def test_a_row_that_is_whole(table: Callable[[dict[str, Any]], Any]) -> None:
    assert [len(arm.rows) for arm in table(ROW).arms] == [1]


def test_two_rows_of_one_trial_are_said_with_their_file(table: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    table(ROW)
    (tmp_path / "trials.jsonl").write_text(2 * f"{json.dumps(ROW)}\n")
    with pytest.raises(ValueError, match=r"trials\.jsonl: .*2 rows of erm .*keep one"):
        measured_of(load_study(tmp_path / "mine.toml"), tmp_path / "trials.jsonl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, odd) for name in ROW for odd in ([1], 7.5j)),
        ("metrics", {"average": "high"}),
        ("metrics", {"average": 10**400}),
        ("metrics", {"groups": [1]}),
        ("metrics", {"groups": {"a, b": 0.5}}),
        ("metrics", {"groups": {"a, b": {"accuracy": 0.5}}}),
        ("last_metrics", {"average": []}),
        ("seconds", float("nan")),
        ("key", ["a"]),
        ("preparing_seconds", "long"),
        ("sharing", [3]),
        ("versions", {"torch": 2.8}),
    ],
)
def test_a_row_with_a_value_of_another_kind(table: Callable[[dict[str, Any]], Any], name: str, value: Any) -> None:
    odd = {} if isinstance(value, complex) else {name: value}  # missing, or odd
    with pytest.raises(ValueError, match=rf"trials\.jsonl: the row of .*{name}"):
        table({key: item for key, item in ROW.items() if key != name} | odd)
