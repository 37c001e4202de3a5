"""`ipg report`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def test_both_runs_stand_on_the_page(ipg, embedded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/ipg", "report", "plain run", "guided"])
    done = ipg("report", embedded_runs / "plain", embedded_runs / "guided", "--output", "new/page.html")
    assert (done.code, done.out) == (0, "Report: new/page.html\n")
    page = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "Plain training (ERM)" in page
    assert "Guided by pairs (IPG)" in page
    assert "Training used 8 pairs for 12,000 images" in page
    assert "ipg report &#39;plain run&#39; guided" in page
    assert "shoe" not in page  # the words of the demo are its own
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["page.html"]


def test_one_run_is_enough_and_the_page_lands_here(ipg, finished: Path, tmp_path: Path) -> None:
    assert ipg("report", finished).out == "Report: report.html\n"
    assert "Guided by pairs (IPG)" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_page_inside_the_run_does_not_disturb_it(ipg, bars: list[str], finished: Path) -> None:
    assert ipg("report", finished, "--output", finished / "report.html").code == 0
    assert "nothing to do" in ipg("train", *bars, "--output", finished).out
