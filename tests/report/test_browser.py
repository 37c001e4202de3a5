"""The page as a reader meets it, in headless Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipg.report.page import write

pytestmark = pytest.mark.slow

LIGHT, DARK = "light", "dark"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield running
    finally:
        running.quit()


def visit(browser: Any, path: Path, *, width: int = 1280, scheme: str = LIGHT) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    for log in ("browser", "performance"):
        browser.get_log(log)  # forget what came before
    browser.get(path.as_uri())


@pytest.fixture
def report(page, tmp_path: Path) -> Path:
    return write(tmp_path / "report.html", page())


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize("width", [1280, 360])
def test_everything_is_drawn_and_fits(browser, report: Path, width: int, scheme: str) -> None:
    visit(browser, report, width=width, scheme=scheme)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg, img')].map(e => {"
        "  const r = e.getBoundingClientRect();"
        "  return [e.tagName.toLowerCase(), r.width, r.height, e.naturalWidth ?? 1, r.right]; })"
    )
    assert [size[0] for size in sizes].count("svg") == 1 + 2 + 3  # groups, pairs, curves
    assert [size[0] for size in sizes].count("img") == 2 * 4 + 2 * 3 + 2 * 2 * 3  # gallery, flips, looks
    for tag, wide, high, natural, right in sizes:
        assert wide > 20, tag
        assert high > 20, tag
        assert natural > 0, tag  # decoded
        assert right <= width, tag
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # nothing sticks out


def test_no_error_and_no_request(browser, report: Path) -> None:
    visit(browser, report)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert report.as_uri() in asked
    assert [url for url in asked if not url.startswith("data:") and url != report.as_uri()] == []


def test_figures_follow_the_colour_scheme(browser, report: Path) -> None:
    seen = {}
    for scheme in (LIGHT, DARK):
        visit(browser, report, scheme=scheme)
        seen[scheme] = browser.execute_script(
            "const text = getComputedStyle(document.querySelector('svg text'));"
            "const body = getComputedStyle(document.body);"
            "return [text.fill, body.backgroundColor, text.fontFamily === body.fontFamily]"
        )
    assert seen[LIGHT] == ["rgb(27, 31, 36)", "rgb(251, 251, 250)", True]
    assert seen[DARK] == ["rgb(233, 235, 238)", "rgb(20, 23, 27)", True]


def test_script_in_a_name_does_not_run(browser, page, run, tmp_path: Path) -> None:
    name = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
    data = page(title="Kept", runs=[run(name)], flips=[])
    visit(browser, write(tmp_path / "hostile.html", replace(data, command=name)))
    assert browser.title.startswith("Kept")
    assert browser.execute_script("return document.scripts.length") == 0


def test_it_prints(browser, report: Path) -> None:
    visit(browser, report, scheme=DARK)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 10_000
