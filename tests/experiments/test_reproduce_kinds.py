"""Reproductions that are more than a table of trials: galleries, theory, dynamics, searches."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ipg.data import load
from ipg.data.errors import DataError
from ipg.experiments.reproduce.cells import read_markdown
from ipg.experiments.reproduce.galleries import gallery
from ipg.experiments.reproduce.page import filled
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.run import Place, reproduce, reproduce_all
from ipg.experiments.reproduce.search import search_rows, search_table
from ipg.experiments.reproduce.table import quick_note
from ipg.experiments.tables.rows import ProvenanceError
from ipg.files import write_jsonl
from ipg.pairs.references import name_of

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "results", tmp_path / "out", device="cpu", workers=1, console=Console(quiet=True))


def test_galleries_go_to_the_users_folder(place: Place, tmp_path: Path) -> None:
    written = reproduce("galleries", place, quick=True)
    assert {path.name for path in written.files} == {
        "colored_fashion_noisy-perfect.svg",
        "colored_fashion_noisy-random.svg",
    }
    for file in written.files:
        assert file.is_relative_to(tmp_path / "out")
        assert file.read_text(encoding="utf-8").count("<image") == 20  # ten pairs of two


def test_a_gallery_shows_rejected_pairs_too(tmp_path: Path) -> None:
    table = load.load("colored_fashion")
    rows = table.indices("train")[:3].tolist()
    folder = tmp_path / "pairs-9"
    folder.mkdir()
    states = (("0.9", "ok", ""), ("0.2", "rejected", "label changed"), ("0.8", "ok", ""))
    lines = ["first,second,label,split,builder,score,status,reason"]
    for row, state in zip(rows, states, strict=True):
        name = f"data:{name_of(table, row)}"
        lines.append(",".join([name, name, table.classes[int(table.label[row])], "train", "edited", *state]))
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    entry = {"dataset": "colored_fashion", "files": ["pairs-9", "pairs-10"]}
    (made,), (missing,) = gallery(entry, 5, tmp_path / "out", str(tmp_path))
    assert "label changed" in made.read_text(encoding="utf-8")
    assert missing == "colored_fashion: there is no pairs-10 beside the data; it holds pairs by `ipg pairs build`"


def test_pairs_that_nobody_has_judged_are_audited_for_a_gallery(tmp_path: Path) -> None:
    """The members of one are the same image: the shortcut cannot have changed. The manifest stays as it is."""
    table = load.load("colored_fashion")
    name = f"data:{name_of(table, int(table.indices('train')[0]))}"
    label = table.classes[int(table.label[table.indices("train")[0]])]
    folder = tmp_path / "pairs-9"
    folder.mkdir()
    written = f"first,second,label,split,builder\n{name},{name},{label},train,edited\n"
    (folder / "manifest.csv").write_text(written, encoding="utf-8")
    (made,), () = gallery({"dataset": "colored_fashion", "files": ["pairs-9"]}, 5, tmp_path / "out", str(tmp_path))
    assert "shortcut not changed" in made.read_text(encoding="utf-8")
    assert (folder / "manifest.csv").read_text(encoding="utf-8") == written


def test_a_gallery_without_its_data_says_what_to_fetch(tmp_path: Path) -> None:
    made, (missing,) = gallery({"dataset": "waterbirds100", "files": ["pairs-124"]}, 5, tmp_path, str(tmp_path / "no"))
    assert made == []
    assert "docs/data.md says how" in missing


def test_settings_that_a_search_found_stand_beside_the_papers(tmp_path: Path) -> None:
    found = load_reproduction("hyperparameters")
    (tmp_path / "colored_mnist").mkdir()
    origin = "# ipg on colored_mnist: the best of 37 trials of `ipg search`.\n# Best: trial 5, 0.7312 (alpha 0.3).\n"
    content = f'{origin}alpha = 0.3\ntau = 0.0\nepochs = 20\nselection = "training_environments"\n'
    (tmp_path / "colored_mnist" / "best.toml").write_text(content, encoding="utf-8")
    source = {"hardware": "a machine", "versions": {"python": "3.99", "torch": "9.9"}, "date": "2026-01-01"}
    rows = [{"value": 0.7, "commit": commit, **source} for commit in ("0123456789", "abcdef0123")]
    write_jsonl(tmp_path / "colored_mnist" / "trials.jsonl", rows)
    table = search_table(found, tmp_path)
    assert table.notes[-1] == "a machine; torch 9.9, Python 3.99; commit `0123456` and `abcdef0`."
    assert "`training_environments`, the paper's on ColoredMNIST" in table.notes[1]
    papers, ours, *_ = table.records
    assert (papers["alpha"], papers["hardware"], papers["selection"]) == (0.5, "", None)
    assert (ours["alpha"], ours["trials"], ours["score"]) == (0.3, 37, pytest.approx(73.12))
    assert (ours["hardware"], ours["commit"]) == ("a machine", "0123456 and abcdef0")
    assert ours["selection"] == "training_environments"
    write_jsonl(tmp_path / "colored_mnist" / "trials.jsonl", [*rows, {**rows[0], "commit": ""}])
    with pytest.raises(ProvenanceError, match="does not name its commit, so that no table may quote it"):
        search_rows(found, tmp_path)
    lines = table.lines
    assert [line[-3:] for line in lines[:4]] == [
        ("100", "–", ""),
        ("37", "73.1", "not done: 37 of 100 trials; rows of 2 of 37 trials are here"),
        ("100", "–", ""),
        ("–", "–", "not run"),
    ]
    assert "the best of the trials" in table.notes[0]
    assert lines[0][:4] == ("ColoredMNIST", "paper", "0.5", "0")
    assert lines[1][:4] == ("ColoredMNIST", "ours", "0.3", "0")
    assert lines[3][-1] == "not run"


@pytest.mark.parametrize(
    ("trials", "rows", "expected"),
    [
        (100, 100, ""),
        (8, 8, "not done: 8 of 100 trials; all drawn at random"),
        (10, 10, "not done: 10 of 100 trials; all drawn at random"),
        (11, 11, "not done: 11 of 100 trials"),
        (100, 60, "rows of 60 of 100 trials are here"),
        (8, 11, "not done: 8 of 100 trials; all drawn at random; settings of the first 8, and 11 have ended: "
         "run it again"),
    ],
)  # fmt: skip
def test_a_search_says_what_it_lacks(trials: int, rows: int, expected: str, tmp_path: Path) -> None:
    """TPE draws its first ten trials at random."""
    (home := tmp_path / "waterbirds100").mkdir()
    origin = f"# ipg on waterbirds100: the best of {trials} trials of `ipg search`.\n# Best: trial 5, 73.12 % (x).\n"
    (home / "best.toml").write_text(f"{origin}alpha = 0.3\n", encoding="utf-8")
    source = {"hardware": "a machine", "versions": {"python": "3.99", "torch": "9.9"}, "date": "2026-01-01"}
    write_jsonl(home / "trials.jsonl", [{"value": 0.7, "commit": "0123456789", **source}] * rows)
    table = search_table(load_reproduction("hyperparameters"), tmp_path)
    paper, ours = table.records[2:4]
    assert (paper["note"], paper["trials"], paper["trials asked"]) == ("", 100, None)
    assert (ours["note"], ours["trials"], ours["trials asked"]) == (expected, trials, 100)
    assert table.lines[3][-3:] == (str(trials), "73.1", expected)


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([("wrong", 0.0)], ("1", "in vain: of 1 trial none came to its end (1 went wrong)")),
        ([("pruned", 0.5)] * 2, ("2", "in vain: of 2 trials none came to its end (2 were given up)")),
        (
            [("wrong", 0.0), ("wrong", 0.0), ("complete", 0.0), ("pruned", 0.0)],
            ("4", "in vain: of 4 trials none was worth more than 0 (2 went wrong, 1 was given up)"),
        ),
        ([("complete", 0.0)], ("1", "in vain: of 1 trial none was worth more than 0")),
        ([("complete", 0.7), ("wrong", 0.0)], ("2", "no settings written yet; run it again")),
        ([], ("–", "begun, but no trial has ended")),
    ],
)
def test_a_search_that_found_nothing_says_what_became_of_it(
    trials: list[tuple[str, float]], expected: tuple[str, str], tmp_path: Path
) -> None:
    source = {"hardware": "a machine", "versions": {"python": "3.99", "torch": "9.9"}, "date": "2026-01-01"}
    rows = [{"state": state, "value": value, "commit": "0123456789", **source} for state, value in trials]
    (tmp_path / "colored_mnist").mkdir()
    if rows:
        write_jsonl(tmp_path / "colored_mnist" / "trials.jsonl", rows)
    table = search_table(load_reproduction("hyperparameters", quick=True), tmp_path)
    (line,) = table.lines
    assert (line[-3], line[-1]) == expected
    assert line[-2] == "–"
    assert table.records[0]["note"] == expected[1]


def test_the_small_version_of_a_search_is_called_by_its_data(place: Place, tmp_path: Path) -> None:
    found = load_reproduction("hyperparameters", quick=True)
    home = tmp_path / "out" / "hyperparameters-quick" / "rows" / "hyperparameters" / "colored_mnist"
    home.mkdir(parents=True)
    origin = "# ipg on …: the best of 3 trials of `ipg search`.\n# Best: trial 1, 62.50 % (alpha 0.3).\n"
    (home / "best.toml").write_text(f'{origin}data = "colored_fashion_noisy"\nalpha = 0.3\n', encoding="utf-8")
    table = search_table(found, home.parent)
    (line,) = table.lines  # none of the paper's, which is of other data
    assert line[:3] == ("coloured fashion, noisy labels", "ours, quick version", "0.3")
    assert line[-3:] == ("3", "62.5", "all drawn at random; rows of 0 of 3 trials are here")
    assert table.notes[0].endswith("accuracy in the worst group of the validation images.")
    written = reproduce("hyperparameters", replace(place, output=tmp_path / "out", run=False), quick=True)
    for file in written.files:
        assert "uick version" in (text := file.read_text(encoding="utf-8"))
        assert "ColoredMNIST" not in text.replace("coloured fashion, noisy labels for ColoredMNIST; 3 trials of", "")
    assert "embedded images, coloured fashion, noisy labels for ColoredMNIST; 3 trials of 2 epochs" in quick_note(found)


def test_a_search_runs_by_the_engine_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the settings name one, as those of the small version do."""
    asked: list[str] = []
    monkeypatch.setattr("ipg.experiments.search.run.make_plan", lambda config, **_: asked.append(config.engine))
    ended = SimpleNamespace(done=100)
    monkeypatch.setattr("ipg.experiments.search.run.search", lambda plan, home, **_: ended)
    monkeypatch.setattr("ipg.experiments.reproduce.search.data_obstacle", lambda dataset, path: None)
    monkeypatch.setattr("ipg.experiments.reproduce.search.obstacle", lambda config, path: None)
    reproduce("hyperparameters", replace(place, engine="captured"))
    assert set(asked) == {"captured"}
    asked.clear()
    reproduce("hyperparameters", replace(place, engine="captured"), quick=True)
    assert asked == ["eager"]


