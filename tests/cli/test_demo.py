"""`ipg demo`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ipg.training import loop


@pytest.mark.slow
def test_three_runs_a_table_and_a_page_and_at_once_the_second_time(ipg, tmp_path: Path) -> None:
    done = ipg("demo", "--epochs", "1")
    assert done.code == 0, done
    assert max(map(len, done.out.splitlines())) <= 80
    results = [
        json.loads((tmp_path / "ipg-demo" / name / "result.json").read_text()) for name in ("erm", "oracle", "ipg")
    ]
    row = next(line for line in done.out.splitlines() if line.startswith("│ average"))
    assert [cell.strip() for cell in row.strip("│").split("│")[1:]] == [
        f"{100 * result['metrics']['average']:.1f}" for result in results
    ]
    assert results[0]["metrics"]["average"] < 0.5 < results[2]["metrics"]["average"]
    assert "Guided by 40 pairs." in done.out
    assert done.out.endswith("Report: ipg-demo/report.html\n")
    page = (tmp_path / "ipg-demo" / "report.html").read_text(encoding="utf-8")
    for name in (
        "On clothes whose colour changed",
        "Plain training (ERM)",
        "Without colour (oracle)",
        "Guided by pairs",
    ):
        assert name in page

    again = ipg("demo", "--epochs", "1")
    assert again.code == 0
    assert again.out.count("finished before, read from") == 3
    assert "  epoch" not in again.out
    assert row in again.out


def test_a_stop_in_the_last_part_of_a_run_comes_before_the_next(ipg, tmp_path: Path, monkeypatch) -> None:
    real = loop.Training._finish

    def late(run) -> object:
        signal.raise_signal(signal.SIGINT)
        return real(run)

    monkeypatch.setattr(loop.Training, "_finish", late)
    done = ipg("demo", "--epochs", "1")
    said = "ipg: stopped after Plain training (ERM); run the same command again to go on\n"
    assert (done.code, done.err) == (130, said)
    assert [path.name for path in (tmp_path / "ipg-demo").iterdir()] == ["erm"]
    assert (tmp_path / "ipg-demo" / "erm" / "done").exists()


def test_settings_reach_the_runs(ipg, monkeypatch) -> None:
    asked = []

    def stop(config, materials, **options) -> None:
        asked.append((config, options["folder"]))
        raise ValueError("seen enough")

    monkeypatch.setattr("ipg.training.loop.train", stop)
    done = ipg("demo", "--epochs", "2", "--pairs", "6", "--seed", "3", "--device", "cpu", "--output", "there")
    assert (done.code, done.err) == (2, "ipg: seen enough\n")
    ((config, folder),) = asked
    assert (config.method, config.epochs, config.pairs, config.seed, config.device) == ("erm", 2, 6, 3, "cpu")
    assert folder == Path("there/erm")
