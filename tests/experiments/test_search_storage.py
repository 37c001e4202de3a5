"""Where a search is kept, its locks, and what is never said of a database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import sqlalchemy.exc

from ipg.experiments.search.postgres import mask, open_postgres, speaking_clearly
from ipg.experiments.search.storage import FileHolds, open_storage

SECRET = "postgresql://bob:s3cr%40t@db.example:5433/searches?password=hidden"


def test_locks_are_one_processs_and_die_with_it(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from ipg.experiments.search.storage import FileHolds
holds = FileHolds(Path({str(tmp_path)!r}))
print(holds.hold(7), flush=True)
time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    holds = FileHolds(tmp_path)
    assert not holds.hold(7)
    assert holds.hold(8)
    assert not holds.hold(8)
    other.kill()
    other.wait()
    other.stdout.close()
    assert holds.hold(7)
    holds.close()
    assert FileHolds(tmp_path).hold(8)


def test_a_journal_with_an_unfinished_line_is_mended(tmp_path: Path) -> None:
    storage, holds = open_storage(None, tmp_path, "s")
    optuna.create_study(storage=storage, study_name="s").ask()
    holds.close()
    journal = tmp_path / "search.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"work')
    again, holds = open_storage(None, tmp_path, "s")
    assert len(optuna.load_study(storage=again, study_name="s").trials) == 1
    optuna.load_study(storage=again, study_name="s").ask()
    holds.close()
    last, holds = open_storage(None, tmp_path, "s")
    assert len(optuna.load_study(storage=last, study_name="s").trials) == 2
    holds.close()


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (SECRET, "postgresql://db.example:5433/searches"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql:///db?host=/run&password=x", "postgresql:///db"),
        ("postgresql://a:b@c@host/db", "postgresql://host/db"),
        ("secret", "…"),
    ],
)
def test_an_address_without_credentials(address: str, shown: str) -> None:
    assert mask(address) == shown


def test_a_search_in_a_file_needs_nothing_of_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy.exc", None)
    with pytest.raises(KeyError, match="as it was"), speaking_clearly(None):
        raise KeyError("as it was")


@pytest.mark.parametrize("error", [sqlalchemy.exc.OperationalError, sqlalchemy.exc.ProgrammingError])
def test_trouble_with_a_database_gives_nothing_away(error: type[sqlalchemy.exc.DBAPIError]) -> None:
    inner = Exception(f'FATAL: password authentication failed for user "bob" (s3cr@t, s3cr%40t, hidden) {SECRET}\nmore')
    with pytest.raises(ValueError, match="the database") as caught, speaking_clearly(SECRET):
        raise error("SELECT 1", {}, inner)
    said = str(caught.value)
    assert said.startswith("the database postgresql://db.example:5433/searches cannot be used: FATAL: password")
    assert not any(secret in said for secret in ("s3cr", "hidden", "bob", "\n"))
    assert caught.value.__cause__ is None


def test_errors_that_are_not_the_databases_pass() -> None:
    with pytest.raises(ValueError, match="of mine"), speaking_clearly(SECRET):
        raise ValueError("of mine")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("mysql://bob:s3cret@host/db", "--storage mysql://host/db: expected postgresql://USER@HOST/DATABASE, or noth"),
        ("s3cret", "--storage …: expected postgresql://USER@HOST/DATABASE"),
        ("postgresql://bob:s3cret@host:port/db", "--storage postgresql://host:port/db is no address: "),
        ("postgresql://bob:s3cret@127.0.0.1:1/db", "the database postgresql://127.0.0.1:1/db cannot be used: connect"),
    ],
)
def test_addresses_that_lead_nowhere(address: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"storage|database") as caught:
        open_postgres(address, "s")
    assert str(caught.value).startswith(says)
    assert "s3cret" not in str(caught.value)
    assert "bob" not in str(caught.value)


def test_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"a search in PostgreSQL needs psycopg, which is not installed: pip install"):
        open_postgres("postgresql://host/db", "s")


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"a search needs Optuna, which is not installed: pip install 'invariance"):
        open_storage(None, tmp_path, "s")


@pytest.mark.slow
def test_everything_but_a_search_does_without_optuna() -> None:
    code = """
import sys
sys.modules["optuna"] = sys.modules["sqlalchemy"] = sys.modules["psycopg"] = None
import ipg.cli, ipg.notebook, ipg.experiments.runner, ipg.experiments.search.run, ipg.report.search_page
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
