"""The cost of a method: time over that of ERM, of trials that were run alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiments.reproduction_rows import row

from ipg.experiments.reproduce import plan as reproduce_plan
from ipg.experiments.reproduce.figures import drawings_of
from ipg.experiments.reproduce.rows import Measured, measure
from ipg.experiments.reproduce.runtime import step_table, with_cost
from ipg.experiments.reproduce.table import table_of
from ipg.experiments.tables.rows import ProvenanceError
from ipg.files import write_jsonl


@pytest.fixture
def small(small_reproduction: Path) -> Path:
    return small_reproduction


def test_cost_is_time_over_erm_on_the_same_machine(small: Path) -> None:
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    runtime = reproduce_plan.read_reproduction(file, "runtime")
    plain, guided = runtime.cells[0].trials, next(c for c in runtime.cells if c.name == "IPG, pair batch 128").trials
    rows = [row(plain[0], 0.1, seconds=8.0), row(plain[1], 0.1, seconds=12.0), row(guided[0], 0.7, seconds=30.0)]
    rows.append(row(guided[1], 0.7, seconds=30.0, hardware="another machine"))
    priced = {entry.cell.name: entry for entry in with_cost(measure(runtime, rows))}
    assert priced["ERM"].values("cost") == [0.8, 1.2]
    assert priced["IPG, pair batch 128"].rows[0]["metrics"]["cost"] == 3.0
    assert priced["IPG, pair batch 128"].rows[1]["metrics"]["cost"] is None  # no ERM there
    assert priced["IPG, pair batch 128"].values("cost") == [3.0]
    assert step_table(small) is None


def test_cost_is_that_over_erm_of_the_same_commit(small: Path) -> None:
    """Where ERM ran at that commit, even if its own seconds do not count; else over that of any."""
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    runtime = reproduce_plan.read_reproduction(file, "runtime")
    plain, guided = runtime.cells[0].trials, next(c for c in runtime.cells if c.name == "IPG, pair batch 128").trials
    rows = [row(plain[0], 0.1, seconds=5.0), row(plain[1], 0.1, seconds=10.0)]
    rows += [row(trial, 0.7, seconds=30.0) for trial in guided[:3]]
    for found, commit in zip(rows, ("cold", "warm", "cold", "warm", "neither"), strict=True):
        found["commit"] = commit
    rows[0]["first"] = True
    priced = {entry.cell.name: entry for entry in with_cost(measure(runtime, rows))}
    assert [found["metrics"]["cost"] for found in priced["IPG, pair batch 128"].rows] == [None, 3.0, 3.0]


def test_the_table_of_steps_says_where_it_comes_from(tmp_path: Path) -> None:
    step = {"benchmark": "gpu", "case": "ipg b32", "unit": "ms", "ratio": 1.5, "ideal": 1.4, "hardware": "a machine"}
    step |= {"versions": {"python": "3.99", "torch": "9.9"}, "commit": "0123456789", "date": "2026-01-01"}
    write_jsonl(tmp_path / "speed.jsonl", [{**step, "value": 4.0}, {**step, "value": 3.0}])
    table = step_table(tmp_path)
    assert table is not None
    assert table.lines == (("ipg b32", "a machine", "3 ms", "1.50", "1.4"),)
    assert table.markdown().startswith("Single steps, measured by `ipg bench`:\n\n| step |")
    assert table.notes == ("a machine; torch 9.9, Python 3.99; commit `0123456`.",)
    assert (table.name, table.records[0]["median"], table.records[0]["commit"]) == ("steps", 3.0, "0123456")
    write_jsonl(tmp_path / "speed.jsonl", [{}, {**step, "value": 3.0}])  # the first is of no benchmark
    assert step_table(tmp_path) == table
    write_jsonl(tmp_path / "speed.jsonl", [{**step, "value": 4.0, "commit": ""}])
    with pytest.raises(ProvenanceError, match="the row of ipg b32 does not name its commit"):
        step_table(tmp_path)


@pytest.mark.parametrize("apart", [{"config": {"engine": "compiled"}}, {"curve": [None, 0.5]}])
def test_cost_is_that_over_erm_run_alike(small: Path, apart: dict[str, Any]) -> None:
    """An engine of its own, or the split evaluated at the end alone, takes less time whatever the method."""
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    plain = reproduce_plan.read_reproduction(file, "runtime").cells[0]
    rows = [row(trial, 0.1, seconds=seconds) for trial, seconds in zip(plain.trials[:2], (8.0, 4.0), strict=True)]
    rows[0]["curve"] = [0.4, 0.5]
    rows[1] |= apart
    (priced,) = with_cost([Measured(plain, tuple(rows))])
    assert priced.values("cost") == [1.0, 1.0]  # each beside itself


@pytest.mark.parametrize("apart", [{"preparing_seconds": 1.01}, {"first": True}, {"collapse": "all on one point"}])
def test_trials_that_began_a_process_or_broke_off_have_no_cost(small: Path, apart: dict[str, Any]) -> None:
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    plain = reproduce_plan.read_reproduction(file, "runtime").cells[0]
    rows = [
        row(trial, 0.1, seconds=seconds) for trial, seconds in zip(plain.trials[:3], (60.0, 11.0, 13.0), strict=True)
    ]
    rows[1]["preparing_seconds"] = rows[2]["preparing_seconds"] = 1.0
    rows[0] |= apart
    (priced,) = with_cost([Measured(plain, tuple(rows))])
    assert priced.values("cost") == [10 / 11, 12 / 11]  # the median of 10 and 12 is 11


def test_trials_that_shared_a_gpu_have_no_cost(small: Path) -> None:
    (file,) = Path(reproduce_plan.__file__).with_name("reproductions").glob("*-runtime.toml")
    plain = reproduce_plan.read_reproduction(file, "runtime").cells[0]
    rows = [
        row(trial, 0.1, seconds=seconds) for trial, seconds in zip(plain.trials[:3], (60.0, 10.0, 12.0), strict=True)
    ]
    rows[0]["sharing"] = 4
    (priced,) = with_cost([Measured(plain, tuple(rows))])
    assert priced.values("cost") == [10 / 11, 12 / 11]


def test_a_table_says_of_how_many_seeds_a_time_is() -> None:
    """Where it is of fewer than the other figures of its line."""
    sparse = reproduce_plan.load_reproduction("sparse")
    plain = next(cell for cell in sparse.cells if cell.name == "ERM")
    rows = [row(trial, 0.2, seconds=seconds) for trial, seconds in zip(plain.trials[:3], (60, 10, 12), strict=True)]
    for first, cell, count in ((False, "1.00 ± 0.00", 3), (True, "1.00 ± 0.13 (2)", 2)):
        rows[0] |= {"first": first, "seconds": 10 if not first else 60}
        rows[2] |= {"seconds": 12 if first else 10}
        table = table_of(sparse, with_cost(measure(sparse, rows)))
        line = dict(zip(table.head, table.lines[0], strict=True))
        assert (line["time over ERM"], line["seeds"], line["accuracy"]) == (cell, "3 of 5", "20.0 ± 0.0")
        counts = {record["metric"]: record["seeds"] for record in table.records[:3]}
        assert counts == {"average": 3, "worst_group": 3, "cost": count}
        assert first == any("*In brackets*: of how many seeds a time is." in note for note in table.notes)


def test_robustness_is_drawn_over_its_cost() -> None:
    """Settings without a time, here every one but two, are not in it."""
    sparse = reproduce_plan.load_reproduction("sparse")
    plain, full = (next(c for c in sparse.cells if c.name == name) for name in ("ERM", "every 1, pair batch 32"))
    rows = [row(plain.trials[0], 0.2, seconds=4.0), row(full.trials[0], 0.8, seconds=10.0)]
    drawings = drawings_of(sparse, with_cost(measure(sparse, rows)))
    assert list(drawings) == ["sparse-colored_mnist"]
    assert drawings["sparse-colored_mnist"].alt == (
        "Worst group on ColoredMNIST over time beside that of plain training: ERM 10.0 % at 1.00 times; "
        "every 1, pair batch 32 70.0 % at 2.50 times"
    )


def test_photographs_are_drawn_by_what_keeps_their_epochs() -> None:
    """The worst group; ColoredMNIST, whose last epoch is kept, by the first metric."""
    found = reproduce_plan.load_reproduction("every_alpha")
    first = {cell.dataset: cell for cell in reversed(found.cells)}
    rows = [row(cell.trials[0], 0.8) for cell in first.values()]
    drawings = drawings_of(found, measure(found, rows))
    seen = {stem.removeprefix("every_alpha-"): drawing.alt for stem, drawing in drawings.items()}
    assert seen["waterbirds100"].startswith("Grid of worst group on Waterbirds-100")
    assert seen["colored_mnist"].startswith("Grid of accuracy on ColoredMNIST")