def test_a_part_of_the_searches_within_a_limit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that does not come to its end is the last."""
    asked: list[tuple[str, float]] = []

    def search(plan: Any, home: Path, *, limit: float, **_: Any) -> Any:
        asked.append((home.name, limit))
        return SimpleNamespace(done=100 if home.name == "colored_mnist" else 7)

    monkeypatch.setattr("ipg.experiments.search.run.make_plan", lambda config, **_: None)
    monkeypatch.setattr("ipg.experiments.search.run.search", search)
    monkeypatch.setattr("ipg.experiments.reproduce.search.data_obstacle", lambda dataset, path: None)
    monkeypatch.setattr("ipg.experiments.reproduce.search.obstacle", lambda config, path: None)
    only = ("dataset=colored_mnist",)
    assert not reproduce("hyperparameters", replace(place, only=only, limit=60.0)).left
    assert [name for name, _ in asked] == ["colored_mnist"]
    assert reproduce("hyperparameters", replace(place, limit=60.0)).left
    assert [name for name, _ in asked[1:]] == ["colored_mnist", "waterbirds100"]
    assert all(0 < limit <= 60 for _, limit in asked)


@pytest.mark.parametrize(
    ("name", "lead"),
    [
        ("sparse", "Not a table of the paper. Ours: with fewer corrections"),
        ("label_noise", "In the paper: `tab:label_noise_ablation`. What it says: Without noise"),
    ],
)
def test_whose_words_stand_above_a_table(place: Place, name: str, lead: str) -> None:
    written = reproduce(name, replace(place, run=False))
    assert f"\n\n{lead}" in (written.folder / "table.md").read_text(encoding="utf-8")


def test_without_any_data_one_sentence_says_what_to_fetch(place: Place, tmp_path: Path) -> None:
    """As of tables of trials. Beside others it is told, and they are made."""
    said = io.StringIO()
    nowhere = replace(place, data_paths={"": str(tmp_path / "no")}, console=Console(file=said))
    with pytest.raises(DataError, match=r"^nothing of hyperparameters can be run here: there is no MNIST at \S+no"):
        reproduce("hyperparameters", nowhere)
    birds = replace(nowhere, only=("dataset=waterbirds100",))
    with pytest.raises(DataError, match=r"^nothing of galleries can be made here: waterbirds100: there is no"):
        reproduce("galleries", birds)
    (made,) = reproduce_all(["hyperparameters", "schematic"], nowhere)
    assert made.folder.name == "schematic"
    assert said.getvalue().startswith("nothing of hyperparameters can be run here: ")
    assert not (place.output / "hyperparameters").exists()


def test_what_has_no_rows_is_kept_for_the_page(place: Place) -> None:
    reproduce("schematic", place)
    page = filled("<!-- reproduce:schematic -->\n<!-- /reproduce:schematic -->\n", place.results).text
    assert "| 1 | " in page
    assert "commit `" in page
    assert f"](../{place.results.name}/schematic/schematic.svg)" in page
    assert (place.results / "schematic" / "schematic.svg").is_file()


KEPT = """| way | rises |
| --- | ---: |
| Adam | < 0.01 % |

