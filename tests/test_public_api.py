"""What `import ipg` gives, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ipg


def python(code: str) -> str:
    """What a fresh interpreter prints; `-W error` as in the tests."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_ipg_loads_neither_torch_nor_numpy() -> None:
    assert python("import sys, ipg; print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))") == "[]"


def test_the_method_imports_torch_and_its_neighbours_alone() -> None:
    code = "import sys, torch; before = set(sys.modules); import ipg.guidance; "
    code += "print(*sorted(set(sys.modules) - before - set(sys.stdlib_module_names)))"
    loaded = [name for name in python(code).split() if name.partition(".")[0] not in sys.stdlib_module_names]
    strangers = [name for name in loaded if not name.startswith(("ipg", "torch."))]
    assert strangers == []
    later = ("data", "pairs", "methods", "evaluation", "training", "experiments", "report", "cli")
    assert [name for name in loaded if name.startswith(tuple(f"ipg.{package}" for package in later))] == []


def test_every_public_name_is_there_and_the_lazy_table_is_complete() -> None:
    assert set(ipg.__all__) == set(ipg._HOME)
    for name in ipg.__all__:
        assert callable(getattr(ipg, name)), name
        assert name in dir(ipg)


def exported(module: ast.Module) -> list[str]:
    """What its `__all__` names."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def test_what_modules_take_from_each_other_is_exported_there() -> None:
    home = Path(ipg.__file__).parent
    paths = {".".join(path.relative_to(home.parent).with_suffix("").parts): path for path in home.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): ast.parse(path.read_text("utf-8")) for name, path in paths.items()}
    public = {f"{name}.{export}" for name, module in modules.items() for export in exported(module)}
    taken = {
        f"{node.module}.{alias.name}": name
        for name, module in modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("ipg.")
        for alias in node.names
    }
    assert "ipg.guidance.Guidance" in taken
    assert {what: where for what, where in taken.items() if what not in public | modules.keys()} == {}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'guidence'"):
        _ = ipg.guidence  # type: ignore[attr-defined]


def test_type_checkers_see_the_public_names_and_no_others() -> None:
    """They read what is imported for them; with a `__getattr__` they would take a misspelt name for one of ours."""
    for_checkers, for_python = [], []
    module = ast.parse(Path(ipg.__file__).read_text("utf-8"))
    for node in module.body:
        assert getattr(node, "name", "") != "__getattr__"
        if isinstance(node, ast.If):
            (for_checkers if ast.unparse(node.test) == "TYPE_CHECKING" else for_python).extend(node.body)
    imported = [alias.asname for node in for_checkers if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == sorted(ipg.__all__)
    assert [ast.unparse(node) for node in for_python] == ["__getattr__ = _load"]


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert ipg.__version__ == version("invariance-pair-guidance")


def test_rationale_is_function_and_module_whatever_was_imported_first() -> None:
    code = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 2))
images = torch.arange(12.0).reshape(4, 3)
for first in (
    "import ipg; ipg.rationale",
    "import ipg.rationale",
    "import ipg.guidance",
    "from ipg import rationale",
    "from ipg.rationale import rationale",
):
    for name in [name for name in sys.modules if name.partition(".")[0] == "ipg"]:
        del sys.modules[name]
    exec(first, {})
    import ipg, ipg.rationale as module
    from ipg.rationale import find_head
    matrices = ipg.rationale(model, images)  # (4, 3, 2)
    logits = matrices.sum(dim=1) + find_head(model).bias
    torch.testing.assert_close(logits, model(images), msg=first)
    assert torch.equal(module.rationale(model, images), matrices), first
    print(tuple(matrices.shape))
"""
    assert python(code).splitlines() == ["(4, 3, 2)"] * 5
