"""What all tests share: fixtures, and the rule that a test may only skip if `permitted_skips.txt` names it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

PERMITTED_SKIPS = Path(__file__).with_name("permitted_skips.txt")
HOME = str(Path(__file__).resolve().parent)
if HOME not in sys.path:
    sys.path.append(HOME)  # for what tests share; at the end: nothing else is found here before it is found elsewhere


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The top of the project."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def mnist_path(repo_root: Path) -> Path:
    """MNIST as one npz file, which is too large to carry: $IPG_MNIST, or shared/data beside the project."""
    path = Path(os.environ.get("IPG_MNIST") or repo_root.parent / "shared" / "data" / "mnist.npz")
    if not path.is_file():
        pytest.skip("needs MNIST (set IPG_MNIST)")
    return path


@pytest.fixture(scope="session")
def make_table() -> Callable[..., Any]:
    """Makes small tables of 2x8x8 images: the half that is bright is the label, the channel the attribute."""
    from campaign.bars import bars

    return bars


@pytest.fixture(scope="session")
def template() -> Iterator[Any]:
    """Starts programs as forks of a process that has everything imported."""
    from forking import Template

    made = Template()
    yield made
    made.close()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small networks gain nothing from threads, which would only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def own_random_state() -> Iterator[None]:
    """The test starts from one seed and leaves the global generator as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def kernels(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are compiled are kept for the other tests of the session, and nowhere else."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder
    monkeypatch.setenv("IPG_CACHE", str(folder / "compiled"))


class SkipGuard:
    """Fails the session when a test or module skips that is not on the list, so that no check is lost unseen."""

    def __init__(self, permitted: Sequence[str]) -> None:
        self.permitted = permitted
        self.unexpected: dict[str, str] = {}

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):  # an expected failure is no skip
            return
        name = report.nodeid
        if not any(name == pattern or fnmatchcase(name, pattern) for pattern in self.permitted):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.unexpected[name] = reason.removeprefix("Skipped: ")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)  # a module that skips as a whole, e.g. by importorskip

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unexpected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unexpected:
            terminalreporter.section("skips that are not permitted", red=True)
            for name, reason in self.unexpected.items():
                terminalreporter.line(f"{name}: {reason}")
            terminalreporter.line(f"Provide what they need, or name them in {PERMITTED_SKIPS.name} and say why.")


def read_permitted(path: Path) -> list[str]:
    """The patterns of the list: one a line; what follows ` #` is a comment."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [name for line in lines if (name := (" " + line).split(" #")[0].strip())]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their place: what they hold (gzip's time, say) may differ between processes that must agree."""
    return argname if isinstance(val, bytes) else None


class Frozen:
    """Leaves what has been collected out of garbage collection, which would look through it again in many a test."""

    def __init__(self) -> None:
        self.outermost = gc.get_freeze_count() == 0  # a session inside a test leaves this to the one around it

    def pytest_collection_finish(self) -> None:
        if self.outermost:
            if (hypothesis := sys.modules.get("hypothesis")) is not None:
                # Its random numbers are made at the first use. Older versions ask the collector who holds them, which
                # does not see holders that are left out.
                once = hypothesis.settings(max_examples=1, deadline=None, database=None)
                once(hypothesis.given(hypothesis.strategies.none())(lambda _: None))()
            gc.collect()
            gc.freeze()

    def pytest_sessionfinish(self) -> None:
        if self.outermost:
            gc.unfreeze()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipGuard(read_permitted(PERMITTED_SKIPS)), "skip-guard")
    config.pluginmanager.register(Frozen(), "frozen")
