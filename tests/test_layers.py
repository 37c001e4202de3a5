"""The package is built in stages: a module imports from its own stage and from earlier ones, never from a later one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ipg

HOME = Path(ipg.__file__).parent

STAGES = (
    {
        "guidance", "forward", "comparison", "condition", "pace", "paired", "records", "modes", "settings", "gradients",
        "collectives", "watch", "rationale",
    },
    {"config", "coercion", "files", "restarts", "seeds", "threads", "words"},
    {"data"},
    {"models"},
    {"pairs"},
    {"evaluation"},
    {"methods"},
    {"training"},
    {"experiments"},
    {"notebook", "classifier", "prediction", "whereabouts"},
    {"export"},
    {"report"},
    {"benchmarks"},
    {"cli"},
)  # fmt: skip
"""From the first to the last."""
DRAWING = ("notebook", "experiments.reproduce")
"""Those that CONTRIBUTING allows to take figures and pages from `report`."""


def imports(path: Path) -> set[str]:
    """What a file takes from the package: modules by their whole names, also where it does so inside a function."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None]
    own = [node for node in modules if node.module == "ipg"]
    found = (
        plain | {str(node.module) for node in modules} | {f"ipg.{alias.name}" for node in own for alias in node.names}
    )
    return {name for name in found if name.startswith("ipg.")}


def test_nothing_imports_from_a_later_stage() -> None:
    stage_of = {name: number for number, stage in enumerate(STAGES) for name in stage}
    known = {".".join(path.relative_to(HOME).with_suffix("").parts): imports(path) for path in HOME.rglob("*.py")}
    modules = {name: taken for name, taken in known.items() if name not in ("__init__", "__main__")}  # lead everywhere
    assert {name.partition(".")[0] for name in modules} == stage_of.keys()
    upwards = {
        (name, other)
        for name, taken in modules.items()
        for other in (one.removeprefix("ipg.") for one in taken)
        if stage_of[other.partition(".")[0]] > stage_of[name.partition(".")[0]]
    }
    allowed = {(name, other) for name, other in upwards if name.startswith(DRAWING) and other.startswith("report.")}
    assert upwards - allowed == set()
    assert {next(start for start in DRAWING if name.startswith(start)) for name, _ in allowed} == {*DRAWING}


def test_the_map_of_the_readme_has_the_stages_in_their_order(repo_root: Path) -> None:
    _, listed = (repo_root / "README.md").read_text(encoding="utf-8").split("\nsrc/ipg/ ")
    entries = re.split(r"\n  (?=\w)", listed.split("\nexamples/")[0])[1:]
    opening = [re.split(r"\.py|/", entry)[0] for entry in entries]
    places = [next(number for number, stage in enumerate(STAGES) if name in stage) for name in opening]
    assert places == sorted(places)
    for stage in STAGES:
        told = " ".join(entry for name, entry in zip(opening, entries, strict=True) if name in stage)
        assert stage - set(re.findall(r"\w+", told)) == set()
