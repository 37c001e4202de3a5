"""Files of trials mean what they meant when they were written, and the rows there are find their trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipg.config import EARLIER, MARGIN, TRAINED_CROP, TRAINED_FLIP, RunConfig, earlier
from ipg.experiments.arms import same_run
from ipg.experiments.reproduce.place import Place
from ipg.experiments.reproduce.plan import load_reproduction, names, shared
from ipg.experiments.reproduce.rows import all_rows, measure
from ipg.experiments.reproduce.search import papers_settings
from ipg.experiments.store import read_rows
from ipg.experiments.study import STUDIES, Trial, arm_trials, load_study
from ipg.experiments.unified.plan import configurations, load_protocol

AUTO = dict.fromkeys(earlier({}), "auto")


def trials_of_files() -> Iterator[Trial]:
    for path in STUDIES.glob("*.toml"):
        yield from load_study(path, check_options=False).trials
    for name in names():
        for cell in load_reproduction(name).cells:
            yield from cell.trials


def views(config: RunConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in AUTO}


def test_every_row_finds_its_trial_and_tells_of_what_it_asks_for(repo_root: Path) -> None:
    """By its key, which none may lose, and by its settings: the trial means what was run."""
    known: dict[tuple[str, str], Trial] = {(trial.study, trial.key): trial for trial in trials_of_files()}
    counts: dict[str, int] = {}
    for file in (repo_root / "results").glob("*/trials.jsonl"):
        for row in read_rows(file):
            assert row["study"] == file.parent.name
            assert same_run(row, known[row["study"], row["key"]]), (row["study"], row["key"])
            counts[row["study"]] = counts.get(row["study"], 0) + 1
    assert {"defaults", "waterbirds100", "celeba_subset_tuned", "colored_mnist"} <= counts.keys()


@pytest.mark.parametrize("given", [{}, {"weights": "net.safetensors"}, {"start": "run"}])
def test_a_file_that_does_not_say_means_what_it_did(given: dict[str, str]) -> None:
    arm = {"dataset": "bars", "method": "erm", "protocol": "mine", "seeds": 1}
    (plain,) = arm_trials("mine", {}, {**arm, "config": given})
    margin = "0.85x" if given else "0.5x"
    (said,) = arm_trials("mine", {"base": {**EARLIER, "margin": margin}}, {**arm, "config": given})
    assert views(plain.config) == {**EARLIER, "margin": margin}
    assert (plain.key, plain.config) == (said.key, said.config)
    (auto,) = arm_trials("mine", {}, {**arm, "config": given | AUTO})
    assert views(auto.config) == AUTO
    assert auto.key != plain.key  # of a fresh network the margin differs, of another the views


def test_all_trials_of_files_say_what_they_mean_but_for_the_defaults() -> None:
    """So that no default that changes changes them."""
    left_open = [trial for trial in trials_of_files() if AUTO.items() & views(trial.config).items()]
    assert {(trial.study, trial.protocol) for trial in left_open} == {("defaults", "defaults")}


def test_the_defaults_are_those_of_a_run_that_names_nothing(repo_root: Path) -> None:
    cells = {(cell.dataset, cell.name): cell for cell in load_reproduction("defaults").cells}
    birds = cells["waterbirds100", "124 pairs, defaults"].trials[0].config.flat()
    named = shared()["protocols"]["defaults"]["waterbirds100"]
    usual = RunConfig(**named, data="waterbirds100", pairs="pairs-124")
    assert birds == usual.flat()
    assert (birds["crop"], birds["flip"], birds["margin"]) == (TRAINED_CROP, TRAINED_FLIP, MARGIN)
    digits = cells["colored_mnist", "40 pairs, defaults"].trials[0].config.flat()
    assert digits == RunConfig(data="colored_mnist", pairs=40, precision="bf16").flat()


def test_rows_of_earlier_defaults_stay_in_the_table_and_are_told_apart(repo_root: Path) -> None:
    found = measure(load_reproduction("defaults"), all_rows(repo_root / "results"))
    own = [measured for measured in found if measured.cell.protocol == "defaults"]
    shown = Counter(row["key"] for measured in own for row in measured.rows if row["study"] == "defaults")
    assert shown == Counter(row["key"] for row in read_rows(repo_root / "results" / "defaults" / "trials.jsonl"))
    before = {
        (measured.cell.dataset, measured.cell.name): measured for measured in own if "earlier" in measured.cell.name
    }
    counted = {"colored_mnist": (40, 124, 1208), "waterbirds100": (40, 124), "celeba_subset": (40, 124, 890)}
    for dataset, counts in counted.items():
        margin = "0.5x" if dataset == "colored_mnist" else "0.85x"
        for pairs in counts:
            measured = before[dataset, f"{pairs} pairs, earlier defaults"]
            (trial,) = measured.cell.trials
            assert views(trial.config.suited()) == {**EARLIER, "margin": margin}
            assert len(measured.rows) == 1


@pytest.mark.parametrize("dataset", ["waterbirds100", "celeba_subset"])
def test_drawn_configurations_do_not_follow_the_defaults(dataset: str) -> None:
    protocol = load_protocol(dataset)
    for contender in protocol.contenders:
        for drawn in configurations(protocol, contender):
            assert not AUTO.items() & drawn.items()


@pytest.mark.parametrize("dataset", ["waterbirds100", "celeba_subset"])
def test_searches_of_the_paper_begin_where_they_did(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.experiments.reproduce import search as reproduced

    class Asked(Exception):  # noqa: N818 - nothing is wrong
        pass

    def asked(config: RunConfig, path: str | None) -> None:
        assert config.weights == papers_settings(dataset)["weights"]
        assert (config.crop, config.flip) == (1.0, False)
        raise Asked

    monkeypatch.setattr(reproduced, "data_obstacle", lambda data, path: None)
    monkeypatch.setattr(reproduced, "obstacle", asked)
    place = Place(tmp_path, tmp_path, device="cpu", engine="eager", workers=1)
    with pytest.raises(Asked):
        reproduced.search_settings(load_reproduction("hyperparameters"), dataset, tmp_path, place)
