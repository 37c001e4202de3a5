"""The page of results and its figures: filled from the rows, and checked against them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from experiments.reproduction_rows import SMALL, keep, row
from experiments.table_rows import DRAWS_THE_SAME

from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce.figures import drawings_of, search_drawings
from ipg.experiments.reproduce.page import filled, filled_page
from ipg.experiments.reproduce.plan import load_reproduction
from ipg.experiments.reproduce.rows import measure
from ipg.experiments.reproduce.run import main
from ipg.files import write_jsonl


@pytest.fixture
def small(small_reproduction: Path) -> Path:
    return small_reproduction


@pytest.fixture
def page_of_small(small: Path) -> Path:
    """A page with the small reproduction, of which two seeds with 40 pairs on ColoredMNIST have rows."""
    trials = load_reproduction("small").cells[0].trials
    keep(small / "results", "small", [row(trials[0], 0.66), row(trials[1], 0.7)])
    page = small / "page.md"
    page.write_text("<!-- reproduce:small -->\n<!-- /reproduce:small -->\n", encoding="utf-8")
    return page


def on_page(what: str, page: Path) -> int:
    return main([what, str(page), "--results", str(page.parent / "results")])


def test_a_page_is_filled_and_checked(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = small / "results.md"
    page.write_text("before\n<!-- reproduce:small -->\nold\n<!-- /reproduce:small -->\nafter\n", encoding="utf-8")
    arguments = [str(page), "--results", str(small / "results")]
    assert main(["--check", *arguments]) == 1
    assert "run python -m ipg.experiments.reproduce --write" in capsys.readouterr().err
    assert main(["--write", *arguments]) == 0
    assert main(["--check", *arguments]) == 0
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "$ ipg reproduce small" in text
    keep(small / "results", "small", [row(load_reproduction("small").cells[0].trials[0], 0.66)])
    assert main(["--check", *arguments]) == 1
    page.write_text("<!-- reproduce:small -->\n", encoding="utf-8")
    assert main(["--write", *arguments]) == 2
    assert "<!-- /reproduce:small -->" in capsys.readouterr().err


TOLD = 'holds = "in part"\nshort = "With many."\nseen = ["They were.", "Not always."]\nclaim ='


def test_what_was_seen_of_a_claim_is_told_after_it_and_not_of_small_versions(small: Path) -> None:
    (file,) = (small / "reproductions").glob("*small.toml")
    file.write_text(SMALL.replace("claim =", TOLD), encoding="utf-8")
    page = filled("<!-- reproduce:small -->\n<!-- /reproduce:small -->\n", small / "results").text
    told = "*What we saw*: **It holds in part.** With many.\n\n- They were.\n- Not always.\n"
    assert page.index("More pairs are better.") < page.index(told) < page.index("How it stands")
    quick = load_reproduction("small", quick=True)
    assert (quick.holds, quick.short, quick.seen) == (None, "", ())


def test_an_overview_tells_of_each_claim_whether_it_holds(small: Path) -> None:
    (file,) = (small / "reproductions").glob("*small.toml")
    title = load_reproduction("small").title
    markers = "<!-- overview -->\n<!-- /overview -->\n<!-- reproduce:small -->\n<!-- /reproduce:small -->\n"
    assert title not in filled(markers, small / "results").text.partition("<!-- /overview -->")[0]  # nothing to say
    file.write_text(SMALL.replace("claim =", TOLD), encoding="utf-8")
    cells = load_reproduction("small").cells
    anchor = title.lower().replace(" ", "-")

    def line() -> str:
        return filled(markers, small / "results").text.splitlines()[3]

    assert line() == f"| [{title}](#{anchor}) | in part | With many. | 0 of 3 settings |"
    keep(small / "results", "small", [row(cells[0].trials[0], 0.66)])
    assert line().endswith("| 1 of 3 settings, 1 seed |")
    keep(small / "results", "small", [row(trial, 0.7) for trial in (*cells[0].trials, cells[1].trials[0])])
    assert line().endswith("| 2 of 3 settings, 1 to 2 seeds |")
    with pytest.raises(ValueError, match="<!-- /overview -->"):
        filled("<!-- overview -->\n", small / "results")


def test_an_overview_counts_the_searches_that_came_to_their_end(tmp_path: Path) -> None:
    for dataset, trials in (("colored_mnist", 100), ("waterbirds100", 8)):
        (home := tmp_path / "hyperparameters" / dataset).mkdir(parents=True)
        best = f"# ipg on {dataset}: the best of {trials} trials of `ipg search`.\n# Best: trial 5, 73.12 % (x).\n"
        (home / "best.toml").write_text(f"{best}alpha = 0.3\n", encoding="utf-8")
    name = "hyperparameters"
    markers = f"<!-- overview -->\n<!-- /overview -->\n<!-- reproduce:{name} -->\n<!-- /reproduce:{name} -->\n"
    assert filled(markers, tmp_path).text.splitlines()[3].endswith("| 1 of 4 data sets searched |")


def test_the_projects_own_overview_leads_to_its_headings(repo_root: Path) -> None:
    text = (repo_root / "docs" / "results.md").read_text(encoding="utf-8")
    known = [load_reproduction(name) for name in reproduce_plan.names()]
    assert [one.name for one in known if one.holds is not None and f"\n## {one.title}\n" not in text] == []
    assert [one.name for one in known if (one.holds is None) != (one.short == "")] == []
    assert [one.name for one in known if one.seen and one.holds is None] == []


def test_the_projects_own_page_is_what_its_rows_give(repo_root: Path) -> None:
    page = repo_root / "docs" / "results.md"
    given = filled_page(page, repo_root / "results")
    assert [path.name for path, text in given.items() if path.is_file() == (text is None)] == []
    same = {path: text for path, text in given.items() if path == page or DRAWS_THE_SAME}
    assert [path.name for path, text in same.items() if path.read_text(encoding="utf-8") != text] == []
    assert all(f"<!-- reproduce:{name} -->" in given[page] for name in reproduce_plan.names())


def test_a_page_has_the_figures_of_data_with_rows_alone(page_of_small: Path) -> None:
    assert on_page("--write", page_of_small) == 0
    folder = page_of_small.with_suffix("")
    assert [path.name for path in folder.iterdir()] == ["small-colored_mnist.svg"]  # none of Waterbirds-100
    text = page_of_small.read_text(encoding="utf-8")
    (shown,) = [line for line in text.splitlines() if line.startswith("![")]
    assert shown == (
        "![Box plots of accuracy on ColoredMNIST: our runs, the paper's settings, median 68.0 % with 40 pairs; "
        "the paper's means beside them as diamonds](page/small-colored_mnist.svg)"
    )
    assert text.index("| 40 pairs |") < text.index(shown) < text.index("$ ipg reproduce small")
    (page_of_small.parent / "results" / "small" / "trials.jsonl").unlink()
    assert filled(text, page_of_small.parent / "results").figures == {}


def test_figures_are_the_same_bytes_each_time(page_of_small: Path) -> None:
    assert on_page("--write", page_of_small) == 0
    figure = page_of_small.with_suffix("") / "small-colored_mnist.svg"
    first = figure.read_bytes()
    figure.unlink()
    assert on_page("--write", page_of_small) == 0
    assert figure.read_bytes() == first


def test_figures_are_checked(page_of_small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert on_page("--write", page_of_small) == 0
    figure = page_of_small.with_suffix("") / "small-colored_mnist.svg"
    assert on_page("--check", page_of_small) == 0
    svg = figure.read_text(encoding="utf-8")
    figure.write_text(svg.replace("68.0", "86.0"), encoding="utf-8")
    assert on_page("--check", page_of_small) == 1
    assert f"{figure} is not what the rows give; run " in capsys.readouterr().err
    figure.unlink()
    assert on_page("--check", page_of_small) == 1
    assert f"{figure} is missing; run " in capsys.readouterr().err
    assert not figure.exists()


def test_figures_that_no_row_gives_are_removed_and_other_files_are_not(
    page_of_small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_page("--write", page_of_small) == 0
    folder = page_of_small.with_suffix("")
    old, others = folder / "gone-waterbirds100.svg", [folder / "sketch.svg", folder / "by-hand.svg"]
    for path in (old, *others):
        path.write_text("<svg/>", encoding="utf-8")
    assert on_page("--check", page_of_small) == 1
    assert str(old) in capsys.readouterr().err
    assert on_page("--write", page_of_small) == 0
    assert not old.exists()
    assert all(path.exists() for path in others)
    assert on_page("--check", page_of_small) == 0


@pytest.mark.parametrize(
    ("counts", "told"), [({1}, "one seed"), ({2}, "of 2 seeds"), ({1, 3}, "standard deviation of 1 to 3 seeds")]
)
def test_a_grid_tells_its_seeds_and_its_line(counts: set[int], told: str) -> None:
    whole = load_reproduction("every_alpha")
    rows = [
        row(trial, 0.2 if trial.config.alpha * trial.config.every >= 1 else 0.7)
        for cell, count in zip(whole.cells, itertools.cycle(sorted(counts)), strict=False)
        for trial in cell.trials[:count]
        if cell.dataset == "colored_mnist"
    ]
    drawings = drawings_of(whole, measure(whole, rows))
    assert list(drawings) == ["every_alpha-colored_mnist"]
    (drawing,) = drawings.values()
    assert told in drawing.svg
    assert "k α = 1: up and left of it" in drawing.svg
    assert drawing.alt.startswith(
        "Grid of accuracy on ColoredMNIST by α and k, 20 of 20 cells measured, from 20.0 % at"
    )
    assert drawing.alt.endswith("; a line at k α = 1")


def test_a_page_shows_what_a_search_found_once_there_are_trials_enough(tmp_path: Path) -> None:
    page = "<!-- reproduce:hyperparameters -->\n<!-- /reproduce:hyperparameters -->\n"
    home = tmp_path / "hyperparameters" / "colored_mnist"
    home.mkdir(parents=True)
    rows = [
        {
            "number": i - 1,
            "state": "complete",
            "value": 0.1 + 0.06 * i,
            "hardware": "a machine",
            "versions": {"python": "3.99", "torch": "9.9"},
            "commit": "0123456789abcdef",
            "date": "2026-01-01",
            "config": {"alpha": 0.1, "tau": 0.0, "margin": "0.08", "learning_rate": 1e-3, "epochs": i},
        }
        for i in range(1, 11)
    ]
    for count in (9, 10):
        write_jsonl(home / "trials.jsonl", rows[:count])
        found = filled(page, tmp_path)
        assert len(found.figures) == (5 if count == 10 else 0)
    shown = [line for line in found.text.splitlines() if line.startswith("![")]
    assert shown[-1] == (
        "![Score of 10 trials on ColoredMNIST over epochs: from 16.0 to 70.0 %, the best at 10]"
        "(results/hyperparameters-colored_mnist-epochs.svg)"
    )
    assert "a machine; torch 9.9, Python 3.99; commit `0123456`." in found.text
    assert ">epochs on ColoredMNIST<" in found.figures["hyperparameters-colored_mnist-epochs.svg"]
    assert set(found.figures) == {line.partition("results/")[2].rstrip(")") for line in shown}


def test_the_best_in_the_figures_of_a_search_is_that_of_its_table(tmp_path: Path) -> None:
    """Of equal values that with the higher mean of groups, and none that was given up."""
    (home := tmp_path / "waterbirds100").mkdir()
    source = {"hardware": "a machine", "versions": {"torch": "9.9"}, "commit": "0123456789abcdef", "date": "2026-01-01"}
    ended = [("complete", 0.7, 0.8), ("complete", 0.7, 0.9), ("pruned", 0.8, 0.9), *[("complete", 0.5, 0.5)] * 7]
    rows = [
        {
            **{"number": number, "state": state, "value": value, "group_mean": mean, **source},
            "config": {"alpha": 0.1 * number, "tau": 0.0, "margin": "0.08", "learning_rate": 1e-3, "epochs": number},
        }
        for number, (state, value, mean) in enumerate(ended)
    ]
    write_jsonl(home / "trials.jsonl", rows)
    drawings = search_drawings(load_reproduction("hyperparameters"), tmp_path)
    assert drawings["hyperparameters-waterbirds100-epochs"].alt == (
        "Score of 10 trials on Waterbirds-100 over epochs: from 50.0 to 80.0 %, the best at 1"
    )
    write_jsonl(home / "trials.jsonl", [row | {"state": "wrong", "value": 0.0} for row in rows])
    drawings = search_drawings(load_reproduction("hyperparameters"), tmp_path)
    assert drawings["hyperparameters-waterbirds100-epochs"].alt.endswith("from 0.0 to 0.0 %")


def test_figures_of_searches_and_curves_that_no_row_gives_are_stale(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (page := tmp_path / "page.md").touch()
    for stem in ("hyperparameters-colored_mnist-tau", "dynamics-task_loss", "by-hand-drawn"):
        (folder / f"{stem}.svg").touch()
    gone = [path.stem for path, text in filled_page(page, tmp_path).items() if text is None]
    assert gone == ["dynamics-task_loss", "hyperparameters-colored_mnist-tau"]
