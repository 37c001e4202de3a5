"""The folder of a run: its configuration, its metrics by epoch, one checkpoint, its result, a `done` marker.

The marker holds the digests of what the finished run wrote, so that damage is told from results. A run that went wrong
leaves `failure.json` until it goes on.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from torch import Tensor

from ipg.config import EARLIER, RunConfig
from ipg.data.names import is_own
from ipg.data.reading import Reading
from ipg.files import jsonl, leftovers, make_private, parse_json, write_json, write_jsonl
from ipg.methods import method_class
from ipg.methods.options import option_defaults
from ipg.models.weights import some
from ipg.training.checkpoint import load_checkpoint, save_checkpoint
from ipg.training.rows import wrong_in_failure, wrong_in_rows
from ipg.words import listed

__all__ = [
    "FILES", "FIRST_STAGE", "MODEL", "FolderError", "Record", "RunFolder", "read_json", "read_jsonl", "same_setting",
]  # fmt: skip


class FolderError(ValueError):
    """A folder that does not belong to this run, or is in use."""


MODEL = "model.safetensors"
"""What the trained weights are called in it."""
FIRST_STAGE = "first_stage"
"""The folder inside a run's own in which the run that comes before it lives."""
FILES = ("data", "pairs", "weights", "start", "masks")
"""Settings that may name files, which have several names: what they hold is compared by its digests."""
CONTENT = {
    "table": "images or labels",
    "held_out_pairs": "held-out pairs",
    "network": "the layers of the network",
}
"""What digests are of, in words, where that is not their name."""


class Record(NamedTuple):
    """What the `config.json` of a run says; a part that was not written yet is empty."""

    config: dict[str, Any]
    """The settings, flat."""
    data: dict[str, Any]
    """Digests of what it is trained on."""
    origin: dict[str, Any]
    """Where it was begun, on what, and what its classes and images are."""


