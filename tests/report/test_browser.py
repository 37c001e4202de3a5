"""The page as a reader meets it, in headless Chromium."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipg.report.figures.boxes import boxes_data, draw_boxes
from ipg.report.page import write
from ipg.report.table_page import table_page

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


@pytest.mark.parametrize("width", [1280, 400])
def test_long_names_of_folders_fit(browser, page, run, tmp_path: Path, width: int) -> None:
    runs = [
        run(),
        *(run(f"Guided {n} (IPG)", "after", folder=f"{'a_long_name_of_a_folder' * 3}_{n}") for n in range(4)),
    ]
    visit(browser, write(tmp_path / "long.html", page(runs=runs, flips=[], looks=[])), width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = browser.execute_script(
        "return [...document.querySelectorAll('.card .folder, .legend .folder')]"
        "  .map(e => e.getBoundingClientRect().right)"
    )
    assert wide
    assert max(wide) <= width


@pytest.mark.parametrize("width", [1280, 360])
def test_long_names_of_groups_are_whole_and_fit(browser, page, run, tmp_path: Path, width: int) -> None:
    names = [
        "a bird of the water that is seen from far away, in front of a bamboo forest or of tall reeds",
        "garment_photographed_in_a_studio_by_daylight_without_a_model, white_background_of_the_second_shop",
    ]
    groups = dict(zip(names, ({"accuracy": share, "count": 1234} for share in (0.25, 0.5)), strict=True))
    result = {"selection": "last", "selected_epoch": 3, "metrics": {"worst_group": 0.25, "groups": groups}}
    runs = [run(result=result), run("Guided (IPG)", "after", result=result)]
    visit(browser, write(tmp_path / "long.html", page(runs=runs, flips=[], looks=[])), width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    figures = browser.execute_script(
        "return [...document.querySelectorAll('svg')].filter(e => e.ariaLabel.startsWith('Accuracy by group'))"
        "  .map(e => [e.textContent, Math.max(...[...e.querySelectorAll('text')].map("
        "    t => t.getBoundingClientRect().right - e.getBoundingClientRect().right))])"
    )
    shown = "".join("".join(text.split()) for text, _ in figures)
    assert all("".join(name.split()) in shown for name in names)
    assert max(beyond for _, beyond in figures) <= 1
    name, first = browser.execute_script(  # in the table beside them, whose box may be scrolled
        "return ['tr.main th', 'tr.main td:nth-child(3)'].map("
        "  s => document.querySelector('.results ' + s).getBoundingClientRect().right)"
    )
    assert name < first <= width  # not out of sight


@pytest.mark.parametrize("width", [1280, 360])
def test_a_table_with_figures_fits(browser, tmp_path: Path, width: int) -> None:
    svg = draw_boxes(boxes_data("Number of pairs", "pairs", ["40"], {"ours": [[0.5, 0.6]]}))
    cells = [["coloured fashion, noisy labels", "40 pairs, our settings", *["72.9 ± 2.3"] * 8]]
    path = tmp_path / "table.html"
    path.write_text(table_page("Pairs", ["It."], [*"abcdefghij"], cells, ["Means."], [svg, svg], text=2), "utf-8")
    visit(browser, path, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    rights = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().right)"
    )
    assert len(rights) == 2
    assert max(rights) <= width


def requests(browser: Any) -> list[str]:
    """What the page asked for since the visit, itself included."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith("data:")]


def test_no_error_and_no_request(browser, report: Path) -> None:
    visit(browser, report)
    assert browser.get_log("browser") == []
    assert requests(browser) == [report.as_uri()]


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


HOSTILE = (
    "\"><script>document.title='taken'</script><img src=https://example.org/x.png onerror=\"document.title='taken'\">"
)
"""What a class is called."""
HOSTILE_FILE = HOSTILE.replace("/", "&#47;")
"""What a file is called, where a slash would be a folder."""


