"""Versions: the tests that take seconds, with the oldest and the newest that the project admits, on every Python."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipg.experiments.tables.text import markdown

PROMISE = (
    "The tests that take seconds pass with the oldest versions that `pyproject.toml` allows and with the newest, on "
    "Python 3.11, 3.12 and 3.13."
)
MEANS = (
    "Each combination gets a fresh environment with all extras and what the tests need. The oldest has every direct "
    "requirement at its lower bound; it lacks the extra `edit`, which needs later versions. A Python that the machine"
    " lacks is left out, and the table says so."
)
LIMITS = "Versions between the oldest and the newest are not tested. A newer library may warn about an older one."

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = (("3.11", "oldest"), ("3.11", "newest"), ("3.12", "newest"), ("3.13", "newest"))
CASES = len(ENVIRONMENTS)
EXTRA_TESTS = ("tests/pairs/test_edited.py",)
"""What needs the extra that the oldest environment leaves out."""
SHOWN = ("torch", "numpy", "pillow")
NAMED = 5
"""How many of the tests that fail are named."""


@dataclass
class World:
    """Where environments are made, and what they found."""

    root: Path
    found: list[dict[str, Any]] = field(default_factory=list)


def prepare(folder: Path) -> World:
    """Nothing is there before a case makes it."""
    return World(folder)


def attempt(world: World, seed: int, number: int) -> str | None:
    """Make an environment, run the tests in it, and count; `seed` changes nothing."""
    version, which = ENVIRONMENTS[number]
    about: dict[str, Any] = {"python": version, "which": which}
    world.found.append(about)
    python = interpreter(version)
    if python is None:
        return None
    with_tests = make(world.root / f"{version}-{which}", python, oldest=which == "oldest")
    about |= tested(with_tests, world.root / f"{version}-{which}.xml", oldest=which == "oldest")
    if about["failed"]:
        names = ", ".join(failing(world.root / f"{version}-{which}.xml")[:NAMED])
        return f"Python {version}, {which}: {about['failed']} of {about['tests']} tests fail, among them {names}"
    return None


def interpreter(version: str) -> Path | None:
    """A Python of that version, in the path or as pyenv keeps it."""
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in [f"python{version}", *map(str, known)]:
        try:
            run = subprocess.run([python, "-c", "import ensurepip, sys; print(sys.executable)"], **_QUIET)
        except OSError:
            continue
        if run.returncode == 0:
            return Path(run.stdout.strip())
    return None


_QUIET: dict[str, Any] = {"capture_output": True, "text": True, "check": False}


def make(home: Path, python: Path, *, oldest: bool) -> Path:
    """A fresh environment with the project; returns its Python."""
    subprocess.run([python, "-m", "venv", home], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = ["--editable", f"{ROOT}[dev]"]
    if oldest:
        limits = home / "floors.txt"
        limits.write_text("\n".join(floors(project)) + "\n", encoding="utf-8")
        extras = ",".join(name for name in project["optional-dependencies"] if name not in ("dev", "edit"))
        tools = [line for line in project["optional-dependencies"]["dev"] if not line.startswith(project["name"])]
        wanted = ["--constraint", str(limits), "--editable", f"{ROOT}[{extras}]", *tools]
    line = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(line, **_QUIET)
    if done.returncode:
        raise RuntimeError(f"the environment cannot be made:\n{done.stderr[-2000:]}")
    return home / "bin" / "python"


def floors(project: dict[str, Any]) -> list[str]:
    """Every direct requirement at its lower bound, but those of the extra `edit` alone."""
    extras = [lines for name, lines in project["optional-dependencies"].items() if name != "edit"]
    lines = {line for lines in [project["dependencies"], *extras] for line in lines if ">=" in line}
    return sorted(re.sub(r"\[.*?\]", "", line).replace(">=", "==") for line in lines)


def tested(python: Path, report: Path, *, oldest: bool) -> dict[str, Any]:
    """Run the tests; how many there are, and how many fail."""
    line = [python, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", f"--junitxml={report}"]
    line += ["-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
    if oldest:
        line += ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
        line += [f"--ignore={path}" for path in EXTRA_TESTS]
    done = subprocess.run(line, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, **_QUIET)
    report.with_suffix(".log").write_text(done.stdout + done.stderr, encoding="utf-8")
    listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], **_QUIET).stdout.lower()
    libraries = dict(line.split("==") for line in listed.splitlines() if line.count("==") == 1)
    return counts(report) | {"libraries": {name: libraries.get(name, "") for name in SHOWN}}


def counts(report: Path) -> dict[str, int]:
    """What a report of pytest's says: tests that ran, and those of them that failed."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None  # pytest writes one
    tests, failed, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    return {"tests": tests - skipped, "failed": failed + errors, "skipped": skipped}


def failing(report: Path) -> list[str]:
    """The tests that failed, by a report of pytest's."""
    cases = ElementTree.parse(report).getroot().iter("testcase")
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return [f"{case.get('classname')}::{case.get('name')}" for case in wrong]


def facts(world: World) -> dict[str, Any]:
    """What the row keeps beside the number of cases."""
    return {"environments": world.found}


def shown(row: dict[str, Any]) -> str:
    """A table with a line for each environment."""
    lines = []
    for found in row["environments"]:
        said = ["not there"] * 2 if "tests" not in found else [f"{found['tests']:,}", f"{found['failed']:,}"]
        libraries = ", ".join(f"{name} {number}" for name, number in found.get("libraries", {}).items())
        lines.append([found["python"], found["which"], libraries or "–", *said])
    return markdown(["Python", "versions", "among them", "tests", "failed"], lines)
