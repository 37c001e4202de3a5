"""Nothing in the source runs code that comes with data: every call that could is named here with its safe form."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FORBIDDEN_IMPORTS = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve", "tarfile", "yaml"}
"""Modules that run code when they read, or unpack to where an archive says."""
FORBIDDEN_CALLS = {
    "__import__", "compile", "eval", "exec", "os.popen", "os.system", "pandas.read_pickle", "shutil.unpack_archive",
    "subprocess.getoutput", "subprocess.getstatusoutput", "torch.hub.load", "torch.hub.load_state_dict_from_url",
    "torch.jit.load", "torch.package.PackageImporter", "yaml.load", "yaml.unsafe_load",
}  # fmt: skip
FORBIDDEN_METHODS = {"extract", "extractall", "read_pickle"}
"""Of archives and frames."""
REQUIRED: dict[str, tuple[str, bool]] = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "from_pretrained": ("trust_remote_code", False),
    "jinja2.Environment": ("autoescape", True),
}
"""What each of these calls has to say, for all to see."""
ALLOWED = {
    ("models/weights.py", "import pickle"),  # for the name of an error
    ("models/own_code.py", "exec_module"),  # `python:file.py:function`, code that the user names to be run
    ("models/own_code.py", "import_module"),
    ("__init__.py", "import_module"),  # of names that the source lists
    ("methods/__init__.py", "import_module"),
    ("models/extras.py", "import_module"),
    ("pairs/rows.py", "import_module"),
    ("export/programs.py", "torch.export.load"),  # of the file that was written a moment before, to check it
    ("report/html.py", "Markup"),  # of figures, which escape their texts
}
WATCHED = {"exec_module", "import_module", "torch.export.load", "Markup"}


def findings(source: str, name: str) -> Iterator[str]:
    """What is not allowed in a module, as `line: what`."""
    for node in ast.walk(ast.parse(source)):
        for what in _of(node):
            if (name, what) not in ALLOWED:
                yield f"{name}:{getattr(node, 'lineno', 0)}: {what}"


def _of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"import {a.name}" for a in node.names if a.name.partition(".")[0] in FORBIDDEN_IMPORTS)
    elif isinstance(node, ast.ImportFrom):
        if (node.module or "").partition(".")[0] in FORBIDDEN_IMPORTS:
            yield f"import {node.module}"
    elif isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "pickle" and node.attr != "UnpicklingError":
            yield f"pickle.{node.attr}"
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(call: ast.Call) -> Iterator[str]:
    full = ast.unparse(call.func)
    last = full.rpartition(".")[2]
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if full in FORBIDDEN_CALLS or (last in FORBIDDEN_METHODS and full != last):
        yield full
    if last == "import_module" and call.args and isinstance(call.args[0], ast.Constant):
        return  # a module that the source names
    if full in WATCHED or last in WATCHED:
        yield full if full in WATCHED else last
    for called, (keyword, value) in REQUIRED.items():
        if called in (full, last):
            found = given.get(keyword)
            if not (isinstance(found, ast.Constant) and found.value is value):
                yield f"{full} without {keyword}={value}"
    if full.startswith("subprocess."):
        if "shell" in given:
            yield f"{full} with a shell"
        if call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr):
            yield f"{full} of one string"


def test_the_source(repo_root: Path) -> None:
    home = repo_root / "src" / "ipg"
    files = sorted(home.rglob("*.py"))
    assert len(files) > 100
    wrong = [line for file in files for line in findings(file.read_text("utf-8"), file.relative_to(home).as_posix())]
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", "import pickle"),
        ("from yaml import load", "import yaml"),
        ("pickle.loads(data)", "pickle.loads"),
        ("eval(text)", "eval"),
        ("os.system(text)", "os.system"),
        ("torch.load(path)", "torch.load without weights_only=True"),
        ("torch.load(path, weights_only=False)", "torch.load without weights_only=True"),
        ("np.load(path)", "np.load without allow_pickle=False"),
        ("library.Auto.from_pretrained(name)", "library.Auto.from_pretrained without trust_remote_code=False"),
        ("jinja2.Environment()", "jinja2.Environment without autoescape=True"),
        ("archive.extractall(folder)", "archive.extractall"),
        ("torch.export.load(path)", "torch.export.load"),
        ("import_module(name)", "import_module"),
        ("Markup(text)", "Markup"),
        ("subprocess.run(command, shell=True)", "subprocess.run with a shell"),
        ("subprocess.run(f'ls {folder}')", "subprocess.run of one string"),
    ],
)
def test_the_walk_finds(code: str, found: str) -> None:
    assert list(findings(code, "new.py")) == [f"new.py:1: {found}"]


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "subprocess.run(['git', 'status'])",
        "import_module('timm')",
        "model.eval()",
        "except_ = pickle.UnpicklingError",
    ],
)
def test_the_walk_leaves_alone(code: str) -> None:
    assert list(findings(code, "new.py")) == []


def test_templates_escape_everything(repo_root: Path) -> None:
    pages = sorted((repo_root / "src" / "ipg").rglob("*.html"))
    assert len(pages) >= 5
    for page in pages:
        text = page.read_text("utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+false|<script\b|\son\w+=|javascript:", text, re.I), page
