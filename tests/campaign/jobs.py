"""What is killed and starved: small real commands, what they leave when nobody disturbs them, and what they say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaign import world
from campaign.database import Server, program
from campaign.forked import PROGRAM, Running, preload, start
from campaign.same import difference

from ipg.training.checkpoint import load_checkpoint

__all__ = ["JOBS", "Job", "Place", "prepare"]

IMAGES, MANY = 48, 160
"""Twice as many images are trained on, and decoded."""
PATIENCE = 120
"""Seconds in which any of the commands ends."""
TABLE, PAIRS = "../../seeds/photos.csv", "../../seeds/pairs.csv"
SHORT = (
    "--size",
    "16",
    "--model",
    "small_cnn",
    "--device",
    "cpu",
    "--batch",
    "8",
    "--pairs",
    PAIRS,
    "--pair-batch",
    "8",
)
TRAIN = ("train", "--data", TABLE, *SHORT, "--epochs", "12", "--output", "run")
SEARCH = (
    "search",
    "--data",
    TABLE,
    *SHORT,
    "--epochs",
    "4",
    "--trials",
    "4",
    "--workers",
    "1",
    "--name",
    "mine",
    "--output",
    "search",
)
STUDY = f"""\
dataset = "{TABLE}"
seeds = 2
[base]
size = 16
model = "small_cnn"
epochs = 12
batch = 8
pairs = "{PAIRS}"
pair_batch = 8
[[arm]]
method = "erm"
protocol = "paper"
[[arm]]
method = "ipg"
protocol = "tuned"
config = {{ alpha = 0.2, every = 4 }}
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ipg")


Found = Callable[[Path], list[str]]


def _run_found(folder: Path) -> list[str]:
    """What a command that trains has to say of the run that it finds in `folder`."""
    run = folder / "run"
    if (run / "done").exists():
        return ["nothing to do"]
    if (run / "checkpoint.safetensors").exists():
        return [f"from iteration {_step(run):,} of"]
    if (first := run / "first_stage" / "checkpoint.safetensors").exists() and not (first.parent / "done").exists():
        return [f"first stage, from iteration {_step(first.parent):,} of"]
    return []


def _step(run: Path) -> int:
    return int(load_checkpoint(run / "checkpoint.safetensors")["progress"]["step"])


def _pairs_found(folder: Path) -> list[str]:
    there = len(list((folder / "pairs").glob("images/*.png")))
    return [f"{there} of 200 pairs are there already"] if there else []


def _trials_found(results: str, title: str, *, behind: int = 0) -> Found:
    """Of trials: how many are done, and that those under way go on; a storage may be so many rows behind."""

    def found(folder: Path) -> list[str]:
        rows = folder / results / "trials.jsonl"
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        done = {json.loads(line)["key"] for line in lines}
        counts = "|".join(str(count) for count in range(len(done) - behind, len(done) + 1))
        runs = [file.parent for file in (folder / results).glob("trials/*/run/checkpoint.safetensors")]
        under_way = [run for run in runs if run.parent.name not in done and not (run / "done").exists()]
        return [f"{title}: 4 trials, ({counts}) done", *["goes on in epoch"][: len(under_way)]]

    return found


@dataclass(frozen=True)
class Job:
    """A command that a user leaves running."""

    line: Sequence[str]
    found: Found = lambda folder: []
    """What the command has to say, as patterns, when it finds in a folder what an earlier one has left."""
    launcher: Sequence[str] = ()
    """Started by this program; where there is none, also as a fork of one that has everything imported."""
    files: dict[str, str] = field(default_factory=dict)
    """What has to be in its folder."""
    needs: Sequence[str] = ()
    """Jobs that have to be done before."""
    database: bool = False
    """Whether it needs a server."""
    whole: str = ""
    """What it says at the end where all is done; nothing where its exit status says it."""


