"""What the documentation shows is run: Python snippets, the loop diff, command lines and docstring examples."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ipg
from ipg.benchmarks.rows import newest, read

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "results").glob("*.md"))]

SNIPPETS_ELSEWHERE = {"scale.md": "tests/distributed/test_docs.py runs them under torchrun"}
"""Pages whose Python snippets something else runs, and what."""
COVERED_ELSEWHERE = {
    "make demo": "test_make_demo_installs_and_runs_ipg_demo below, and `ipg demo` is run",
    "make test": ".ci/run",
    "make test-slow": ".ci/run",
    "pip install .": "tests/packaging/test_packaging.py: the wheel is built and installed",
    'pip install ".[images]"': "`make test` installs the extra as part of [dev]",
}
"""Commands of the README that something else runs, and what."""


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page."""

    language: str
    text: str
    line: int


def fences(page: Path) -> Iterator[Fence]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Fence(found[1], found[2], text[: found.start(2)].count("\n"))


def commands(page: Path) -> list[str]:
    """The command lines of a page: after `$ ` in console blocks, every line of bash blocks; comments dropped."""
    lines = []
    for fence in fences(page):
        if fence.language == "console":
            lines += [line[2:] for line in fence.text.splitlines() if line.startswith("$ ")]
        elif fence.language in {"bash", "sh"}:
            lines += fence.text.splitlines()
    bare = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return [line for line in bare if line]


def execute(source: str, page: Path, line: int, namespace: dict[str, Any]) -> None:
    """Run a snippet so that a traceback names the page and its line."""
    exec(compile("\n" * line + source, str(page), "exec"), namespace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in SNIPPETS_ELSEWHERE], ids=lambda page: page.name
)
def test_python_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)  # or what they draw would depend on the tests before
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for fence in fences(page):
        assert fence.language not in {"py", "python3", "pycon"}, (
            f"line {fence.line}: write ```python, so that it is run"
        )
        if fence.language == "python":
            execute(fence.text, page, fence.line, namespace)


@pytest.mark.parametrize("side", ["-", "+"])
def test_the_loop_diff_of_the_readme_runs_before_and_after(side: str) -> None:
    page = ROOT / "README.md"
    (fence,) = [fence for fence in fences(page) if fence.language == "diff"]
    lines = [line[2:] if line[:2] in {"  ", f"{side} "} else "" for line in fence.text.splitlines()]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    images, labels = torch.rand(8, 1, 4, 4), torch.arange(8) % 2
    namespace = {
        "ipg": ipg,
        "torch": torch,
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "batches": [(images[:4], labels[:4]), (images[4:], labels[4:])],
        "pair_set": ipg.Pairs(images, images.flip(3), labels),
    }
    before = [parameter.clone() for parameter in model.parameters()]
    execute("\n".join(lines), page, fence.line, namespace)
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert ("guide" in namespace) == (side == "+")
    if side == "+":
        assert namespace["guide"].iteration == 2


def test_every_command_of_the_readme_is_accounted_for() -> None:
    others = [command for command in commands(ROOT / "README.md") if not command.startswith("ipg ")]
    unknown = [command for command in others if command not in COVERED_ELSEWHERE]
    assert not unknown, "run them in this file, or say in COVERED_ELSEWHERE what does"


