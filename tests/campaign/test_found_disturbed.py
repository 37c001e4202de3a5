"""What kills and shortages have found, each by its smallest case."""

from __future__ import annotations

import errno
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from ipg.cli import app
from ipg.cli.console import ConsoleListener
from ipg.cli.errors import clear
from ipg.config import RunConfig
from ipg.data.cache import cached_images, list_cache
from ipg.data.errors import DataError
from ipg.data.sources import FolderSource
from ipg.experiments.runner import run_study
from ipg.experiments.search.run import make_plan
from ipg.experiments.study import load_study
from ipg.files import write_text
from ipg.training.folder import FolderError
from ipg.training.interrupt import Interrupted
from ipg.training.listeners import Listener
from ipg.training.loop import train
from ipg.training.materials import gather
from ipg.training.memory import OutOfMemoryError
from ipg.training.stepping import EagerStep

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


START = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it may be ignored here
RUN = "sys.argv = ['ipg', 'methods']\nfrom ipg.__main__ import main\nmain()\n"


def ended(code: str) -> tuple[int, str]:
    """How `ipg methods` ends after `code`, and what it says of it."""
    line = [sys.executable, "-c", START + code + RUN]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("where", ["ipg.cli", "typer.main"])
def test_ctrl_c_before_the_command_has_begun(where: str) -> None:
    code = (
        "class Late:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {where!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Late())\n"
    )
    assert ended(code) == (130, "ipg: interrupted\n")


@pytest.mark.parametrize("where", ["make_context", "invoke"])
def test_ctrl_c_while_the_command_line_is_read(where: str) -> None:
    """Which typer answers with an exit status alone."""
    code = (
        "from ipg.cli.errors import Commands\n"
        "def late(*given, **named): signal.raise_signal(signal.SIGINT)\n"
        f"Commands.{where} = late\n"
    )
    assert ended(code) == (130, "ipg: interrupted\n")


def test_ctrl_c_once_more_after_the_line_is_said() -> None:
    code = (
        "from ipg.cli import errors\n"
        "say = errors._say\n"
        "def interrupt(*given): signal.raise_signal(signal.SIGINT)\n"
        "def late(line):\n    say(line)\n    interrupt()\n"
        "errors._say, errors.Commands.invoke = late, interrupt\n"
    )
    assert ended(code) == (130, "ipg: interrupted\n")


def test_a_library_that_turns_ctrl_c_into_an_error_of_its_own() -> None:
    """As numpy does, interrupted in the middle of its import; the same error without Ctrl-C is a bug."""
    code = (
        "from ipg.cli.errors import Commands\n"
        "def fail(*given):\n"
        "    try:\n        if {} : signal.raise_signal(signal.SIGINT)\n"
        "    finally:\n        raise RecursionError('of its own')\n"
        "Commands.invoke = fail\n"
    )
    assert ended(code.format(True)) == (130, "ipg: interrupted\n")
    status, said = ended(code.format(False))
    assert status == 1
    assert "RecursionError: of its own" in said


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


def test_what_fits_is_told_of_whole_batches(
    make_table: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is short at the last batch of the epoch, of 10 images: no reason for batches of 5."""
    real, met = EagerStep.step, []

    def short(step: EagerStep, rows: torch.Tensor) -> None:
        met.append(len(rows))
        if met == [50, 10]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        real(step, rows)

    monkeypatch.setattr(EagerStep, "step", short)
    config, table = RunConfig(method="erm", epochs=1, batch=50, device="cpu", held_out_pairs=0), make_table(train=60)
    with pytest.raises(OutOfMemoryError, match=r"^out of memory with --batch 50; --batch 25 fits"):
        train(config, gather(config, table=table), folder=tmp_path)


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
