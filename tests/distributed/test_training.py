"""One run by several processes: the same files as by one, on any number of them, whatever happens to one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from forking import Template
from waiting import wait_for

from ipg.training.checkpoint import load_checkpoint
from ipg.training.distributed import ProcessLostError, Team, _clear_loss, processes

SCRIPT = Path(__file__).with_name("run.py")
MODULE = "-m", "ipg"
STOPPED, LOST = 30, 40
LIMIT_SECONDS = 120

Train = Callable[..., tuple[list[int], list[str]]]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def by_ranks(template: Template, count: int, logs: Path, *line: object) -> tuple[list[int], list[str]]:
    """Run a line by so many processes, as a launcher would; how each ended and what it said."""
    variables = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started, said = [], [logs / f"{rank}.log" for rank in range(count)]
    for rank, log in enumerate(said):
        own = {**variables, "WORLD_SIZE": str(count), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(template.start(*line, log=log, environment=own))
    try:
        codes = [process.wait(timeout=LIMIT_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    return codes, [log.read_text() for log in said]


@pytest.fixture(scope="module")
def train(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train by so many processes; how each ended and what it said."""

    def start(count: int, folder: Path, method: str, *trouble: str | int) -> tuple[list[int], list[str]]:
        tmp_path = tmp_path_factory.mktemp("logs")
        return by_ranks(template, count, tmp_path, SCRIPT, folder, method, *trouble)

    return start


@pytest.fixture(scope="module")
def alone(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a method by one process, made when it is first asked for."""
    made: dict[str, Path] = {}

    def folder(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("alone") / method
            assert train(1, made[method], method)[0] == [0]
        return made[method]

    return folder


def outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Weights and metrics of a finished run, without its times."""
    assert (folder / "done").exists()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    return load_checkpoint(folder / "model.safetensors"), rows


def assert_same(folder: Path, reference: Path) -> None:
    weights, rows = outcome(folder)
    expected, expected_rows = outcome(reference)
    torch.testing.assert_close(weights, expected, atol=1e-10, rtol=1e-10)
    assert len(rows) == len(expected_rows)
    for row, other in zip(rows, expected_rows, strict=True):
        means, other_means = row.pop("train"), other.pop("train")
        assert means == pytest.approx(other_means, rel=1e-5, abs=1e-6, nan_ok=True)  # summed in float32
        error, other_error = (one["validation"].pop("calibration_error") for one in (row, other))
        assert error == pytest.approx(other_error, rel=1e-8)
        assert row == other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "count"),
    [
        *(("erm", 2), ("joint", 2), ("ipg", 2), ("ipg", 4), ("joint_weighted", 2)),
        *(("groupdro", 4), ("pair_augmentation", 4), ("pair_contrastive", 4)),
    ],
)
def test_many_processes_train_as_one_does(
    train: Train, alone: Callable[[str], Path], tmp_path: Path, method: str, count: int
) -> None:
    codes, said = train(count, tmp_path / "many", method)
    assert codes == [0] * count, said
    assert_same(tmp_path / "many", alone(method))
    assert json.loads((tmp_path / "many" / "result.json").read_text())["processes"] == count
    assert train(count, tmp_path / "many", method)[0] == [0] * count  # done: read back


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(
    train: Train, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    codes, said = train(2, tmp_path / "many", "ipg", "SIGTERM", 1, 5)  # only one of the two is asked to stop
    assert codes == [STOPPED] * 2, said
    assert said[0] == said[1], "they stopped at different steps"
    codes, said = train(1, tmp_path / "many", "ipg", "SIGINT", 0, 20)
    assert codes == [STOPPED], said
    codes, said = train(4, tmp_path / "many", "ipg")
    assert codes == [0] * 4, said
    assert_same(tmp_path / "many", alone("ipg"))


@pytest.mark.slow
def test_many_processes_begin_again_as_one_does(train: Train, tmp_path: Path) -> None:
    for count, name in ((1, "one"), (2, "two")):
        codes, said = train(count, tmp_path / name, "ipg", "COLLAPSE", 0, 17)
        assert codes == [0] * count, said
        assert json.loads((tmp_path / name / "result.json").read_text())["restarted"] == 1
    assert_same(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_others_clearly_and_the_run_can_go_on(
    train: Train, alone: Callable[[str], Path], tmp_path: Path, rank: int
) -> None:
    began = time.monotonic()
    codes, said = train(2, tmp_path / "many", "ipg", "SIGKILL", rank, 17)
    assert time.monotonic() - began < 60
    assert codes[rank] == -signal.SIGKILL
    assert codes[1 - rank] == LOST, said
    assert "another process of this run has ended" in said[1 - rank]
    assert "goes on from the last checkpoint" in said[1 - rank]
    codes, said = train(2, tmp_path / "many", "ipg")
    assert codes == [0, 0], said
    assert_same(tmp_path / "many", alone("ipg"))


# -- a network that the processes share --------------------------------------------------------------------------------

VIT = "model=small_vit"


def test_two_processes_share_a_network(train: Train, alone: Callable[[str], Path], tmp_path: Path) -> None:
    short = f"ipg,{VIT},epochs=1,steps=3"
    codes, said = train(2, tmp_path / "shared", f"{short},shard=true")
    assert codes == [0, 0], said
    assert_same(tmp_path / "shared", alone(short))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "count"),
    [
        *((f"erm,{VIT}", 2), (f"ipg,{VIT}", 4), ("ipg,selection=pairs,optimizer=sgd,weight_decay=0.01", 2)),
        *((f"ipg,{VIT},freeze=true", 2), ("joint,option.order=sum", 2), ("cggd", 2), ("groupdro", 4)),
        *((f"pair_contrastive,{VIT}", 2), ("jtt", 2)),
    ],
)
def test_processes_that_share_a_network_train_as_one_does(
    train: Train, alone: Callable[[str], Path], tmp_path: Path, method: str, count: int
) -> None:
    codes, said = train(count, tmp_path / "shared", f"{method},shard=true")
    assert codes == [0] * count, said
    assert_same(tmp_path / "shared", alone(method))
    codes, said = train(1, tmp_path / "shared", method)  # done: read back, whole
    assert codes == [0], said


