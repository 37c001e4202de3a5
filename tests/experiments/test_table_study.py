"""A study as one table, in every format: figures worked out by hand, formats read back."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ipg.cli import app
from ipg.evaluation.spread import bootstrap
from ipg.experiments.arms import Figure
from ipg.experiments.study import load_study
from ipg.experiments.tables.formats import FORMATS
from ipg.experiments.tables.rows import ProvenanceError, measured_of
from ipg.experiments.tables.study import METRICS, StudyTable, study_table
from ipg.report.table_page import as_html

STUDY = """
dataset = "colored_mnist"
seeds = 3
[base]
epochs = 2
selection = "worst_group"
[[arm]]
method = "erm"
protocol = "paper"
[[arm]]
method = "ipg"
protocol = "paper"
config = { pairs = 124, alpha = 0.5 }
[[arm]]
method = "jtt"
protocol = "unified"
config = { options = { copies = 5 } }
"""
FIGURES = [
    Figure("colored_mnist", "tab:one", "ERM", 16.1, 0.8, method="erm"),
    Figure("colored_mnist", "tab:two", "IPG", 40.0, None, method="ipg", pairs=124, metric="worst_group"),
]


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    """Rows of ERM (10, 20, 30 %), which know no newer metric, and one of IPG, which does; none of JTT."""
    (tmp_path / "mine.toml").write_text(STUDY, encoding="utf-8")
    trials = load_study(tmp_path / "mine.toml").trials

    def row(number: int, average: float, **more: float) -> dict[str, Any]:
        trial = trials[number]
        metrics = {"average": average, "group_mean": 0.5, "worst_group": average / 2, "pair_disagreement": None, **more}
        metrics["groups"] = {"low, red": {"accuracy": average, "count": 5}}
        return {
            **{name: getattr(trial, name) for name in ("dataset", "method", "protocol", "seed")},
            "config": {name: value for name, value in trial.config.flat().items() if name != "seed"},
            "split": "test",
            "metrics": metrics,
            "last_metrics": metrics,
            "seconds": 2.0 + number,
            "hardware": "a | machine_1",
            "versions": {"ipg": "1", "python": "3.99", "torch": "9.9"},
            "commit": f"{number}123456789abcdef",
            "date": "2026-01-01",
        }

    return [row(0, 0.1), row(1, 0.2), row(2, 0.3), row(3, 0.8, auroc=0.9, calibration_error=0.05)]


@pytest.fixture
def write(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    file = tmp_path / "results" / "mine" / "trials.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def table(tmp_path: Path, write: Path) -> StudyTable:
    return study_table(measured_of(load_study(tmp_path / "mine.toml"), write), FIGURES)


def test_numbers_by_hand(table: StudyTable) -> None:
    plain, guided, missing = table.lines
    average = plain.values["average"]
    assert average is not None
    assert (average.mean, average.deviation, average.count) == pytest.approx((0.2, 0.1, 3))
    assert average.interval == bootstrap([0.1, 0.2, 0.3])
    assert plain.difference("average") == pytest.approx(20 - 16.1)
    assert guided.difference("average") is None
    assert guided.difference("worst_group") == pytest.approx(0.0)
    assert plain.values["auroc"] is None  # its rows are from before
    assert guided.values["auroc"] is not None
    assert (plain.seeds, guided.seeds, guided.asked, missing.seeds) == (3, 1, 3, 0)
    assert plain.seconds == 3.0
    assert plain.commits == ("0123456789abcdef", "1123456789abcdef", "2123456789abcdef")
    assert missing.settings["copies"] == 5
    assert plain.settings == {"pairs": None, "alpha": None, "copies": None}


def test_class_weights_are_a_dash_where_a_method_takes_none(tmp_path: Path, write: Path) -> None:
    """LfF is given the setting as every method is, and weighs no class."""
    more = """[[arm]]
