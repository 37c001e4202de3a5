from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def test_overview_is_what_its_tool_draws(repo_root: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "overview.svg"
    subprocess.run([sys.executable, str(repo_root / "tools" / "draw_overview.py"), str(drawn)], check=True)
    assert drawn.read_bytes() == (repo_root / "docs" / "overview.svg").read_bytes(), "run tools/draw_overview.py"


def test_overview_stands_alone(repo_root: Path) -> None:
    svg = (repo_root / "docs" / "overview.svg").read_text(encoding="utf-8")
    root = ET.fromstring(svg)
    assert root.attrib["viewBox"].split()[2] == "800"
    assert "href" not in svg
    assert "<image" not in svg
