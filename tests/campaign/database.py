"""A PostgreSQL server of our own, on a socket in a folder, that can be stopped and started again."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["PASSWORD", "Server", "program"]

PASSWORD = "pl3ase-h1de-me"
PATIENCE = 60
"""Seconds in which a server starts."""


def program(name: str) -> str | None:
    """A program of PostgreSQL's, which Debian keeps out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


class Server:
    """A server that does not run as root; `None` in the place of its programs where they are not installed."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.address = home, f"postgresql://ipg:{PASSWORD}@/postgres?host={home}"
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
            for parent in home.parents:
                if parent.stat().st_uid == 0 and parent not in (Path("/"), Path("/tmp")):
                    parent.chmod(parent.stat().st_mode | 0o011)  # nobody may pass
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        secret = home / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        secret.chmod(0o644)
        options = ["-U", "ipg", "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-sync"]
        line = [str(program("initdb")), "-D", str(home / "data"), *options]
        subprocess.run(line, check=True, capture_output=True, cwd=home, **self._user)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["-k", str(self.home), "-c", "listen_addresses=", "-c", "fsync=off"]
        line = [str(program("postgres")), "-D", str(self.home / "data"), *options]
        quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "start_new_session": True}  # Ctrl-C is not for it
        self._process = subprocess.Popen(line, cwd=self.home, **quiet, **self._user)
        atexit.register(self.stop)
        self._wait_until_ready()

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it: at once with SIGINT, without taking leave with SIGQUIT."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None
            atexit.unregister(self.stop)

    def clear(self) -> None:
        """Forget all that was kept in it."""
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def _wait_until_ready(self) -> None:
        import psycopg

        end = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.address).close()
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise RuntimeError("the server does not start") from None
                time.sleep(0.05)
            else:
                return