@pytest.fixture(scope="module")
def hostile_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pages made by commands from images, classes and folders with markup for a name."""
    import csv

    from markdown_it import MarkdownIt
    from PIL import Image
    from typer.testing import CliRunner

    from ipg.cli import app

    folder = tmp_path_factory.mktemp("hostile")
    names = {"above": HOSTILE, "below": f"{HOSTILE} below"}
    with (folder / "photos.csv").open("w") as photos, (folder / "pairs.csv").open("w") as pairs:
        photo, pair = csv.writer(photos), csv.writer(pairs)
        photo.writerow(["path", "label", "attribute", "split"])
        pair.writerow(["first", "second", "label", "split", "status", "reason"])
        for number in range(48):
            label, split = number % 2, ("train", "train", "validation", "test")[number // 2 % 4]
            members = [f"{number}{color}{HOSTILE_FILE}.png" for color in ("red", "green")]
            for color, name in zip(("#c00000", "#00c000"), members, strict=True):
                picture = Image.new("RGB", (16, 16))
                picture.paste(color, (0, 8 * label, 16, 8 * label + 8))
                picture.putpixel((number % 16, 15 - 8 * label), (number, 0, 0))
                picture.save(folder / name)
                photo.writerow([name, [*names.values()][label], f"{color}{HOSTILE}", split])
            if split != "test":
                pair.writerow([*members, [*names.values()][label], split, "ok", HOSTILE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPG_CACHE", str(tmp_path_factory.mktemp("hostile-cache")))
        run = folder / HOSTILE_FILE
        for line in (
            ["train", "--data", folder / "photos.csv", "--pairs", folder / "pairs.csv", "--size", 16,
             "--model", "small_cnn", "--epochs", 2, "--batch", 8, "--pair-batch", 8, "--output", run],
            ["report", run, "--output", folder / "report.html"],
            ["pairs", "show", folder / "pairs.csv", "--output", folder / "sheet.html"],
            ["export", run, "--format", "torch", "--output", folder / "exported"],
        ):  # fmt: skip
            done = CliRunner().invoke(app, [str(part) for part in line], catch_exceptions=False)
            assert done.exit_code == 0, done.output
    text = (folder / "exported" / "README.md").read_text("utf-8")
    card = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)  # as a site that allows HTML shows it
    (folder / "card.html").write_text(f"<!doctype html><meta charset=utf-8><title>card</title>{card}", "utf-8")
    return folder


def test_marked_pairs_stand_in_commands_to_copy(browser, hostile_pages: Path) -> None:
    """By clicks and by the keyboard; what is not marked cannot be seen, and so is not copied."""
    visit(browser, hostile_pages / "sheet.html")
    footer = browser.find_element("tag name", "footer")
    assert not footer.is_displayed()
    first, second, third = browser.find_elements("css selector", "label.members")[:3]
    for label in (first, second, third):
        label.click()
    second.click()
    third.find_element("tag name", "input").send_keys(" ")
    assert footer.is_displayed()
    command = footer.find_element("tag name", "code")
    assert shlex.split(command.text) == ["ipg", "pairs", "reject", str(hostile_pages / "pairs.csv"), "1"]
    command.click()
    assert browser.execute_script("return getSelection().toString().trim()") == command.text
    first.click()
    assert not footer.is_displayed()


@pytest.mark.parametrize("page", ["report.html", "sheet.html", "card.html"])
def test_markup_in_names_of_images_is_text(browser, hostile_pages: Path, page: str) -> None:
    path = hostile_pages / page
    visit(browser, path)
    assert "document.title" in browser.execute_script("return document.body.textContent")  # the name is shown
    assert browser.title != "taken"
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.querySelectorAll('[onerror], [src*=example]').length") == 0
    assert browser.get_log("browser") == []
    assert requests(browser) == [path.as_uri()]


def printed(browser: Any) -> bytes:
    """The page as a PDF. What prints is a process of its own, which may fail on a busy machine: that is tried again."""
    from selenium.common.exceptions import WebDriverException

    for _ in range(2):
        try:
            return print_once(browser)
        except WebDriverException as problem:
            if "Printing failed" not in str(problem):
                raise
        time.sleep(1)
    return print_once(browser)


def print_once(browser: Any) -> bytes:
    return b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])


def test_it_prints(browser, report: Path) -> None:
    visit(browser, report, scheme=DARK)
    page = printed(browser)
    assert page.startswith(b"%PDF-")
    assert len(page) > 10_000