@pytest.mark.slow
def test_commands_of_the_readme_run_and_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    """Every `ipg` command of the README, one after the other in an empty folder."""
    ours = [command for command in commands(ROOT / "README.md") if command.startswith("ipg ")]
    assert len(ours) > 3
    for command in ours:
        program, *arguments = command.split()
        path = Path(sys.executable).with_name(program)
        done = subprocess.run([str(path), *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, command + done.stdout + done.stderr
    results = {
        method: json.loads((tmp_path / "ipg-demo" / method / "result.json").read_text(encoding="utf-8"))["metrics"]
        for method in ("erm", "oracle", "ipg")
    }
    assert results["erm"]["average"] < 0.15
    assert results["erm"]["worst_group"] < 0.05
    assert results["ipg"]["average"] > 0.97
    assert results["ipg"]["worst_group"] > 0.93
    assert results["oracle"]["average"] > 0.98
    assert results["ipg"]["pair_disagreement"] < 0.05 < 0.9 < results["erm"]["pair_disagreement"]
    assert (tmp_path / "ipg-demo" / "report.html").stat().st_size > 50_000
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_commands_of_the_tutorial_run_and_show_what_it_promises(tmp_path: Path) -> None:
    """Every command of docs/own-images.md, one after the other in an empty folder."""
    ours = commands(ROOT / "docs" / "own-images.md")
    assert {command.split()[0] for command in ours} == {"python", "ipg"}
    for command in ours:
        program, *arguments = command.split()
        if program == "python":
            arguments[0] = str(ROOT / arguments[0])
        path = sys.executable if program == "python" else str(Path(sys.executable).with_name(program))
        done = subprocess.run([path, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, command + done.stdout + done.stderr
    plain, guided, repaired = (
        json.loads((tmp_path / "runs" / name / "result.json").read_text(encoding="utf-8"))["metrics"]
        for name in ("plain", "guided", "repaired")
    )
    assert plain["worst_group"] < 0.2
    assert plain["pair_disagreement"] > 0.8
    for robust in (guided, repaired):
        assert robust["worst_group"] > 0.8
        assert robust["pair_disagreement"] < 0.2
    assert len((tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()) == 501
    assert (tmp_path / "exported" / "model.pt2").exists()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) < 2_000_000
    for section in ("groups", "disagreement", "flips", "looks"):
        assert f'<section id="{section}">' in page
    assert (tmp_path / "pairs" / "sheet.html").exists()


def test_make_demo_installs_and_runs_ipg_demo(tmp_path: Path) -> None:
    """On a fresh copy `make demo` makes the environment, installs the project and runs the demo."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    dry = ["make", "--no-print-directory", "--dry-run", f"PYTHON={sys.executable}", "demo"]
    done = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    steps = done.stdout.splitlines()
    places = [
        next(i for i, step in enumerate(steps) if wanted in step)
        for wanted in ("-m venv .venv", "pip install --disable-pip-version-check --editable .", ".venv/bin/ipg demo")
    ]
    assert places == sorted(places)
    assert steps[-1] == ".venv/bin/ipg demo"


def test_make_pages_makes_all_pages_that_have_a_command() -> None:
    dry = ["make", "--no-print-directory", "--dry-run", "pages"]
    done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = set(re.findall(r"python -m ([\w.]+) --write ([\w./]+)", done.stdout))
    files = [file for folder in ("src", "tests/campaign") for file in (ROOT / folder).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    programs = {name for text in texts for name in re.findall(r'page_parser\(\s*"([\w.]+)"', text)}
    assert {program for program, _ in made} == programs
    assert [page for _, page in made if not (ROOT / page).is_file()] == []


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        other = page.parent / file if file else page
        assert other.exists(), target
        assert not heading or heading in headings(other), target


def test_docstring_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in sorted((ROOT / "src").rglob("*.py")):
        if ">>>" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
            result = doctest.testmod(importlib.import_module(name))
            assert result.failed == 0, name


def test_the_readmes_cost_of_guidance_is_what_was_measured() -> None:
    rows = newest(read(ROOT / "results" / "speed.jsonl"), "NVIDIA H200")
    case = ("gpu", "resnet50 ipg b32 every4", "ms")
    at_every = rows["gpu", "resnet50 ipg b32", "ms", "resnet50 erm"]["ratio"]
    longer = rows[*case, "resnet50 erm"]["ratio"]
    ordinary = 1 / rows[*case, "resnet50 eager fp32 erm"]["ratio"]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"compiled, bf16) takes {at_every:.2f} times as long as a plain one in our loop" in text
    assert f"and {longer:.2f} times with `every=4`, where only each fourth step corrects" in text
    assert f"in an ordinary eager fp32 loop takes {ordinary:.1f} times as long as the latter" in text