JOBS = {
    "ipg": Job((*TRAIN, "--method", "ipg", "--every", "4", "--margin", "0.5x"), _run_found),
    "two stages": Job((*TRAIN, "--method", "jtt", "--option", "first_epochs=6"), _run_found),
    "joint": Job((*TRAIN, "--method", "joint", "--every", "2", "--selection", "pairs"), _run_found),
    "cache": Job(("data", "check", "../../seeds/many/photos.csv", "--size", "128")),
    "pairs": Job(
        ("pairs", "build", "recolored", "--data", "colored_fashion", "--count", "200", "--output", "pairs"),
        _pairs_found,
    ),
    "report": Job(("report", "../../reference/ipg/run", "--output", "report.html", "--device", "cpu"), needs=("ipg",)),
    "runner": Job(
        ("study", "study.toml", "--results", "results", "--workers", "2", "--device", "cpu"),
        _trials_found("results", "study"),
        launcher=PROGRAM,
        files={"study.toml": STUDY},
        whole="4 of 4 trials done|4 trials, 4 done",
    ),
    "search": Job(SEARCH, _trials_found("search", "mine", behind=1)),
    "database": Job(SEARCH, _trials_found("search", "mine", behind=1), database=True),
    "ranks": Job((*TRAIN, "--method", "ipg", "--every", "4"), _run_found, launcher=TORCHRUN),
}
"""All of them, by what they do."""


@dataclass
class Place:
    """Where the commands are started, and what they left when nobody disturbed them."""

    root: Path
    server: Server | None
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each takes undisturbed, where that is known."""

    def folder(self, name: str, job: str) -> Path:
        """A fresh folder for a job; all are equally deep, so that the same relative paths lead to the data."""
        made = self.root / name / job
        made.mkdir(parents=True)
        if self.server is not None and JOBS[job].database:
            self.server.clear()
        for file, text in JOBS[job].files.items():
            (made / file).write_text(text, encoding="utf-8")
        return made

    def begin(self, job: str, folder: Path, *, real: bool = False, first: Callable[[], object] = os.setsid) -> Running:
        """Start the command of a job in its folder."""
        kind = JOBS[job]
        launcher = kind.launcher or (PROGRAM if real else ())
        return self.run(self.line(job), folder, launcher, first)

    def line(self, job: str) -> Sequence[str]:
        """The command of a job, with the address of the database where it takes one."""
        line = JOBS[job].line
        if self.server is None or not JOBS[job].database:
            return line
        return (*line, "--storage", self.server.address)

    def run(
        self, line: Sequence[str], folder: Path, launcher: Sequence[str] = (), first: Callable[[], object] = os.setsid
    ) -> Running:
        """Start any command there."""
        logs = self.root / "logs"
        logs.mkdir(exist_ok=True)
        environment = {"IPG_CACHE": str(folder / "cache"), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        return start(line, folder=folder, logs=logs, environment=environment, launcher=launcher, first=first)

    def jobs(self) -> list[str]:
        """Those that can be tried here."""
        return [name for name, job in JOBS.items() if self.server is not None or not job.database]

    def reference(self, job: str) -> Path:
        """What the job leaves when nobody disturbs it; done when it is asked for first."""
        made = self.root / "reference" / job
        if not made.exists():
            for needed in JOBS[job].needs:
                self.reference(needed)
            ending = self.begin(job, self.folder("reference", job)).wait(PATIENCE)
            if ending is None or ending.code != 0:
                raise RuntimeError(f"{job} fails undisturbed: {ending}")
            self.seconds[job] = ending.seconds
        return made

    def compare(self, job: str, folder: Path, part: str = "") -> str | None:
        """What differs from what the job left undisturbed, there or in a part of it."""
        return difference(folder / part, self.reference(job) / part)


def prepare(folder: Path) -> Place:
    """Make the data, import the program, and start a server where there is one."""
    (folder / "seeds" / "many").mkdir(parents=True)
    world.pictures(folder / "seeds", IMAGES)
    world.pictures(folder / "seeds" / "many", MANY)
    preload()
    server = None
    if program("initdb") and program("postgres"):
        server = Server(folder / "pg")
        server.start()
    return Place(folder, server)
