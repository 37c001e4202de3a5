"""What campaigns have found, each by its smallest case."""

from __future__ import annotations

import errno
import io
import json
import signal
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
import typer
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from ipg.cli import app
from ipg.cli.console import ConsoleListener
from ipg.cli.errors import clear
from ipg.config import ConfigError, RunConfig, load_config
from ipg.data.cache import cached_images, list_cache
from ipg.data.decode import decode
from ipg.data.errors import DataError
from ipg.data.folder import read
from ipg.data.sources import FolderSource, ZipSource
from ipg.experiments.runner import run_study
from ipg.experiments.search.run import make_plan
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import load_study
from ipg.experiments.tables.rows import measured_of
from ipg.files import write_text
from ipg.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from ipg.training.folder import FolderError, RunFolder, read_jsonl
from ipg.training.interrupt import Interrupted
from ipg.training.listeners import Listener
from ipg.training.loop import train
from ipg.training.materials import gather
from ipg.training.memory import OutOfMemoryError
from ipg.training.stepping import EagerStep

# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "epochs = " + "9" * 5000])
def test_settings_too_deep_or_too_long_to_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML"):
        load_config(tmp_path / "run.toml")


def test_a_whole_number_beyond_all_fractions() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate=1000.*expected a number"):
        RunConfig.from_mapping({"learning_rate": 10**400})


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_in_the_place_of_a_file(device: str) -> None:
    with pytest.raises(DataError, match=f"{device} cannot be read as a zip archive"):
        read(device)
    if device == "/dev/zero":
        with pytest.raises(ConfigError, match=r"/dev/zero is not valid TOML: it has more than"):
            load_config(Path(device))


# -- tables and folders -------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


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
    "hardware": "CPU", "versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-01",
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
        ("versions", {"torch": 2.8}),
    ],
)
def test_a_row_with_a_value_of_another_kind(table: Callable[[dict[str, Any]], Any], name: str, value: Any) -> None:
    odd = {} if isinstance(value, complex) else {name: value}  # missing, or odd
    with pytest.raises(ValueError, match=rf"trials\.jsonl: the row of .*{name}"):
        table({key: item for key, item in ROW.items() if key != name} | odd)


