"""Programs that begin at once: forks of a process that has imported all of `ipg`, in place of fresh interpreters.

Importing is most of what a short run takes. What is asked of a process that is killed, stopped or left alone does not
depend on who has imported its modules; that programs of their own do the same is seen where a launcher or a worker
starts them.

As a script, the process that is forked: it reads what is asked of it, and answers, as lines of JSON.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Forked", "Template"]


class Template:
    """The process that is forked. In its forks warnings are errors."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for those that wait for its forks
        )
        self.ask(poll=None)  # it is ready

    def start(
        self,
        *line: object,
        log: Path,
        out: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Forked:
        """`python LINE`, where a line is `-m MODULE ARGUMENTS` or `SCRIPT ARGUMENTS`, leading a session of its own.

        `log` gets what it says, but for what goes to `out`, where that is given.
        """
        files = [str((out or log).absolute()), str(log.absolute())]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        place = str(folder or Path.cwd())
        pid = self.ask(line=[*map(str, line)], files=files, folder=place, environment=variables)
        return Forked(self, pid, log)

    def ask(self, **request: Any) -> Any:
        """One request, and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and the forks that are left."""
        self._process.communicate()


class Forked:
    """A program under way, as `subprocess.Popen` knows one."""

    def __init__(self, template: Template, pid: int, log: Path) -> None:
        self.pid, self.log, self._template = pid, log, template
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, less than zero for the signal that ended it; None where it has not ended."""
        if self.returncode is None:
            self.returncode = self._template.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


# -- the process that is forked ----------------------------------------------------------------------------------------


def _program(line: list[str]) -> int:
    """Do as `python LINE` does; its exit status."""
    try:
        if line[0] == "-m":
            sys.argv = line[1:]
            runpy.run_module(line[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = line
            sys.path.insert(0, str(Path(line[0]).parent))
            runpy.run_path(line[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _fork(line: list[str], files: list[str], folder: str, environment: dict[str, str]) -> int:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This process", category=DeprecationWarning)  # of a library's threads
        child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _program(line)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(70)  # it should have ended above


def _serve() -> None:
    """Answer until nobody asks any more."""
    from campaign.forked import preload

    with warnings.catch_warnings():
        warnings.simplefilter("default")  # more is imported here than any of the programs asks for
        preload()
    left: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        answer: int | None = None
        if "line" in asked:
            answer = _fork(**asked)
            left.add(answer)
        elif asked["poll"] in left:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            if pid:
                left.discard(pid)
                answer = os.waitstatus_to_exitcode(status)
        print(json.dumps(answer), flush=True)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)  # at once: to take down all that was imported takes seconds


if __name__ == "__main__":
    _serve()
