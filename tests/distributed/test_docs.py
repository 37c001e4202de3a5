"""The loop shown in docs/scale.md runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LEFT = """
import pathlib
for task in pathlib.Path("/proc/self/task").glob("*/comm"):  # threads that Python does not know
    if "gloo" in (name := task.read_text()):
        print("left:", name)
"""


@pytest.mark.slow
def test_the_loop_of_the_documentation_runs(repo_root: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (repo_root / "docs" / "scale.md").read_text(), flags=re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(code + LEFT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "error"}
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""  # the group is gone in the end: one that is left aborts its process now and then