A note. a machine; torch 9.9, Python 3.99; commit `0123456`.

Stability:

| tau | longest |
| ---: | ---: |
| 0.5 | 4 |

a machine; torch 9.9, Python 3.99; commit `0123456`.
"""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs something fails."""

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("something was run")

    for name in ("theory.theory", "theory.schematic", "galleries.gallery"):
        monkeypatch.setattr(f"ipg.experiments.reproduce.{name}", run)


@pytest.mark.usefixtures("idle")
def test_tables_alone_are_those_kept_and_nothing_is_run(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    home = place.results / "theory"
    home.mkdir(parents=True)
    (home / "table.md").write_text(KEPT, encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in place.results.rglob("*")}
    names = ["theory", "schematic", "galleries"]
    written = reproduce_all(names, replace(place, run=False, console=Console(width=400)))
    assert {path: path.stat().st_mtime_ns for path in place.results.rglob("*")} == before
    theory, *others = written
    assert [one.files for one in others] == [(), ()]
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "theory: its table is as it was made last; figures are not kept, ipg reproduce theory draws them",
        f"schematic: nothing is kept of it in {place.results}; ipg reproduce schematic makes it",
        "galleries: nothing is kept of it; ipg reproduce galleries makes it",
    ]
    files = {path.name: path.read_text(encoding="utf-8") for path in theory.files}
    assert KEPT.strip() in files["table.md"]
    (first, second) = (
        csv.DictReader(io.StringIO(files["table.csv"])),
        csv.DictReader(io.StringIO(files["table-stability.csv"])),
    )
    assert [(line["way"], line["rises"]) for line in first] == [("Adam", "< 0.01 %")]
    assert [(line["tau"], line["longest"], "commit `0123456`" in line["origin"]) for line in second] == [
        ("0.5", "4", True)
    ]


