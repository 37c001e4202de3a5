"""A search in a real PostgreSQL server: its locks, several processes, one of them killed, no credentials anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from campaign.database import PASSWORD, Server, program
from forking import Forked, Template

from ipg.experiments.search.postgres import open_postgres
from ipg.experiments.search.run import search

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of our own."""
    if program("initdb") is None or program("postgres") is None:
        pytest.skip("needs PostgreSQL (initdb and postgres)")
    made = Server(Path(tmp_path_factory.mktemp("pg", numbered=True)))
    made.start()
    yield made.address
    made.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def test_locks_are_one_connections(server: str, name: str) -> None:
    _, here = open_postgres(server, name)
    _, there = open_postgres(server, name)
    _, other = open_postgres(server, f"{name} too")
    assert here.hold(3)
    assert not here.hold(3)
    assert not there.hold(3)
    assert other.hold(3)
    with there.turn():
        assert there.hold(4)
    here.release(3)
    assert there.hold(3)
    there.close()
    assert here.hold(3)
    assert here.hold(4)
    with here.turn(), other.turn():
        pass
    here.close()
    other.close()


def test_locks_die_with_their_process(search_stubs: Any, server: str, name: str) -> None:
    code = f"""
import time
from ipg.experiments.search.postgres import open_postgres
_, holds = open_postgres({server!r}, {name!r})
print(holds.hold(7), flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    _, holds = open_postgres(server, name)
    assert not holds.hold(7)
    process.kill()
    process.communicate()
    search_stubs.wait_for(lambda: holds.hold(7), seconds=30)
    holds.close()


def test_a_killed_machine_loses_no_trial_and_doubles_none(
    template: Template, search_stubs: Any, server: str, tmp_path: Path, notes: Path
) -> None:
    """Two commands with two workers and a folder each; one of them is killed with two trials under way."""

    def run(folder: str, function: str) -> Forked:
        line = [search_stubs.__file__, tmp_path / folder, notes, function, "8", "2", server]
        return template.start(*line, log=tmp_path / f"{folder}.log")

    dead = run("a", "waiting")
    search_stubs.wait_for(lambda: len(search_stubs.begun(notes)) == 4)  # 0 and 1 are done, 2 and 3 wait
    dead.kill()
    dead.wait(120)
    orphans = {number for number, pids in search_stubs.begun(notes).items() if number >= 2}
    assert orphans == {2, 3}
    (notes / "go").touch()
    living = [run(folder, "slowly") for folder in ("b", "c")]
    ends = [process.wait(240) for process in living]
    assert ends == [0, 0], [process.log.read_text() for process in living]
    begun = {number: len(pids) for number, pids in search_stubs.begun(notes).items()}
    assert begun == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}
    found = search(search_stubs.plan(8, sampler="random"), tmp_path / "d", storage=server, run=search_stubs.never)
    assert [(trial.number, trial.state) for trial in found.trials] == [(n, "complete") for n in range(8)]
    alone = search(search_stubs.plan(8, sampler="random"), tmp_path / "alone", run=search_stubs.quick, workers=1)
    assert [(trial.settings, trial.value) for trial in found.trials] == [
        (trial.settings, trial.value) for trial in alone.trials
    ]

    everything = "".join(
        file.read_text("utf-8", "replace") for file in tmp_path.rglob("*") if file.is_file() and file.name != "password"
    )
    assert "trial 5" in everything
    assert PASSWORD not in everything


def test_a_lost_connection_is_one_line_and_the_search_goes_on(search_stubs: Any, server: str, tmp_path: Path) -> None:
    import psycopg

    cuts: list[int] = []

    def cut(trial: Any, **options: Any) -> dict[str, Any]:
        if trial.number == 1 and not cuts:
            with psycopg.connect(server, autocommit=True) as connection:
                others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'ipg'"
                cuts.append(len(connection.execute(f"SELECT pg_terminate_backend(pid) {others}").fetchall()))
        row: dict[str, Any] = search_stubs.quick(trial, **options)
        return row

    plan = search_stubs.plan(3, name="cut")
    with pytest.raises(ValueError, match="the database postgresql:///postgres cannot be used: ") as caught:
        search(plan, tmp_path, storage=server, run=cut, workers=1)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        "; what is done is kept, and the same command goes on when the database is there again"
    )
    assert cuts[0] >= 1
    found = search(plan, tmp_path, storage=server, run=cut, workers=1)
    assert [(trial.number, trial.state) for trial in found.trials] == [(n, "complete") for n in range(3)]


def test_a_wrong_password_is_one_line_without_it(server: str) -> None:
    environment = {**os.environ, "IPG_STORAGE": server.replace(PASSWORD, "wr0ng-one")}
    command = [sys.executable, "-m", "ipg", "search", "--trials", "1", "--epochs", "1", "--held-out-pairs", "4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("ipg: the database postgresql:///postgres cannot be used: ")
    assert "password authentication failed" in done.stderr
    assert "wr0ng-one" not in done.stderr + done.stdout