# -- kills --------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from ipg.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text('ne')
    if len(sys.argv) > 2:
        print("writing", flush=True)
        sys.stdin.read()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_has_left_goes_with_the_next_write_and_what_is_being_written_stays(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed.txt")], check=False)
    (left,) = tmp_path.iterdir()
    line = [sys.executable, "-c", KILLED, str(tmp_path / "slow.txt"), "slowly"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as slow:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "writing\n"
        (tmp_path / ".others.0123456.tmp").touch()  # not of our making
        write_text(tmp_path / "new.txt", "new")
        assert not left.exists()
        assert len(list(tmp_path.glob(".slow.txt.*.tmp"))) == 1
        slow.communicate("")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".others.0123456.tmp", "new.txt", "slow.txt"]
    assert (tmp_path / "slow.txt").read_text() == "ne"


def toys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The images of a folder, by way of a cache of their own."""
    monkeypatch.setenv("IPG_CACHE", str(folder / "cache"))
    names = [f"{number}.png" for number in range(4)]
    return cached_images(FolderSource(folder), names, size=8, fit="squeeze", what="toys")


def test_who_made_a_cache_was_killed_before_its_record(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = toys(photos, monkeypatch)
    (entry,) = list_cache()
    entry.path.with_suffix(".json").unlink()
    assert torch.equal(toys(photos, monkeypatch), images)
    assert list_cache() == [entry]


@pytest.mark.parametrize("where", ["ipg.cli", "typer.main"])
def test_ctrl_c_before_the_command_has_begun(where: str) -> None:
    code = (
        "import sys, signal\n"
        "class Late:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {where!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Late())\n"
        "from ipg.__main__ import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "ipg: interrupted\n")


class Heard(Listener):
    """What a run that stops after its first iterations has said of where it goes on."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []

    def first_stage(self, *, step: int, total: int) -> None:
        self.said.append(("first stage", step))

    def started(self, config: RunConfig, *, step: int, total: int) -> None:
        self.said.append((config.method, step))


def test_a_first_stage_says_where_it_goes_on(
    make_table: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(method="jtt", epochs=1, batch=40, device="cpu", held_out_pairs=0, options={"first_epochs": 2})
    real, made = EagerStep.step, []

    def stopping(step: EagerStep, rows: torch.Tensor) -> None:
        real(step, rows)
        made.append(1)
        if len(made) == 2:
            signal.raise_signal(signal.SIGTERM)

    heard, table = Heard(), make_table()
    with monkeypatch.context() as patch:
        patch.setattr(EagerStep, "step", stopping)
        with pytest.raises(Interrupted):
            train(config, gather(config, table=table), folder=tmp_path, listeners=[heard])
    train(config, gather(config, table=table), folder=tmp_path, listeners=[heard])
    assert heard.said == [("first stage", 0), ("first stage", 2), ("jtt", 0)]
    out = io.StringIO()
    ConsoleListener(Console(file=out), label="jtt on toys").first_stage(step=2, total=6)
    assert out.getvalue() == "jtt on toys, first stage, from iteration 2 of 6\n"


def test_pairs_say_what_is_there(tmp_path: Path) -> None:
    line = ["pairs", "build", "recolored", "--data", "colored_fashion", "--count", "8", "--output", str(tmp_path / "p")]
    assert "already" not in CliRunner().invoke(app, line).output
    (tmp_path / "p" / "manifest.csv").unlink()
    for image in sorted((tmp_path / "p" / "images").iterdir())[:3]:
        image.unlink()
    assert "5 of 8 pairs are there already" in CliRunner().invoke(app, line).output
    assert len(list((tmp_path / "p" / "images").iterdir())) == 8


# -- starvation ---------------------------------------------------------------------------------------------------


def test_a_row_that_does_not_fit_is_not_there_in_part(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom ipg.experiments.store import Store\n"
        "store = Store(Path(sys.argv[1]))\nstore.finish({'key': 'a'})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "try:\n    store.finish({'key': 'b' * 100})\nexcept OSError as error:\n    sys.exit(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == errno.EFBIG, done.stderr
    assert (tmp_path / "trials.jsonl").read_text() == '{"key": "a"}\n'


def test_a_cache_beyond_the_limit_on_files_says_so(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("ipg.data.cache._build", fail)
    with pytest.raises(DataError, match=r"768 bytes .* more than the limit on files .*ulimit -f"):
        toys(photos, monkeypatch)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried …"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory_that_runs_out_in_other_words(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        clear(fail)()
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.startswith("ipg: out of memory: ")


@pytest.mark.parametrize(("fits", "says"), [(40, "--batch 25 fits"), (25, "--batch 25 fits"), (0, "lower")])
def test_a_batch_that_does_not_fit_names_one_that_does(
    make_table: Callable[..., Any], fits: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = EagerStep.step

    def short(step: EagerStep, rows: torch.Tensor) -> None:
        if len(rows) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        real(step, rows)

    monkeypatch.setattr(EagerStep, "step", short)
    config, table = RunConfig(method="erm", epochs=1, batch=50, device="cpu", held_out_pairs=0), make_table()
    with pytest.raises(OutOfMemoryError, match=rf"^out of memory with --batch 50; .*{says}"):
        train(config, gather(config, table=table), folder=tmp_path)
    if fits:
        smaller = config.with_changes(batch=fits)
        train(smaller, gather(smaller, table=table), folder=tmp_path)  # nothing was lost, the folder is free


def test_a_run_from_before_there_was_a_setting_goes_on(make_table: Callable[..., Any], tmp_path: Path) -> None:
    config, table = RunConfig(method="erm", epochs=1, batch=50, device="cpu", held_out_pairs=0), make_table()
    train(config, gather(config, table=table), folder=tmp_path)
    (tmp_path / "done").write_text("")
    record = json.loads((tmp_path / "config.json").read_text())
    for name in ("crop", "freeze"):
        del record["config"][name]
    (tmp_path / "config.json").write_text(json.dumps(record))
    train(config, gather(config, table=table), folder=tmp_path)
    cropped = config.with_changes(crop=0.8)
    with pytest.raises(FolderError, match=r"crop was 1\.0 and is now 0\.8"):
        train(cropped, gather(cropped, table=table), folder=tmp_path)


def test_a_device_that_is_not_there_is_said_before_trials_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "mine.toml").write_text('dataset = "bars"\nseeds = 1\n[[arm]]\nmethod = "erm"\nprotocol = "paper"\n')
    with pytest.raises(ValueError, match="use --device cpu"):
        run_study(load_study(tmp_path / "mine.toml"), tmp_path / "results", device="cuda", workers=1)
    with pytest.raises(ValueError, match="use --device cpu"):
        make_plan(RunConfig(seed=100, device="cuda"))
    assert not (tmp_path / "results").exists()


def test_an_image_that_cannot_be_packed_for_want_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("codec configuration error when writing image file")

    monkeypatch.setattr(Image.Image, "save", fail)
    line = ["pairs", "build", "recolored", "--data", "colored_fashion", "--count", "8", "--output", str(tmp_path / "p")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 2
    assert "out of memory" in done.output
    assert not list(tmp_path.rglob("*.tmp"))
