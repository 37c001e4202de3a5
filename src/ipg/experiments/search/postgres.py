"""A search in a PostgreSQL database: its locks, and errors that keep its credentials to themselves.

The locks are advisory locks of the session. The server frees them when the connection is gone, and asks a silent client
for a sign of life after half a minute.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage
    from sqlalchemy import Connection, Engine

__all__ = ["EXTRA", "PostgresHolds", "mask", "open_postgres", "speaking_clearly"]

EXTRA = "pip install 'invariance-pair-guidance[search]'"
KEEPALIVE = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
"""Seconds of silence, seconds between questions, and unanswered questions after which the server gives a client up."""
CONNECT_SECONDS = 10


def mask(address: str) -> str:
    """The address of a database without who connects to it, and without options: `postgresql://host:5432/name`."""
    scheme, slashes, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if slashes else "…"


@contextmanager
def speaking_clearly(address: str | None, remedy: str = "") -> Iterator[None]:
    """Let trouble with the database at `address` end in one line that gives nothing of its credentials away.

    The line ends with the `remedy`.
    """
    if address is None:  # a search in a file, which needs nothing of databases
        yield
        return
    import sqlalchemy.exc
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        cause = getattr(cause, "orig", None) or cause
        raise ValueError(f"the database {mask(address)} cannot be used: {_unsaid(cause, address)}{remedy}") from None


def _unsaid(error: BaseException, address: str) -> str:
    """The first line of an error, without the credentials of `address`."""
    line = re.sub(r'(user|role) "[^"]*"', r"\1", (str(error).splitlines() or [type(error).__name__])[0])
    user = address.partition("://")[2].rpartition("@")[0]
    options = parse_qs(address.partition("?")[2])
    for secret in (address, user, user.partition(":")[2], *options.get("password", ())):
        for form in filter(None, (secret, unquote(secret))):
            line = line.replace(form, "***")
    return line


def open_postgres(address: str, name: str) -> tuple[BaseStorage, PostgresHolds]:
    """The database at `address`, and the locks of the search called `name`."""
    if not address.startswith(("postgresql://", "postgresql+psycopg://")):
        raise ValueError(
            f"--storage {mask(address)}: expected postgresql://USER@HOST/DATABASE, or nothing for a file in the folder "
            f"of the search"
        )
    if importlib.util.find_spec("psycopg") is None:
        raise ValueError(f"a search in PostgreSQL needs psycopg, which is not installed: {EXTRA}")
    import sqlalchemy
    from optuna.storages import RDBStorage

    options: dict[str, Any] = {"pool_pre_ping": True, "connect_args": {"connect_timeout": CONNECT_SECONDS}}
    with speaking_clearly(address), ExitStack() as stack:
        try:
            url = sqlalchemy.make_url(address).set(drivername="postgresql+psycopg")
        except ValueError as error:
            raise ValueError(f"--storage {mask(address)} is no address: {_unsaid(error, address)}") from None
        holds = PostgresHolds(sqlalchemy.create_engine(url, **options), name)
        stack.callback(holds.close)
        with holds.turn(everyone=True):  # or two who come first would both make the tables
            storage = RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=options)
        holds.storage = storage
        stack.pop_all()
    return storage, holds


class PostgresHolds:
    """Advisory locks of one session; the server frees them when the connection is gone."""

    def __init__(self, engine: Engine, name: str) -> None:
        from sqlalchemy import text

        self._engine, self._text = engine, text
        self._search = int.from_bytes(hashlib.sha256(f"ipg search {name}".encode()).digest()[:4], "big", signed=True)
        self._held: set[int] = set()
        self.storage: RDBStorage | None = None
        """What is closed with the locks."""
        self._connection: Connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        for setting, value in KEEPALIVE.items():
            self._connection.execute(text(f"SET {setting} = {value}"))

    def _ask(self, function: str, *keys: int) -> Any:
        query = self._text(f"SELECT {function}(CAST(:search AS int), CAST(:number AS int))")
        return self._connection.execute(query, dict(zip(("search", "number"), keys, strict=True))).scalar()

    @contextmanager
    def turn(self, *, everyone: bool = False) -> Iterator[None]:
        """A block in which no other process of the search, or of any search, is inside this one."""
        keys = (0, 0) if everyone else (self._search, -1)
        self._ask("pg_advisory_lock", *keys)
        try:
            yield
        finally:
            self._ask("pg_advisory_unlock", *keys)

    def hold(self, number: int) -> bool:
        """Take a trial; False where somebody has it."""
        if number in self._held or not self._ask("pg_try_advisory_lock", self._search, number):
            return False
        self._held.add(number)
        return True

    def release(self, number: int) -> None:
        """Let go of a trial."""
        if number in self._held:
            self._held.remove(number)
            self._ask("pg_advisory_unlock", self._search, number)

    def close(self) -> None:
        """Let go of everything, the storage included."""
        with suppress(Exception):  # of a connection that is lost the server has freed them
            self._connection.execute(self._text("SELECT pg_advisory_unlock_all()"))
        self._connection.close()
        self._engine.dispose()
        if self.storage is not None:
            self.storage.remove_session()
            self.storage.engine.dispose()