method = "erm"
protocol = "unweighted"
config = { class_weighted = false }
[[arm]]
method = "lff"
protocol = "unified"
"""
    (tmp_path / "mine.toml").write_text(STUDY + more, encoding="utf-8")
    lines = study_table(measured_of(load_study(tmp_path / "mine.toml"), write), FIGURES).lines
    assert [line.settings["class_weighted"] for line in lines] == [True, True, True, False, None]


def test_seeds_that_broke_off_are_told(tmp_path: Path, write: Path, rows: list[dict[str, Any]]) -> None:
    """With what they are worth, or with a dash where there was nothing to measure."""
    empty = {**dict.fromkeys(rows[3]["metrics"]), "groups": {}}
    rows[1] |= {"collapse": "the model has collapsed"}
    rows[3] |= {"collapse": "the loss is NaN", "metrics": empty, "last_metrics": empty}
    write.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table = study_table(measured_of(load_study(tmp_path / "mine.toml"), write), FIGURES)
    plain, guided, _ = [dict(zip(table.head, line, strict=True)) for line in table.cells]
    assert (plain["accuracy"], plain["collapsed"]) == ("20.0 ± 10.0 (10.0 to 30.0)", "1")
    assert (guided["accuracy"], guided["worst group"], guided["collapsed"]) == ("–", "–", "1")
    notes = " ".join(table.notes)
    assert "Collapsed: seeds that predict one class for every image, or whose training broke off." in notes
    assert "No figure where a seed broke off before there was a network to measure: IPG (paper): 1 of 1." in notes
    for form in FORMATS.values():
        assert form(table)


def test_cells_say_what_a_reader_needs(table: StudyTable) -> None:
    cells = [dict(zip(table.head, line, strict=True)) for line in table.cells]
    plain, guided, missing = cells
    assert plain["method"] == "ERM (paper)"
    assert plain["accuracy"] == "20.0 ± 10.0 (10.0 to 30.0)"
    first = table.head.index("accuracy")
    assert table.head[first : first + 3] == ["accuracy", "paper", "difference"]
    assert table.cells[0][first + 1 : first + 3] == ["16.1 ± 0.8", "+3.9"]
    assert (plain["AUROC"], guided["AUROC"], plain["accuracy, reweighted"]) == ("–", "90.0", "–")
    assert (plain["seeds"], guided["seeds"], missing["seeds"]) == ("3", "1 of 3", "0 of 3")
    assert (plain["selection"], plain["hardware"]) == ("worst_group", "a | machine_1")
    assert guided["commit"] == "`3123456`"
    assert {missing[name] for name in (*METRICS.values(), "seconds", "commit")} == {"–"}
    assert "epochs 2" in table.shared
    assert "a | machine_1; torch 9.9, Python 3.99" in table.origin


def test_a_table_without_published_figures_tells_of_no_difference(table: StudyTable) -> None:
    assert "Difference: ours less the paper's, in points." in table.notes[0]
    mine = replace(table, lines=tuple(replace(line, paper={}) for line in table.lines))
    assert "difference" not in mine.head
    assert "Difference" not in " ".join(mine.notes)


def test_groups_have_columns_on_request(
    tmp_path: Path, write: Path, rows: list[dict[str, Any]], table: StudyTable
) -> None:
    """Balanced accuracy by hand: class low 10 of 20 and 5 of 5 right, class high 1 of 4: (15/25 + 1/4) / 2."""
    assert "balanced accuracy" not in table.head
    groups = {"low, red": (0.5, 20), "low, green": (1.0, 5), "high, red": (0.25, 4), "high, green": (None, 0)}
    rows[3]["metrics"]["groups"] = {name: {"accuracy": a, "count": n} for name, (a, n) in groups.items()}
    rows[0]["metrics"]["balanced"] = 0.7
    write.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = study_table(measured_of(load_study(tmp_path / "mine.toml"), write), FIGURES, groups=True)
    plain, guided, _ = [dict(zip(found.head, line, strict=True)) for line in found.cells]
    assert (guided["balanced accuracy"], guided["low, red"], guided["high, red"]) == ("42.5", "50.0", "25.0")
    assert (guided["high, green"], plain["high, red"]) == ("–", "–")
    assert plain["low, red"] == "20.0 ± 10.0 (10.0 to 30.0)"
    assert plain["balanced accuracy"].startswith("40.0 ± ")  # 70, 20 and 30 %
    assert found.records()[1]["group: low, red"] == 0.5
    for form in (*FORMATS.values(), as_html):
        assert form(found)


def test_two_arms_are_compared_seed_by_seed(tmp_path: Path, write: Path, rows: list[dict[str, Any]]) -> None:
    """IPG has seeds 0 and 1: 80 and 90 % against 10 and 20 %, so 70 points more, twice."""
    trial = load_study(tmp_path / "mine.toml").trials[4]
    second = {**rows[3], "seed": trial.seed, "metrics": {**rows[3]["metrics"], "average": 0.9}}
    write.write_text("".join(json.dumps(row) + "\n" for row in [*rows, second]), encoding="utf-8")
    measured = measured_of(load_study(tmp_path / "mine.toml"), write)
    for names in (("ipg", "erm"), ("2", "1"), ("ipg/paper", "erm/paper")):
        found = study_table(measured, FIGURES, compare=names)
        worst, average = found.compared
        assert (average.seeds, average.result.p) == (2, 0.5)
        assert average.result.difference.mean == pytest.approx(0.7)
        assert worst.result.values == pytest.approx((0.35, 0.3))  # 40 % of either, less 5 and 10 %
        told = found.notes[-2]
        assert told.startswith("IPG (paper, line 2) less ERM (paper, line 1) over the 2 seeds that both have")
        assert "accuracy +70.0 ± 0.0 (+70.0 to +70.0), p 0.5" in told
    assert json.loads(FORMATS["json"](found))["compared"][1]["difference"] == pytest.approx(0.7)
    for names, says in (
        (("ipg", "lff"), r"--compare lff: no arm is called so; .*\(1: erm/paper, 2: ipg/paper, 3: jtt/unified\)"),
        (("ipg", "jtt"), "the two have no seed in common"),
    ):
        with pytest.raises(ValueError, match=says):
            study_table(measured, FIGURES, compare=names)


def test_markdown_has_a_cell_for_each(table: StudyTable) -> None:
    lines = [line for line in FORMATS["md"](table).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {len(table.head) + 2}
    assert "a \\| machine_1" in lines[2]


def test_latex_is_balanced_and_escaped(table: StudyTable) -> None:
    text = FORMATS["latex"](table)
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 3
    assert all(line.endswith(r" \\") and line.count(" & ") == len(table.head) - 1 for line in body)
    assert r"20.0 $\pm$ 10.0" in body[0]
    assert r"worst\_group" in body[0]
    assert r"\texttt{3123456}" in body[1]
    assert not re.search(r"(?<!\\)[_%#]", text.partition(r"\caption")[2].replace(r"\label{tab:mine}", ""))
    assert text.count("{") == text.count("}")
    assert re.findall(r"\\(?:begin|end)\{(\w+)\}", text) == ["table", "tabular", "tabular", "table"]


def test_csv_and_json_hold_every_number_in_full(table: StudyTable) -> None:
    read = list(csv.DictReader(io.StringIO(FORMATS["csv"](table))))
    found = json.loads(FORMATS["json"](table))
    assert [line["method"] for line in read] == ["erm", "ipg", "jtt"]
    for line, arm, given in zip(read, found["arms"], table.records(), strict=True):
        assert arm == given
        for name, value in given.items():
            assert line[name] == ("" if value is None else str(value))
    assert float(read[0]["average"]) == pytest.approx(0.2)
    assert float(read[0]["average_difference"]) == pytest.approx(3.9)
    assert read[0]["auroc"] == ""
    assert read[1]["worst_group_paper"] == "40.0"
    assert (found["study"], found["split"]) == ("mine", "test")


def test_no_cell_of_the_csv_is_a_formula(table: StudyTable) -> None:
    hostile = replace(table, lines=tuple(replace(line, hardware=("=1+1",), seconds=-1.5) for line in table.lines))
    read = list(csv.DictReader(io.StringIO(FORMATS["csv"](hostile))))
    assert {(line["hardware"], line["seconds"]) for line in read} == {("'=1+1", "-1.5")}


def test_the_page_is_escaped(table: StudyTable, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    page = as_html(table)
    assert page.count("<tr>") == 4
    assert '20.0 ± 10.0 <span class="span">10.0 to 30.0</span>' in page
    file = tmp_path / "hostile.jsonl"
    hostile = [{**rows[0], "hardware": "<script>alert(1)</script>"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in hostile), encoding="utf-8")
    page = as_html(study_table(measured_of(load_study(tmp_path / "mine.toml"), file), []))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("name", ["hardware", "versions", "commit", "date"])
@pytest.mark.parametrize("how", ["absent", "null"])
def test_a_row_that_does_not_name_its_origin_enters_no_table(
    tmp_path: Path, rows: list[dict[str, Any]], write: Path, name: str, how: str
) -> None:
    if how == "absent":
        del rows[1][name]
    else:
        rows[1][name] = None
    write.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(ProvenanceError, match=f"the row of erm, seed 1, does not name its {name}, so that no table"):
        measured_of(load_study(tmp_path / "mine.toml"), write)


def test_a_row_that_does_not_tell_a_version_that_tables_quote(
    tmp_path: Path, rows: list[dict[str, Any]], write: Path
) -> None:
    del rows[1]["versions"]["torch"]
    write.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the row of erm, seed 1, is damaged \(versions is not what a trial writes"):
        measured_of(load_study(tmp_path / "mine.toml"), write)


# -- the command -------------------------------------------------------------------------------------------------------


def ipg(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["table", *map(str, arguments)], prog_name="ipg")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.usefixtures("write")
def test_the_command_prints_or_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = ipg("mine.toml")
    assert code == 0
    assert out.startswith("| method |")
    assert ipg("mine.toml", "--results", "results/mine")[1] == out
    for kind in ("latex", "csv", "json", "html"):
        assert ipg("mine.toml", "--format", kind, "--output", f"t.{kind}") == (0, f"Table: t.{kind}\n", "")
        assert (tmp_path / f"t.{kind}").stat().st_size > 300


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize("kind", [*FORMATS, "html"])
def test_a_table_replaces_itself_and_no_other_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["mine.toml", "--format", kind, "--output", "t"]
    for _ in range(2):
        assert ipg(*line)[0] == 0
    made = (tmp_path / "t").read_bytes()
    for theirs in ("", "\\begin{table}\n\\centering\n", "method,seeds\n", '{\n  "a": 1\n}\n', "<html></html>"):
        (tmp_path / "t").write_text(theirs)
        code, _, err = ipg(*line)
        assert code == 2
        assert f"t exists and is no {kind} table of mine; name another file with --output" in err
        assert (tmp_path / "t").read_text() == theirs
    assert ipg(*line, "--force")[0] == 0
    assert (tmp_path / "t").read_bytes() == made


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mine.toml", "--format", "doc"], "there is no format 'doc'; there are md, latex, csv, json, html"),
        (["mine.toml", "--results", "nowhere"], "there are no rows of mine in nowhere; make them with: ipg study"),
        (["no_such_study"], "there is no study 'no_such_study'"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ipg(*arguments)
    assert code == 2
    assert err.startswith("ipg: ")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_study_without_rows_says_how_to_make_them(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY, encoding="utf-8")
    with pytest.raises(ValueError, match="there is no row of mine; `ipg study mine` makes them"):
        study_table(measured_of(load_study(tmp_path / "mine.toml"), tmp_path / "none.jsonl"), [])
