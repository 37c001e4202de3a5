"""Programs that are forked in place of being started: they end, speak and are ended as others do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from forking import Template

pytestmark = pytest.mark.slow

SAYS = """
import atexit, os, sys, warnings
atexit.register(print, "bye")
print(sys.argv[1:], os.environ["WHO"], os.getcwd(), __name__, "OLD" in os.environ, os.getsid(0) == os.getpid())
print("to err", file=sys.stderr)
if sys.argv[1] == "warn":
    warnings.warn("odd")
sys.exit(sys.argv[1] if sys.argv[1] == "words" else int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SAYS)
    return path


def test_it_ends_and_speaks(template: Template, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", "1")
    out, own = tmp_path / "out", {"WHO": "me"}
    process = template.start(script, 3, log=tmp_path / "err", out=out, folder=tmp_path, environment=own)
    assert process.wait(60) == process.returncode == process.poll() == 3
    assert out.read_text() == f"['3'] me {tmp_path} __main__ True True\nbye\n"
    assert process.log.read_text() == "to err\n"
    monkeypatch.delenv("OLD")
    process = template.start(script, 0, log=tmp_path / "both", environment=own)
    assert process.wait(60) == 0
    assert process.log.read_text() == f"to err\n['0'] me {Path.cwd()} __main__ False True\nbye\n"


@pytest.mark.parametrize(
    ("word", "says"), [("warn", "UserWarning: odd"), ("nothing", "ValueError"), ("words", "words\n")]
)
def test_it_fails(template: Template, script: Path, tmp_path: Path, word: str, says: str) -> None:
    process = template.start(script, word, log=tmp_path / "log", environment={"WHO": "me"})
    assert process.wait(60) == 1
    assert says in process.log.read_text()


def test_modules_run_too(template: Template, tmp_path: Path) -> None:
    process = template.start("-m", "ipg", "train", "--epochs", "0", log=tmp_path / "log")
    assert process.wait(60) == 2
    assert process.log.read_text() == "ipg: epochs='0': expected at least 1\n"


def test_it_is_waited_for_and_ended(template: Template, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(600)\n")
    process = template.start(script, log=tmp_path / "log")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    process.kill()  # nothing is left to be ended


def test_nothing_is_left(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(600)\n")
    template = Template()
    process = template.start(script, log=tmp_path / "log")
    template.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
