"""The unified protocol: its files, who competes, and that every configuration trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.unified_rows import DATASETS, row_of, settings_of

from ipg.config import ConfigError
from ipg.data.table import ImageTable
from ipg.experiments.arms import arms_of
from ipg.experiments.study import STUDIES, find_study
from ipg.experiments.unified.plan import load_protocol, space_of
from ipg.experiments.unified.run import main
from ipg.methods import METHODS, method_class
from ipg.training.loop import train
from ipg.training.materials import gather


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_files_are_what_the_command_writes(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tuning", dataset, "--studies", str(tmp_path)]) == 0
    name = f"{dataset}_unified_tuning.toml"
    assert capsys.readouterr().out == f"{tmp_path / name}: written\n"
    assert (tmp_path / name).read_text(encoding="utf-8") == (STUDIES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_tuning_study_never_asks_for_test_images(dataset: str) -> None:
    study = find_study(f"{dataset}_unified_tuning")
    assert study.metrics_split == ("search" if dataset == "colored_mnist" else "validation")
    assert {trial.seed for trial in study.trials} == {100}
    assert not {100} & set(range(load_protocol(dataset).seeds))


@pytest.mark.parametrize("dataset", DATASETS)
def test_all_but_a_methods_own_settings_is_shared(dataset: str) -> None:
    """What a run is told differs in what the contender's space or the list of contenders names, and in nothing else."""
    protocol = load_protocol(dataset)
    base = find_study(f"{dataset}_unified_tuning").trials[0].config
    given = {name for contender in protocol.contenders for name in settings_of(contender.config)}
    for trial in find_study(f"{dataset}_unified_tuning").trials:
        flat, shared = trial.config.flat(), base.flat()
        differs = {name for name in flat if flat[name] != shared.get(name)} - {"method"}
        drawn = [set(space_of(protocol, one)) for one in protocol.contenders if one.method == trial.method]
        assert differs <= given.union(*drawn), trial.title


def test_every_method_that_can_competes_on_colored_mnist() -> None:
    able = {name for name, method in METHODS.items() if not method.needs & {"masks", "attention"}}
    assert {contender.method for contender in load_protocol("colored_mnist").contenders} == able


def test_the_reverse_task_has_the_same_contenders() -> None:
    """The background is the label there, so that what counts lies outside of the masks; its pairs are its own."""
    there, back = load_protocol("waterbirds100"), load_protocol("waterbirds100_reverse")
    assert [one.method for one in there.contenders] == [one.method for one in back.contenders]
    assert {"joint", "joint_weighted"} <= {one.method for one in there.contenders}
    assert (there.seeds, back.seeds) == (3, 3)
    assert (there.base["pairs"], back.base["pairs"]) == ("pairs-124", "pairs-reverse")
    for protocol, outside in ((there, False), (back, True)):
        masked = [one for one in protocol.contenders if "masks" in method_class(one.method).needs]
        assert [one.method for one in masked] == ["epg", "gals_mask"]
        assert {one.config.get("options", {}).get("outside", False) for one in masked} == {outside}
        assert {one.config["masks"] for one in masked} == {"masks.zip"}


@pytest.mark.parametrize("dataset", DATASETS)
def test_rows_tell_configurations_apart(dataset: str) -> None:
    study = find_study(f"{dataset}_unified_tuning")
    rows = [row_of(trial, study.metrics_split, number / 1000) for number, trial in enumerate(study.trials)]
    arms, left = arms_of(study, list(reversed(rows)))
    assert not left
    assert [[row["metrics"]["average"] for row in arm.rows] for arm in arms] == [[n / 1000] for n in range(len(rows))]


def test_an_unknown_data_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuning", "waterbird"]) == 2
    expected = "the unified protocol does not know 'waterbird': expected one of colored_mnist, waterbirds100, w"
    assert expected in capsys.readouterr().err
    with pytest.raises(ConfigError, match="does not know"):
        load_protocol("waterbird")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "own_random_state")
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_configuration_trains(dataset: str, make_table: Callable[..., ImageTable]) -> None:
    """Two iterations each on small images, by a small network in the place of the study's own; NCM's is linear."""
    table = make_table()
    masks = torch.zeros(len(table.part("train")), 1, 8, 8, dtype=torch.uint8)
    masks[..., :4] = 255
    fresh: dict[str, Any] = {"weights": None, "normalization": None, "freeze": False, "masks": None, "device": "cpu"}
    small: dict[str, Any] = {"epochs": 1, "steps": 2, "batch": 32, "pairs": 12, "pair_batch": 8, "held_out_pairs": 6}
    failed = {}
    for trial in find_study(f"{dataset}_unified_tuning").trials:
        model = "linear" if trial.method == "ncm" else "small_cnn"
        config = trial.config.with_changes(model=model, **fresh, **small)
        given = masks if "masks" in method_class(trial.method).needs else None
        try:
            outcome = train(config, gather(config, table=table, masks=given))
        except Exception as error:
            failed[trial.title] = repr(error)
        else:
            assert math.isfinite(outcome.rows[0]["train"]["task_loss"])
    assert not failed
