"""The comparison with SpuCo, with a stand-in for SpuCo's process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from modules import load_file

from ipg.models.native import obstacle

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")

STAND_IN = """
import json, sys
print(json.dumps({"spuco": "0.0", "torch": "9.9"}), flush=True)
for _ in sys.stdin:
    print(0.5, flush=True)
"""


@pytest.fixture
def script(repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on the small network alone, with a stand-in that takes half a second an epoch."""
    module = load_file(repo_root / "benchmarks" / "against_spuco.py")
    worker = tmp_path / "worker.py"
    worker.write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setattr(module, "WORKER", worker)
    monkeypatch.setattr(module, "SIZES", {"small_cnn": 14})
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    return module


def test_everybody_is_measured_free_and_held(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--spuco-python", sys.executable, "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    free = [line for line in lines if line.startswith("colored_fashion_noisy small_cnn ours ERM: ")]
    assert [line.partition(" × ")[2].removeprefix("colored_fashion_noisy small_cnn ") for line in free] == [
        "SpuCo ERM",
        "network alone",
    ]
    assert sum(" held " in line.partition(":")[0] for line in lines) == len(lines) / 2
    fast = [line.partition(":")[0] for line in lines if "ERM compiled" in line]
    assert bool(fast) == (obstacle(half=False) is None)
    assert any("bf16" in name for name in fast) == (obstacle(half=True) is None)
    assert "colored_fashion_noisy small_cnn SpuCo GroupDRO: 512 images/s" in lines  # 256 images in half a second


def test_ratios_are_to_whom_they_say(script: ModuleType) -> None:
    rates = {
        "ours ERM": [6.0],
        "ours ERM compiled": [9.0],
        "ours GroupDRO": [6.0],
        "SpuCo ERM": [2.0],
        "SpuCo GroupDRO": [3.0],
        "network alone": [8.0],
    }
    found = {(one.case, one.baseline): one.ratio for one in script.in_words("data net", rates)}
    assert found["data net ours ERM", "data net SpuCo ERM"] == 3.0
    assert found["data net ours ERM compiled", "data net SpuCo ERM"] == 4.5
    assert found["data net ours ERM compiled", "data net ours ERM"] == 1.5
    assert found["data net ours GroupDRO", "data net SpuCo GroupDRO"] == 2.0
    assert found["data net SpuCo ERM", "data net network alone"] == 0.25


def test_a_process_that_ends_is_one_clear_line(script: ModuleType) -> None:
    script.WORKER.write_text("", encoding="utf-8")
    with pytest.raises(SystemExit, match="Is this the Python that has SpuCo"):
        script.main(["--spuco-python", sys.executable, "--quick"])


def test_quick_figures_stay_out_of_the_results(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--spuco-python", sys.executable, "--quick", "--write", "speed.jsonl"])
    assert "mean nothing" in capsys.readouterr().err


def test_cores_are_given_back(script: ModuleType) -> None:
    if not hasattr(os, "sched_getaffinity"):
        return
    before = os.sched_getaffinity(0)
    with script.held(1):
        assert len(os.sched_getaffinity(0)) == 1
    with script.held(None):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before