class RunFolder:
    """Files of one run. Everything in it is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.json", path / "metrics.jsonl"
        self.checkpoint, self.model = path / "checkpoint.safetensors", path / MODEL
        self.result, self.done = path / "result.json", path / "done"
        self.failure = path / "failure.json"

    @contextmanager
    def claim(self, identity: Mapping[str, Mapping[str, Any]], origin: Mapping[str, Any]) -> Iterator[None]:
        """Hold the folder for one run, made new or already of the same `identity` (configuration and data).

        Raises:
            FolderError: another process holds it, or it is the folder of another run.
        """
        make_private(self.path)
        self._check(identity)  # before the lock, so that a folder of something else is left as it is
        lock = FileLock(self.path / "lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise FolderError(f"{self.path} is in use by another process") from None
        try:
            is_new = self._check(identity)
            for leftover in self._leftovers():
                leftover.unlink(missing_ok=True)
            if is_new:
                write_json(self.config, {**identity, **origin})
            yield
        finally:
            lock.release()

    def _leftovers(self) -> list[Path]:
        """What killed processes have left of files they were writing."""
        files = (self.config, self.metrics, self.checkpoint, self.model, self.result, self.done, self.failure)
        return [leftover for file in files for leftover in leftovers(file)]

    def _check(self, identity: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether the folder still has to be told which run it holds; FolderError where that is another one."""
        if not self.config.exists():
            own = {
                "lock",
                "report.html",
                FIRST_STAGE,
                self.failure.name,
                *(leftover.name for leftover in self._leftovers()),
            }
            if strangers := [entry.name for entry in self.path.iterdir() if entry.name not in own]:
                raise FolderError(
                    f"{self.path} is not empty and not a run folder (it holds {strangers[0]}); name another"
                )
            return True
        try:
            old = read_json(self.config)
        except FolderError as error:
            raise FolderError(f"{error}. Name another folder, or delete this one.") from None
        if not all(isinstance(old.get(part), dict) for part in identity):
            raise FolderError(f"{self.config} is not of a run; name another folder")
        now = identity["config"]
        before = RunConfig().flat() | EARLIER | _options(now) | old["config"]  # one that is newer had its default
        there = origin.get("started_in") if isinstance(origin := old.get("origin"), dict) else None
        keys = [key for key in {**old["config"], **now} if not same_setting(key, before.get(key), there, now.get(key))]
        differing = [f"{key} was {before.get(key)!r} and is now {now.get(key)!r}" for key in keys]
        if not differing and old["data"] != identity["data"]:
            then, now = old["data"], identity["data"]
            changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
            differing = [f"{listed(CONTENT.get(key, key) for key in changed)} have changed since it began"]
        if differing and (self.checkpoint.exists() or self.done.exists()):
            further = f" To train it further, go on from it in another: --from {self.path}."
            raise FolderError(
                f"{self.path} holds another run: {'; '.join(differing)}. Name another folder, or delete this one."
                + (further if keys == ["epochs"] else "")
            )
        return bool(differing)  # a run that never got anywhere: nothing is lost

    def settings(self) -> dict[str, Any] | None:
        """The settings of the run that it holds; None where there is none, or one that never got anywhere."""
        got_on = self.checkpoint.exists() or self.done.exists() or (self.path / FIRST_STAGE).exists()
        with suppress(FolderError):  # which `claim` tells of
            return self.recorded().config if got_on else None
        return None

    def recorded(self) -> Record:
        """What is written of the run that it holds.

        Raises:
            FolderError: it holds none, or what is written is damaged, or of something else.
        """
        if not self.config.exists():
            raise self.no_run()
        with suppress(FolderError):
            stored = read_json(self.config)
            found = Record(*(stored.get(part, {}) for part in Record._fields))
            if found.config and _is_of_a_run(found):
                return found
        raise self.unreadable()

    def configured(self) -> tuple[RunConfig, Record]:
        """The configuration of the run that it holds, and what else is written of it.

        Raises:
            FolderError: as `recorded`, and where a setting is none that a run has.
        """
        known = {field.name for field in fields(RunConfig)}
        record = self.recorded()
        flat = dict(record.config)
        try:
            options = {name: flat.pop(name) for name in list(flat) if name not in known}  # the flat form holds them too
            values = {**EARLIER, **flat, "options": options, "split_seed": Reading.kept(flat).split_seed}
            return RunConfig.from_mapping(values), record
        except (TypeError, ValueError):
            raise self.unreadable() from None

    def logged(self) -> list[dict[str, Any]]:
        """The rows of its metrics, finished or not; none where no epoch has ended.

        Raises:
            FolderError: a row is none that a run writes; the message names it and says how to get the file back.
        """
        done = self.done.exists()
        if done:
            self.verify()
        if not self.metrics.exists() and not done:
            return []
        try:
            rows = read_jsonl(self.metrics, unfinished=not done)
        except OSError:
            raise self.damaged(self.metrics) from None
        except FolderError as error:
            raise FolderError(f"{error}. {self._anew(done=done)}") from None
        if wrong := wrong_in_rows(rows):
            raise FolderError(f"{self.metrics} is damaged: {wrong}. {self._anew(done=done)}")
        return rows

    def _anew(self, *, done: bool) -> str:
        """How to get back a file that a run has written."""
        first = f"Delete {self.done} and run" if done else "Run"
        return f"{first} the command that trained it again: it writes the file anew from its checkpoint."

    def failed(self) -> dict[str, Any] | None:
        """What is said of the end of a run that went wrong; None of all others.

        Raises:
            FolderError: it is nothing that a run says.
        """
        if not self.failure.exists():
            return None
        remedy = f"Delete {self.failure}: it only says how the run ended."
        try:
            said = read_json(self.failure)
        except FolderError as error:
            raise FolderError(f"{error}. {remedy}") from None
        if wrong := wrong_in_failure(said):
            raise FolderError(f"{self.failure} is damaged: {wrong}. {remedy}")
        return said

    def save(self, state: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the checkpoint, then the metrics it stands for."""
        save_checkpoint(self.checkpoint, state)
        self.write_metrics(rows)

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a row an epoch; those after the last checkpoint are written again when the run goes on from there."""
        write_jsonl(self.metrics, rows)

    def mend_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write them where the file holds others: a kill, or a hand, has parted it from the checkpoint."""
        with suppress(OSError, ValueError):
            if self.metrics.read_text(encoding="utf-8") == jsonl(rows):
                return
        self.write_metrics(rows)

    def fail(self, error: Exception, *, step: int, restarts: int = 0) -> None:
        """Leave word of what ended the run; where even that cannot be written, the error itself has to do."""
        said = {"kind": type(error).__name__, "message": str(error), "step": step}
        with suppress(OSError):
            write_json(self.failure, said | ({"restarts": restarts} if restarts else {}))

    def go_on(self) -> None:
        """Take back what an earlier attempt said of its end."""
        self.failure.unlink(missing_ok=True)

    def load(self) -> Any | None:
        """The last checkpoint, on the CPU; None where there is none yet."""
        return load_checkpoint(self.checkpoint) if self.checkpoint.exists() else None

    def finish(self, weights: dict[str, Tensor], rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
        """Write the kept weights, all metrics and the result; the `done` marker comes last."""
        save_checkpoint(self.model, weights)
        self.write_metrics(rows)  # again: a kill may have come between the last checkpoint and its metrics
        write_json(self.result, result)
        write_json(self.done, {file.name: _digest(file) for file in self._kept()})

    def finished(self) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Any]] | None:
        """Weights, metrics and result of a run that is done; None where it is not.

        Raises:
            FolderError: one of the files is damaged or missing; the message names it and says how to get it back.
        """
        if not self.done.exists():
            return None
        self.verify()
        weights = self._read(self.model, load_checkpoint)
        return weights, self._read(self.metrics, read_jsonl), self._read(self.result, read_json)

    def no_run(self) -> FolderError:
        """That no run is here, and where some are or come from."""
        inside = sorted(str(found.parent) for found in self.path.glob("*/config.json"))
        there = f"it holds runs, name those: {some(inside)}" if inside else "`ipg train` makes one"
        return FolderError(f"{self.path} is not the folder of a run: it has no config.json; {there}")

    def unfinished(self) -> FolderError:
        """That a run which is not done has no results, and what to do."""
        if self.failure.exists():
            return FolderError(f"the run in {self.path} went wrong; `ipg doctor {self.path}` says why, and what to do")
        return FolderError(f"the run in {self.path} is not finished; the command that began it goes on with it")

    def unreadable(self) -> FolderError:
        """That what is written of the run is damaged, and what to do."""
        return FolderError(f"{self.config} is damaged or not of a run; train again in another folder")

    def verify(self) -> None:
        """FolderError where a file that is there is not what the finished run wrote.

        An empty marker is of a time before there were digests, and says nothing.
        """
        try:
            digests = parse_json(self.done.read_text(encoding="utf-8") or "{}")
            wrong = [file for file in self._kept() if file.is_file() and digests.get(file.name) != _digest(file)]
        except (OSError, ValueError, AttributeError):
            raise self.damaged(self.done) from None
        if digests and wrong:
            raise self.damaged(wrong[0])

    def _kept(self) -> tuple[Path, ...]:
        """What a finished run is known by."""
        return self.config, self.metrics, self.result, self.model

    def _read(self, file: Path, reader: Callable[[Path], Any]) -> Any:
        try:
            return reader(file)
        except (OSError, ValueError):
            raise self.damaged(file) from None

    def damaged(self, file: Path, why: str = "") -> FolderError:
        """The error for a file of a finished run that cannot be used."""
        if file == self.config:
            return FolderError(f"{file} is damaged. Name another folder, or delete this one and train again.")
        return FolderError(f"{file} is damaged{f': {why}' if why else ' or missing'}. {self._anew(done=True)}")


def same_setting(key: str, before: Any, there: object, now: Any) -> bool:
    """Whether a setting is as it was; of files also where `now`, seen from here, is what `before` was from `there`."""
    if before == now or key not in FILES or not (isinstance(before, str) and isinstance(now, str)):
        return bool(before == now)
    if key == "data" and not (is_own(before) and is_own(now)):
        return False
    parts = [re.split("([:@])", text) if key == "start" else [text] for text in (before, now)]  # timm:resnet50@FILE
    return [_place(part, there) for part in parts[0]] == [_place(part, None) for part in parts[1]]


def _place(text: str, start: object) -> str:
    """Where the file `text` lies, seen from the folder `start` or from here; as it is named where it is nowhere."""
    file = Path(start if isinstance(start, str) else "", Path(text).expanduser())
    return os.path.realpath(file) if text and file.exists() else text


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_jsonl(path: Path, *, unfinished: bool = False) -> list[dict[str, Any]]:
    """The rows of a file with one JSON object a line: at least one, unless the run is `unfinished`.

    A run that was stopped within its first epoch has none.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except ValueError as error:
        raise FolderError(f"{path} is damaged and cannot be read ({error})") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line) if line else {}
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise FolderError(f"{path} is damaged and cannot be read (row {number} is no JSON object)")
        if line:
            rows.append(row)
    if not (rows or unfinished):
        raise FolderError(f"{path} is damaged: it is empty; expected a JSON object a line")
    return rows


def _is_of_a_run(record: Record) -> bool:
    """Whether what is there is of the kinds that a run writes."""
    if not all(isinstance(part, dict) for part in record):
        return False
    classes, shape = record.origin.get("classes", []), record.origin.get("shape", [1, 1, 1])
    if not isinstance(classes, list) or not isinstance(shape, list) or len(shape) != 3:
        return False
    texts = [*classes, record.config.get("data", ""), record.config.get("method", "")]
    texts += [record.origin.get(name) or "" for name in ("data_path", "network")]
    return all(isinstance(text, str) for text in texts) and all(isinstance(side, int) for side in shape)


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the method, with their defaults."""
    return option_defaults(method_class(config["method"])) if "method" in config else {}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; FolderError says what is wrong with it."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"there is no {path}") from None
    except ValueError as error:
        raise FolderError(f"{path} is damaged and cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise FolderError(f"{path} is damaged: expected an object, got a {type(value).__name__}")
    return value
