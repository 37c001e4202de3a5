"""Where a number comes from."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import ipg
from ipg.training import provenance
from ipg.training.provenance import commit


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No answer is remembered, and nothing around the tests gives one."""
    for name in ("IPG_COMMIT", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    commit.cache_clear()
    yield
    commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    run = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, whose `src/ipg` takes the place of the package."""
    package = tmp_path / "repository" / "src" / "ipg"
    (package / "training").mkdir(parents=True)
    for name in ("__init__.py", "guidance.py", "training/loop.py"):
        (package / name).write_text("# code\n", encoding="utf-8")
    (tmp_path / "repository" / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    git(tmp_path / "repository", "init", "--quiet")
    git(package, "add", "-A", ":/")
    git(package, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(ipg, "__file__", str(package / "__init__.py"))
    return package


def test_from_git(source: Path) -> None:
    found = commit()
    assert found == git(source, "rev-parse", "HEAD")
    assert re.fullmatch(r"[0-9a-f]{40}", found)


@pytest.mark.parametrize("name", ["guidance.py", "training/loop.py", "new.py"])
def test_source_that_differs_is_dirty(source: Path, name: str) -> None:
    (source / name).write_text("# other code\n", encoding="utf-8")
    assert commit() == git(source, "rev-parse", "HEAD") + "-dirty"


@pytest.mark.parametrize("name", ["../../README.md", "__pycache__/guidance.pyc"])
def test_what_is_no_source_does_not_count(source: Path, name: str) -> None:
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_text("more\n", encoding="utf-8")
    assert commit() == git(source, "rev-parse", "HEAD")


def test_installed_inside_another_repository(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = source.parents[1] / "venv" / "ipg"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    monkeypatch.setattr(ipg, "__file__", str(installed / "__init__.py"))
    assert re.fullmatch(r"source-[0-9a-f]{12}", commit())


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(ipg, "__file__", str(tmp_path / "__init__.py"))
    assert re.fullmatch(r"source-[0-9a-f]{12}", commit())


def test_what_is_installed_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it lies, and whatever was compiled of it."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def found(place: str, text: str) -> str:
        package = tmp_path / place
        (package / "data" / "__pycache__").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "data" / "load.py").write_text(text, encoding="utf-8")
        (package / "data" / "__pycache__" / "load.pyc").write_text(place, encoding="utf-8")
        monkeypatch.setattr(ipg, "__file__", str(package / "__init__.py"))
        commit.cache_clear()
        return commit()

    assert found("here", "# code") == found("there", "# code") != found("elsewhere", "# other code")


def test_no_git(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert re.fullmatch(r"source-[0-9a-f]{12}", commit())


def test_the_environment_has_the_first_word(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_COMMIT", "abc123")
    assert commit() == "abc123"


def test_all_of_it(source: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    found = provenance.provenance(torch.device("cpu"))
    assert set(found) == {"commit", "versions", "hardware", "date"}
    assert found["commit"] == git(source, "rev-parse", "HEAD")
    assert found["versions"] == {
        "ipg": ipg.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    assert re.fullmatch(rf".+, {torch.get_num_threads()} threads", str(found["hardware"]))
    assert before <= datetime.fromisoformat(str(found["date"])) <= datetime.now(UTC)


def test_hardware_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert provenance.hardware(torch.device("cuda")) == "NVIDIA H200"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert provenance.hardware(torch.device("mps")) == "arm64 mps"


def test_a_processor_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, **options: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert provenance.hardware(torch.device("cpu")).startswith("arm64, ")