@pytest.mark.usefixtures("idle")
def test_a_kept_figure_is_shown_again(place: Place) -> None:
    home = place.results / "schematic"
    home.mkdir(parents=True)
    (home / "table.md").write_text(KEPT, encoding="utf-8")
    (home / "schematic.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><text>it</text></svg>', encoding="utf-8"
    )
    written = reproduce("schematic", replace(place, run=False))
    assert (written.folder / "schematic.svg").read_text(encoding="utf-8").count("<text>it</text>") == 1


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("nothing\n", "there is no table in it"),
        (KEPT.replace("; commit", ""), "table 1 in it does not name its commit"),
    ],
)
def test_what_is_kept_has_to_be_a_table_that_says_where_it_comes_from(place: Place, kept: str, message: str) -> None:
    home = place.results / "theory"
    home.mkdir(parents=True)
    (home / "table.md").write_text(kept, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        reproduce("theory", replace(place, run=False))


def test_second_tables_are_tables_in_every_format(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    small = load_reproduction("theory", quick=True)
    settings = {**small.settings, "problems": 20, "steps": 5, "iterations": 3, "taus": [0.5]}
    found = replace(small, settings=settings)
    monkeypatch.setattr("ipg.experiments.reproduce.run.load_reproduction", lambda name, quick: found)
    written = reproduce("theory", place, quick=True)
    files = {path.name: path.read_text(encoding="utf-8") for path in written.files if path.is_relative_to(place.output)}
    tex = files["table.tex"]
    assert tex.count(r"\begin{table}") == tex.count(r"\begin{tabular}") == 2
    assert r"\label{tab:theory-quick-stability}" in tex
    assert "|" not in tex
    (line,) = csv.DictReader(io.StringIO(files["table-stability.csv"]))
    assert (line["version"], line["tau"], line["seeds"]) == ("quick", "0.5", "1")
    assert 0 <= float(line["violated"]) <= 1
    content = json.loads(files["table.json"])
    assert "Quick version" in content["about"][0]
    assert content["cells"][0]["way to step"] == "gradient descent"
    assert content["cells"][0]["commit"]
    (second,) = content["further"]
    assert (second["name"], second["cells"][0]["tau"], second["cells"][0]["version"]) == ("stability", 0.5, "quick")
    html = files["report.html"]
    assert html.count("<table") == 2
    assert "<h2>Stability</h2>" in html
    assert '<th scope="col">excursions a run</th>' in html
    assert "| tau |" not in html
    kept = (written.folder / "rows" / "theory" / "table.md").read_text(encoding="utf-8")
    assert read_markdown(kept).markdown() + "\n" == kept


def test_nothing_is_written_to_a_folder_of_results_that_nobody_asked_for(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = replace(place, results=Path("results"))
    assert all(file.is_relative_to(place.output) for file in reproduce("schematic", usual).files)
    assert not Path("results").exists()
    Path("results").mkdir()  # the project's own, as its page needs it
    kept = {Path("results/schematic/table.md"), Path("results/schematic/schematic.svg")}
    assert kept < set(reproduce("schematic", usual).files)  # the command prints them
    assert all(file.is_file() for file in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["theory", "dynamics", "hyperparameters"])
def test_small_versions_run(name: str, place: Place) -> None:
    written = reproduce(name, place, quick=True)
    assert written.failed == 0
    page = (written.folder / "table.md").read_text(encoding="utf-8")
    assert "**Quick version**" in page
    assert "not run" not in page
    for figure in written.folder.glob("*.svg"):
        assert "uick version" in figure.read_text(encoding="utf-8")