@pytest.mark.slow
@pytest.mark.parametrize("method", [f"erm,{VIT}", f"ipg,{VIT}"])
def test_one_step_of_a_shared_network_equals_in_float32(
    train: Train, alone: Callable[[str], Path], tmp_path: Path, method: str
) -> None:
    method = (
        f"{method},epochs=1,steps=1,optimizer=sgd,learning_rate=0.1"  # Adam's first step takes any noise for a sign
    )
    codes, said = train(2, tmp_path / "shared", f"{method},shard=true")
    assert codes == [0, 0], said
    weights, expected = (
        load_checkpoint(folder / "model.safetensors") for folder in (tmp_path / "shared", alone(method))
    )
    assert {value.dtype for value in weights.values()} == {torch.float32}
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_line_that_is_moved_is_kept_of_a_shared_network(
    train: Train, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    method = f"erm,{VIT},decision=worst_group,selection=worst_group"
    codes, said = train(2, tmp_path / "shared", f"{method},shard=true")
    assert codes == [0, 0], said
    (weights, rows), (expected, expected_rows) = (outcome(folder) for folder in (tmp_path / "shared", alone(method)))
    torch.testing.assert_close(weights, expected, atol=1e-10, rtol=1e-10)
    for row, other in zip(rows, expected_rows, strict=True):
        assert row["offsets"] == pytest.approx(other["offsets"], abs=1e-10)


@pytest.mark.slow
def test_a_shared_network_goes_on_whole_and_a_whole_one_shared(
    train: Train, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = f"ipg,{VIT},epochs=4"  # of 12 iterations; processes may meet, and stop, only at the end of one
    shared = f"{whole},shard=true"
    for count, method, trouble in ((2, shared, ("SIGTERM", 1, 5)), (1, whole, ("SIGINT", 0, 14)),
                                   (2, shared, ("SIGTERM", 0, 17)), (2, whole, ("SIGINT", 0, 26))):  # fmt: skip
        codes, said = train(count, tmp_path / "many", method, *trouble)
        assert codes == [STOPPED] * count, said
    codes, said = train(4, tmp_path / "many", shared)
    assert codes == [0] * 4, said
    assert_same(tmp_path / "many", alone(whole))


@pytest.mark.slow
def test_a_shared_network_begins_again_as_a_whole_one_does(train: Train, tmp_path: Path) -> None:
    for count, method in ((1, f"ipg,{VIT}"), (2, f"ipg,{VIT},shard=true")):
        codes, said = train(count, tmp_path / str(count), method, "COLLAPSE", 0, 17)
        assert codes == [0] * count, said
        assert json.loads((tmp_path / str(count) / "result.json").read_text())["restarted"] == 1
    assert_same(tmp_path / "2", tmp_path / "1")


@pytest.mark.slow
def test_a_killed_process_ends_those_that_share_a_network_with_it(
    train: Train, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    began = time.monotonic()
    codes, said = train(2, tmp_path / "many", f"ipg,{VIT},shard=true", "SIGKILL", 1, 17)
    assert time.monotonic() - began < 60
    assert codes == [LOST, -signal.SIGKILL], said
    assert said[0].count("another process of this run has ended") == 1
    codes, said = train(2, tmp_path / "many", f"ipg,{VIT},shard=true")
    assert codes == [0, 0], said
    assert_same(tmp_path / "many", alone(f"ipg,{VIT}"))


LEAVES = """
import pathlib, sys
sys.path.insert(0, FOLDER)
import run
config = run.settings("ipg,model=small_vit,epochs=1,steps=2,shard=true")
with run.processes("cpu"):
    run.loop.train(config, run.materials(config))
left = sum("gloo" in task.read_text() for task in pathlib.Path("/proc/self/task").glob("*/comm"))
sys.stdout.write(f"left: {left}\\n")  # in one piece: two processes share the pipe
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_shared_network_leaves_no_threads_behind(tmp_path: Path) -> None:
    """Those of a process group that is left abort their process now and then."""
    script = tmp_path / "script.py"
    script.write_text(LEAVES.replace("FOLDER", repr(str(SCRIPT.parent))))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ran = subprocess.run(launcher, env=variables, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["left:", "0"] * 2


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ipg"]
SHORT = ["--size", "14", "--pairs", "6", "--held-out-pairs", "10", "--device", "cpu"]


def torchrun(*line: object) -> subprocess.CompletedProcess[str]:
    """`ipg LINE` by two processes, as a user starts them."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*TORCHRUN, *map(str, line)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)


@pytest.mark.slow
def test_torchrun_shards_in_bf16_and_other_commands_read_the_run(template: Template, tmp_path: Path) -> None:
    options = [*SHORT, "--epochs", "1", "--batch", "500", "--shard", "--model", "small_vit", "--precision", "bf16"]
    folder = tmp_path / "run"
    codes, said = by_ranks(template, 2, tmp_path, *MODULE, "train", *options, "--method", "dfr", "--output", folder)
    assert 0 not in codes
    assert all("method 'dfr' cannot train a network in shards: it fits the head anew" in text for text in said)
    assert not folder.exists()
    ran = torchrun("train", *options, "--output", folder)
    assert ran.returncode == 0, ran.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["processes"], result["config"]["shard"]) == (2, True)

    def alone(*line: object) -> str:
        log, out = tmp_path / "log", tmp_path / f"{line[0]}.out"
        assert template.start(*MODULE, *line, log=log, out=out).wait(LIMIT_SECONDS) == 0, log.read_text()
        return out.read_text()

    (measured,) = json.loads(alone("evaluate", folder, "--json")).values()
    assert measured["average"] == pytest.approx(result["metrics"]["average"], abs=0.002)  # in batches of other sizes
    alone("export", folder, "--output", tmp_path / "out", "--format", "torch")


@pytest.mark.slow
def test_torchrun_trains_and_one_process_speaks(template: Template, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    line = ["train", *SHORT, "--epochs", "1", "--output", folder, "--batch"]
    ran = torchrun(*line, 500)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("epoch 1/1") == 1
    assert ran.stdout.count("The run is in") == 1
    assert json.loads((folder / "result.json").read_text())["processes"] == 2
    codes, said = by_ranks(template, 2, tmp_path, *MODULE, *line, 400)  # other settings, same folder
    assert 0 not in codes
    assert "holds another run" in "".join(said)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ranks_save_and_end_when_torchrun_is_killed(tmp_path: Path) -> None:
    """They would train on unseen, and hold the folder of the run."""
    options = [*SHORT, "--epochs", "200", "--batch", "250", "--steps", "10"]
    folder, log = tmp_path / "run", tmp_path / "log"
    command = [*TORCHRUN, "train", *options, "--output", str(folder)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with log.open("w") as said:
        launcher = subprocess.Popen(command, env=variables, stdout=said, stderr=said)
        try:
            wait_for(lambda: (folder / "checkpoint.safetensors").exists())
            ranks = children(launcher.pid)
        finally:
            launcher.kill()
            launcher.wait()
    try:
        assert len(ranks) == 2
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), seconds=50)
    finally:
        for pid in ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "run the same command again to go on" in log.read_text()
    assert not (folder / "done").exists()
    with FileLock(folder / "lock", timeout=0):  # nobody holds it
        pass


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are still there."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(place.name))
    return found


# -- a team of one ---------------------------------------------------------------------------------------------------


def test_a_process_alone_decides_for_itself() -> None:
    team = Team()
    assert (team.size, team.index, team.leads) == (1, 0, True)
    assert team.agree(True, False) == (True, False)
    assert team.agree(False, True, step=3) == (False, True)
    assert team.first(lambda: 3) == 3
    rows, model = torch.arange(5), torch.nn.Linear(2, 2)
    assert team.rows(rows) is rows
    assert team.replica(model, torch.device("cpu"), batch_norm="train") is model
    with team.together(), pytest.raises(RuntimeError, match="gloo"):
        raise RuntimeError("gloo")


def test_a_lost_process_is_told_of_once() -> None:
    """The loop says so, and so does the command around it."""
    with pytest.raises(ProcessLostError) as told, _clear_loss(), _clear_loss():
        raise RuntimeError("gloo: Connection closed by peer")
    assert str(told.value).count("another process of this run has ended") == 1


def test_without_torchrun_no_process_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with processes("cpu") as first:
        assert first
        assert not torch.distributed.is_initialized()
