"""What a study keeps on disk, safe with any number of processes at work on it.

    <results>/trials.jsonl              a row a finished trial and split that it reports: the results proper
    <results>/trials/<key>/.lock        held by whoever runs the trial; the operating system frees it when that dies
    <results>/trials/<key>/run/         the run: with its checkpoint until the row is written, afterwards a light record
                                        (configuration, metrics by epoch) that `ipg doctor` reads
    <results>/trials/<key>/error.txt    the traceback of the last attempt, where that failed

The folder `trials` holds nothing that a row needs: without it, trials under way begin anew and that is all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ipg.files import make_private, parse_json, sweep, write_text

__all__ = ["TIMES", "Store", "read_rows"]

TIMES = "times"
"""The folder, among those of studies, of the same studies run again for their seconds."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in a `trials.jsonl`; none where there is no file. A line cut by a kill is left out."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [row for line in lines if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        row = parse_json(line.decode("utf-8", "replace"))
        return row if isinstance(row, dict) else None
    return None


class Store:
    """The rows of a study, and the folders of its trials.

    Where the `split` that the study reports is given, rows of others do not count, nor do runs that ended with others.
    """

    def __init__(self, results: Path, split: str | None = None) -> None:
        self.rows, self.trials, self.split = results / "trials.jsonl", results / "trials", split
        self._keys: set[str] = set()
        self._read = 0

    # -- rows ----------------------------------------------------------------------------------------------------

    def done(self) -> set[str]:
        """The keys of the trials that have a row; reads only what has been added since it was last asked."""
        with suppress(FileNotFoundError), self.rows.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._read:  # somebody has taken rows out
                self._keys, self._read = set(), 0
            file.seek(self._read)
            for line in file:
                if (row := _row(line)) is not None and isinstance(row.get("key"), str) and self._counts(row):
                    self._keys.add(row["key"])
                if line.endswith(b"\n"):
                    self._read += len(line)
        return self._keys

    def _counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of the store's split; one that does not say is."""
        return self.split is None or row.get("split", self.split) == self.split

    def finish(self, row: Mapping[str, Any]) -> None:
        """Keep the row of a trial that is held, unless there is one, and put away what it no longer needs."""
        self.trials.mkdir(parents=True, exist_ok=True)
        with FileLock(self.trials / ".lock"):
            if row["key"] not in self.done():
                _append(self.rows, row)
        self.error_file(row["key"]).unlink(missing_ok=True)
        sweep(self.error_file(row["key"]).parent)
        self._slim(row["key"])

    # -- trials --------------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Hold a trial while the block lasts; False where another process holds it."""
        folder = self.trials / key
        make_private(folder)  # a run of its own, as any other
        lock = FileLock(folder / ".lock")
        with suppress(Timeout):
            lock.acquire(timeout=0)
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def is_held(self, key: str) -> bool:
        """Whether some process is at the trial now."""
        file = self.trials / key / ".lock"
        if not file.exists():
            return False
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
        return False

    def run_folder(self, key: str) -> Path:
        """Where the run of a trial that is held lives, to go on with or to begin in.

        A run that went wrong by itself begins anew, since its checkpoint may be as wrong, and so do one whose row was
        taken out and one that ended with another split evaluated; the first stage counts as the run does.
        """
        run = self.trials / key / "run"
        if not self._goes_on(run):
            shutil.rmtree(run)
        return run

    def has_begun(self, key: str) -> bool:
        """Whether a trial that nobody holds has a checkpoint that its next attempt goes on from."""
        run = self.trials / key / "run"
        saved = any(name.endswith(".safetensors") for _, _, names in os.walk(run) for name in names)
        return saved and self._goes_on(run)

    def _goes_on(self, run: Path) -> bool:
        """Whether the next attempt goes on with what a folder holds."""
        for _, _, names in os.walk(run):
            if "failure.json" in names or ("done" in names and "model.safetensors" not in names):
                return False
        return self._tells(run)

    def epochs(self, key: str) -> int:
        """How many epochs a trial that is under way has behind it; those of a first stage are none."""
        with suppress(FileNotFoundError):
            return (self.trials / key / "run" / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def _tells(self, run: Path) -> bool:
        """Whether a run that has ended was evaluated on the store's split; one under way can still be."""
        if self.split is None or not (run / "done").exists():
            return True
        return all(self.split in row for row in read_rows(run / "metrics.jsonl")[-1:])

    def error_file(self, key: str) -> Path:
        """Where the traceback of a failed attempt is."""
        return self.trials / key / "error.txt"

    def fail(self, key: str, text: str) -> None:
        """Keep what ended an attempt."""
        write_text(self.error_file(key), text)

    def tidy(self) -> None:
        """Put away what a runner left that was killed right after a row was written."""
        keys = {file.relative_to(self.trials).parts[0] for file in self.trials.glob("*/run/**/*.safetensors")}
        for key in keys & self.done():
            with self.claim(key) as mine:
                if mine:
                    self._slim(key)

    def _slim(self, key: str) -> None:
        """Delete weights and checkpoints, those of the first stage too."""
        for weights in (self.trials / key / "run").rglob("*.safetensors"):
            weights.unlink(missing_ok=True)


def _append(file: Path, row: Mapping[str, Any]) -> None:
    """Add a row as a line of its own, also after one that was cut; on the disk when this returns, or not there."""
    with file.open("a+b", buffering=0) as out:
        size = out.seek(0, os.SEEK_END)
        left = memoryview((json.dumps(row, ensure_ascii=False) + "\n").encode())
        if size:
            out.seek(-1, os.SEEK_END)
            if out.read(1) != b"\n":
                out.write(b"\n")
        try:
            while left:
                left = left[out.write(left) :]
            os.fsync(out.fileno())
        except OSError:
            out.truncate(size)
            raise
