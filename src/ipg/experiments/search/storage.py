"""Where a search keeps its trials, and who may touch them: a file beside the results, or a PostgreSQL database.

The file is Optuna's journal: operations appended one a line, so that a kill loses at most the last of them, and safe
where SQLite is not, since it needs no byte-range locks, which network file systems often lack. A database is for many
machines without a common file system.

Both come with two kinds of locks that vanish with the process that has them, whatever ended it: one for the turn to
hand out a trial, and one for each trial under way. A trial that is under way and held by nobody is an orphan, to be
taken up again. For a file they are those of the operating system, for PostgreSQL those of the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from filelock import FileLock, Timeout

from ipg.experiments.search.postgres import EXTRA, open_postgres

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["JOURNAL", "FileHolds", "Holds", "begun", "open_storage", "require_optuna"]

JOURNAL = "search.journal"
"""The file of a search in its folder."""


class Holds(Protocol):
    """Locks of one search, freed by whoever watches over processes when theirs ends."""

    def turn(self) -> Any:
        """A block in which no other process of the search is inside this one."""
        ...

    def hold(self, number: int) -> bool:
        """Take a trial; False where somebody has it."""
        ...

    def release(self, number: int) -> None:
        """Let go of a trial."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


def require_optuna() -> Any:
    """The module Optuna, quiet; a ValueError says how to install it."""
    try:
        import optuna
    except ImportError:
        raise ValueError(f"a search needs Optuna, which is not installed: {EXTRA}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(address: str | None, folder: Path, name: str) -> tuple[BaseStorage, Holds]:
    """The storage of the search called `name`, and its locks.

    Args:
        address: of a PostgreSQL database, `postgresql://USER:PASSWORD@HOST/DATABASE`; a file in `folder` if None.
        folder: of the search.
        name: of the search.

    Raises:
        ValueError: the database cannot be had; the message does not give its password away.
    """
    require_optuna()
    return _open_file(folder) if address is None else open_postgres(address, name)


def begun(storage: BaseStorage) -> list[str]:
    """The names of the searches that a storage knows."""
    return [study.study_name for study in storage.get_all_studies()]


# -- a file ------------------------------------------------------------------------------------------------------------


def _open_file(folder: Path) -> tuple[BaseStorage, Holds]:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal, locks = folder / JOURNAL, folder / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    holds = FileHolds(locks)
    with holds.turn():
        _mend(journal)
    lock: Any = _JournalLock(locks / "journal.lock")
    return JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)), holds


class _JournalLock:
    """The journal's lock as Optuna calls it. Its own are files that outlive a killed process by half a minute."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


def _mend(journal: Path) -> None:
    """Cut off a last line that a full disk or a lost machine has left unfinished."""
    text = journal.read_bytes() if journal.exists() else b""
    if text and not text.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


class FileHolds:
    """Locks of the operating system, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[int, FileLock] = {}

    def turn(self) -> FileLock:
        """A block in which no other process of the search is inside this one."""
        return FileLock(self.folder / "turn.lock")

    def hold(self, number: int) -> bool:
        """Take a trial; False where somebody has it."""
        if number in self._held:
            return False
        lock = FileLock(self.folder / f"{number}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        self._held[number] = lock
        return True

    def release(self, number: int) -> None:
        """Let go of a trial."""
        if (lock := self._held.pop(number, None)) is not None:
            lock.release()

    def close(self) -> None:
        """Let go of everything."""
        for number in list(self._held):
            self.release(number)
