"""The notebook runs from top to bottom, and what is stored in it is what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


def read(repo_root: Path) -> Any:
    return json.loads((repo_root / "examples" / "own_images.ipynb").read_text(encoding="utf-8"))


def said(cells: Any) -> str:
    """All that the cells of a notebook printed."""
    outputs = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def worst_groups(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"worst group (\d+)%", text)]


def test_the_notebook_is_stored_as_it_ran_and_is_small(repo_root: Path) -> None:
    path = repo_root / "examples" / "own_images.ipynb"
    assert path.stat().st_size < 300_000
    cells = [cell for cell in read(repo_root)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    assert str(repo_root) not in path.read_text(encoding="utf-8")
    plain, guided = worst_groups(said(cells))
    assert plain < 20
    assert guided > 80


@pytest.mark.slow
def test_the_notebook_runs(repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(repo_root / "examples" / "own_images.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(repo_root / "examples")}})
    client.execute()
    plain, guided = worst_groups(said(notebook.cells))
    assert plain < 20
    assert guided > 80
    (page,) = tmp_path.glob("tmp*/report.html")
    assert '<section id="looks">' in page.read_text(encoding="utf-8")
