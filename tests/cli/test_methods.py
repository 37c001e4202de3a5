"""`ipg methods`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from ipg.config import RunConfig
from ipg.experiments.search.space import describe, gather_space
from ipg.methods import METHODS
from ipg.methods.options import option_defaults


def test_all_methods_are_listed(ipg) -> None:
    done = ipg("methods")
    assert done.code == 0
    assert max(map(cell_len, done.out.splitlines())) <= 80
    for name, kind in METHODS.items():
        row = next(line for line in done.out.splitlines() if line.startswith(f"│ {name} "))
        assert ("pairs" in row.rsplit("│", 2)[1]) == ("pairs" in kind.needs)


@pytest.mark.parametrize(("width", "lines"), [(80, 7), (100, 4)])
def test_the_list_tells_costs_and_papers_and_stays_readable(
    ipg, monkeypatch: pytest.MonkeyPatch, width: int, lines: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = ipg("methods").out
    assert max(map(cell_len, out.splitlines())) <= width
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    cells: dict[str, list[list[str]]] = {}
    for row in rows:
        name = row[0] or name  # noqa: F821 - of the row above
        cells.setdefault(name, []).append(row)
    assert max(map(len, cells.values())) <= lines
    told = {
        name: [" ".join(" ".join(column).split()) for column in zip(*found, strict=True)]
        for name, found in cells.items()
    }
    assert told["groupdro"][1].endswith("the worse they do. Sagawa et al. 2020")
    assert told["coral"][1].endswith("Sun and Saenko 2016")
    assert told["erm"][1:3] == [
        "Plain training: cross-entropy, weighted by class unless told otherwise. Vapnik 1991",
        "1",
    ]
    assert (told["ipg"][2], told["meta_irm"][2]) == ("1 + 2 B_I/(k B_D)", "3 E + 1")
    assert (told["jtt"][2], told["dkt"][2]) == ("1, and a first stage and repeated images", "1")  # by its defaults
    for name in ("dfr", "ncm", "eva_e", "subg", "shape_only", "epg"):
        assert told[name][2] == METHODS[name].cost
    assert told["dfr"][3] == "validation groups"
    assert told["dair"][3] == "shortcut rule"


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_described_with_its_options(ipg, name: str) -> None:
    done = ipg("methods", name)
    assert done.code == 0
    options = [line for line in done.out.splitlines() if line.startswith("-o ")]
    expected = {"joint": ["order=task_first|alignment_first|sum (default task_first)",
                          "loss=alignment|corrective (default alignment)"]}  # fmt: skip
    assert [line.split("=")[0] for line in options] == [f"-o {option}" for option in option_defaults(METHODS[name])]
    assert options == [f"-o {option}" for option in expected.get(name, [])] or name not in expected
    prose = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert max(map(cell_len, prose)) <= 80


def test_what_a_search_looks_at_is_told(ipg) -> None:
    out = " ".join(ipg("methods", "jtt").out.split())
    assert "-o copies=… (default 20) search first_epochs one of 1, 2, 4; copies one of 5, 20, 50, 100 needs" in out
    assert "logarithmic" not in ipg("methods", "--long").out


@pytest.mark.parametrize("name", METHODS)
def test_the_ranges_told_of_are_those_that_a_search_takes(ipg, name: str) -> None:
    out = " ".join(ipg("methods", name).out.split())
    for setting, range_ in gather_space(RunConfig(method=name)).items():
        assert f"{setting} {describe(range_)}" in out
    widest = describe(gather_space(RunConfig(every=1))["alpha"])
    assert (f"({widest} with --every 1)" in out) == (name in ("ipg", "continuous"))


def test_formulas_keep_their_lines_and_sentences_are_set_anew(ipg) -> None:
    out = ipg("methods", "joint").out
    assert "    order=sum               θ ← θ − η (g_T + g_A)\n" in out
    assert "under \nthe heading" in out


@pytest.mark.parametrize("name", METHODS)
def test_costs_needs_and_papers_are_told(ipg, name: str, tmp_path: Path) -> None:
    out = ipg("methods", name, "--results", str(tmp_path)).out
    facts = dict(line.split(maxsplit=1) for line in out.splitlines()[-12:] if line.startswith("  ") and line[2] != " ")
    assert facts["cost"].startswith(METHODS[name].cost)
    assert {"needs", "paper"} <= set(facts)
    assert {"verified", "unverified"} & set(facts)  # by the project's own rows


def test_the_long_list_says_what_rows_say(ipg, tmp_path: Path) -> None:
    plain = {"method": "oracle", "protocol": "paper", "split": "test", "dataset": "colored_mnist", "config": {}}
    plain |= {"hardware": "a machine", "versions": {"torch": "9.9", "python": "3.99"}, "commit": "0123456"}
    plain |= {"date": "2026-01-01", "seconds": 1.5}
    rows = [{**plain, "seed": seed, "metrics": {"average": 0.73 + seed / 1000}} for seed in range(5)]
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "trials.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = ipg("methods", "--long", "--results", str(tmp_path))
    assert done.code == 0
    assert max(map(cell_len, done.out.splitlines())) <= 80
    parts = done.out.split("\noracle: ")[1].splitlines()
    assert "  verified  73.2 ± 0.2 with 5 seeds on colored_mnist, published 73.1 ± 0.4:" in parts[4]
    for name in METHODS:
        assert f"\n{name}: " in f"\n{done.out}"
    listed = ipg("methods", "--results", str(tmp_path)).out.split("Cost: times")[0]
    assert listed.count("verified") == 1
    assert "verified" in listed.split("│ oracle ")[1].split("│ ipg ")[0]


def test_without_rows_the_package_knows_what_the_projects_own_gave(ipg, repo_root: Path) -> None:
    for name in ("ipg", "erm", "gals"):
        assert ipg("methods", name).out == ipg("methods", name, "--results", repo_root / "results").out
    assert "verified  73." in ipg("methods", "ipg").out


def test_a_method_of_ones_own_without_ranges_is_described(ipg, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(METHODS["erm"]):  # type: ignore[misc]
        name, summary, space = "plain", "As simple as can be.", {}

    monkeypatch.setitem(METHODS, "plain", Plain)
    done = ipg("methods", "plain")
    assert done.code == 0, done
    assert "  search      nothing of its own: name settings, e.g. --vary learning_rate " in done.out
    assert "As simple as can be." in ipg("methods").out


@pytest.mark.parametrize(("name", "meant"), [("IPG", "ipg"), ("dia", "dair")])
def test_a_method_that_is_nearly_one(assert_refused, name: str, meant: str) -> None:
    assert_refused("methods", name, says=(f"there is no method {name!r}; did you mean {meant}? There are erm",))
