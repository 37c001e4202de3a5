"""The unified protocol: who competes, what each may try, and what is chosen from rows."""

from __future__ import annotations

import io
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ipg.config import ConfigError, RunConfig
from ipg.data.table import ImageTable
from ipg.experiments.arms import arms_of
from ipg.experiments.runner import read_rows, run_study
from ipg.experiments.study import STUDIES, Trial, find_study, load_study
from ipg.experiments.tables import long
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rows import measured
from ipg.experiments.unified import run
from ipg.experiments.unified.plan import (
    Contender,
    Protocol,
    ceiling_of,
    configurations,
    draw,
    load_protocol,
    space_of,
)
from ipg.experiments.unified.run import main, worth
from ipg.methods import METHODS, method_class
from ipg.methods.options import option_defaults
from ipg.methods.space import Choice, LogUniform, Range, Uniform, Whole, ZeroOr
from ipg.training.loop import settled, train
from ipg.training.materials import gather

DATASETS = ("colored_mnist", "waterbirds100", "waterbirds100_reverse", "celeba_subset")


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and options of a configuration on one level."""
    return {**{name: value for name, value in config.items() if name != "options"}, **config.get("options", {})}


# -- the files ---------------------------------------------------------------------------------------------------------


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


# -- draws -------------------------------------------------------------------------------------------------------------


def inside(value: Any, range_: Range) -> bool:
    match range_:
        case Choice(values):
            return value in values
        case ZeroOr(low, high):
            return value == 0 or low <= value <= high
        case Whole(low, high):
            return isinstance(value, int) and low <= value <= high
    return isinstance(value, float) and range_.low <= value <= range_.high


@pytest.mark.parametrize("dataset", DATASETS)
def test_configurations_are_the_defaults_and_draws_from_the_contenders_space(dataset: str) -> None:
    protocol = load_protocol(dataset)
    for contender in protocol.contenders:
        method, space = method_class(contender.method), space_of(protocol, contender)
        found = [settings_of(config) for config in configurations(protocol, contender)]
        usual = {**protocol.base, **option_defaults(method), **settings_of(contender.config)}
        assert all(found[0][name] == usual[name] for name in space if name in usual)
        for drawn in found[1:]:
            assert all(inside(drawn[name], range_) for name, range_ in space.items()), drawn
            assert all(float(f"{v:.3g}") == v for v in drawn.values() if isinstance(v, float))
            assert drawn.get("alpha", 0) * contender.config.get("every", protocol.base["every"]) < 1
        assert len({json.dumps(one, sort_keys=True) for one in found}) == len(found)


def test_as_many_configurations_as_the_protocol_grants_or_the_space_has() -> None:
    protocol = load_protocol("colored_mnist")
    counts = Counter(trial.method for trial in find_study("colored_mnist_unified_tuning").trials)
    expected = dict.fromkeys(METHODS, protocol.configurations) | {
        **dict.fromkeys(("erm", "oracle", "shape_only", "rwg", "subg", "dfr"), 1),  # nothing to choose
        "pair_contrastive": 3,
        "pair_augmentation": 4,
        "lff": 4,
        "dair": 12,  # two contenders
        "ipg": 12,
    }
    assert counts == {name: expected[name] for name in counts}


def test_values_of_the_protocol_stand_in_for_ranges_of_the_method() -> None:
    """A contender's own come first, then the method's; those of the data set are for who has none and fixes none."""
    protocol = replace(SMALL, values={"learning_rate": (1e-3, 1e-2), "batch": (16, 32)})
    irm = Contender("irm", values={"anneal": (1, 7)})
    own = method_class("irm").space
    assert own["anneal"] != Choice((1, 7))
    rates, batches = Choice((1e-3, 1e-2)), Choice((16, 32))
    assert space_of(protocol, irm) == {**own, "anneal": Choice((1, 7)), "learning_rate": rates, "batch": batches}
    assert space_of(protocol, Contender("erm", {"batch": 8})) == {"learning_rate": rates}
    assert space_of(protocol, Contender("epg"))["learning_rate"] == method_class("epg").space["learning_rate"]
    drawn = configurations(replace(protocol, configurations=5), Contender("erm", {"batch": 8}))
    assert drawn[0]["learning_rate"] == RunConfig().learning_rate
    assert {one["learning_rate"] for one in drawn[1:]} == {1e-3, 1e-2}
    assert all(one["batch"] == 8 for one in drawn)


def test_a_default_outside_of_the_space_is_a_configuration_of_its_own() -> None:
    found = configurations(load_protocol("colored_mnist"), Contender("irm"))
    assert found[0]["options"] == {"weight": 100.0, "anneal": 500}
    assert all(config["options"]["anneal"] != 500 for config in found[1:])


def test_a_methods_draws_do_not_depend_on_the_others() -> None:
    protocol = load_protocol("colored_mnist")
    alone = replace(protocol, contenders=(Contender("irm"),))
    assert configurations(alone, Contender("irm")) == configurations(protocol, Contender("irm"))
    irm, vrex = (configurations(protocol, Contender(name)) for name in ("irm", "vrex"))  # of the same space
    assert [config["options"] for config in irm[1:]] != [config["options"] for config in vrex[1:]]


def test_more_configurations_keep_those_there_are() -> None:
    protocol = load_protocol("colored_mnist")
    more = configurations(replace(protocol, configurations=9), Contender("fishr"))
    assert len(more) == 9
    assert more[:6] == configurations(protocol, Contender("fishr"))


def test_another_seed_draws_others() -> None:
    protocol = load_protocol("colored_mnist")
    one, other = (configurations(replace(protocol, seed=seed), Contender("coral")) for seed in (100, 101))
    assert one[0] == other[0]
    assert not any(config in other for config in one[1:])


def test_draws_follow_their_range() -> None:
    def many(range_: Range) -> list[Any]:
        return [draw(range_, 0, "method", number, "setting") for number in range(2000)]

    assert all(abs(count - 500) < 100 for count in Counter(many(Choice(tuple("abcd")))).values())
    assert sum(value < 10 for value in many(LogUniform(0.1, 1000.0))) == pytest.approx(1000, abs=100)
    assert sum(value < 2.5 for value in many(Uniform(2.0, 3.0))) == pytest.approx(1000, abs=100)
    assert set(many(Whole(3, 7))) == {3, 4, 5, 6, 7}
    assert many(ZeroOr(0.5, 1.0)).count(0.0) == pytest.approx(1000, abs=100)
    assert sum(0 < value < 0.75 for value in many(ZeroOr(0.5, 1.0))) == pytest.approx(500, abs=100)


def test_an_unknown_data_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuning", "waterbird"]) == 2
    expected = "the unified protocol does not know 'waterbird': expected one of colored_mnist, waterbirds100, w"
    assert expected in capsys.readouterr().err
    with pytest.raises(ConfigError, match="does not know"):
        load_protocol("waterbird")


# -- what is chosen ----------------------------------------------------------------------------------------------------

SMALL = Protocol(
    dataset="bars",
    configurations=3,
    seed=100,
    rule="worst_group",
    seeds=2,
    about="Bars.",
    base={
        "model": "small_cnn",
        "epochs": 1,
        "batch": 32,
        "pairs": 8,
        "pair_batch": 4,
        "held_out_pairs": 4,
        "selection": "worst_group",
        "class_weighted": True,
        "precision": "fp32",
    },
    contenders=(Contender("erm"), Contender("lff"), Contender("erm", {"class_weighted": False})),
)


def metrics_of(average: float, worst: float | None = 0.5, mean: float = 0.5) -> dict[str, Any]:
    environments = {"0": {"accuracy": average, "count": 5}, "1": {"accuracy": 0.5, "count": 5}}
    values = {"average": average, "worst_group": worst, "group_mean": mean, "balanced": 0.8, "groups": {}}
    return {**values, "environments": environments, "pair_disagreement": 0.25}


def row_of(trial: Trial, split: str, average: float, *values: Any) -> dict[str, Any]:
    """A row of `trial` as the runner writes it."""
    metrics = metrics_of(average, *values)
    return {
        **trial.identity,
        "config": {name: value for name, value in settled(trial.config).items() if name not in ("seed", "device")},
        "split": split,
        "metrics": metrics,
        "last_metrics": metrics,
        "seconds": 1.0,
        "hardware": "a machine",
        "versions": {"torch": "9.9", "python": "3.99"},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
    }


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tuning study of a small protocol."""
    monkeypatch.setattr(run, "load_protocol", lambda dataset: SMALL)
    assert main(["tuning", "bars", "--studies", str(tmp_path)]) == 0
    return tmp_path


def freeze(folder: Path, *more: str) -> int:
    return main(["freeze", "bars", "--studies", str(folder), "--results", str(folder / "results"), *more])


def keep(folder: Path, rows: list[dict[str, Any]]) -> None:
    file = folder / "results" / "bars_unified_tuning" / "trials.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def judged(folder: Path, worths: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """A row for each trial of the small protocol: average, worst group, mean of groups."""
    trials = load_study(folder / "bars_unified_tuning.toml").trials
    return [row_of(trial, "validation", *values) for trial, values in zip(trials, worths, strict=True)]


def frozen(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "bars_unified.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("lff", "expected"),
    [
        ([(0.9, 0.1, 0.9), (0.5, 0.3, 0.3), (0.9, 0.2, 0.9)], 1),  # the worst group decides
        ([(0.9, 0.3, 0.4), (0.5, 0.3, 0.4), (0.9, 0.3, 0.5)], 2),  # then the mean of groups
        ([(0.1, 0.3, 0.4), (0.9, 0.3, 0.4), (0.9, 0.3, 0.4)], 0),  # then who comes first
        ([(0.9, None, 0.9), (0.5, 0.0, 0.3), (0.9, None, 0.9)], 1),  # what was not measured loses
    ],
)
def test_the_best_configuration_is_frozen(small: Path, lff: list[tuple[Any, ...]], expected: int) -> None:
    keep(small, list(reversed(judged(small, [(0.5,), *lff, (0.6,)]))))
    assert freeze(small) == 0
    content = frozen(small)
    tried = [trial.config.options for trial in load_study(small / "bars_unified_tuning.toml").trials[1:4]]
    assert [arm.get("config", {}) for arm in content["arm"]] == [
        {},
        {"options": tried[expected]},
        {"class_weighted": False},
    ]
    assert {arm["protocol"] for arm in content["arm"]} == {"unified"}
    assert "metrics_split" not in content
    assert content["base"] == SMALL.base
    study = load_study(small / "bars_unified.toml")
    assert [(trial.method, trial.seed) for trial in study.trials] == [
        (method, seed) for method in ("erm", "lff", "erm") for seed in (0, 1)
    ]
    text = (small / "bars_unified.toml").read_text(encoding="utf-8")
    assert f"# configuration {expected + 1} of 3: {lff[expected][1]:.4f}\n[[arm]]" in text
    assert "`python -m ipg.experiments.unified freeze bars`" in text
    assert "Left out" not in text


def test_rows_of_the_test_split_do_not_count(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = judged(small, [(0.5,)] * 5)
    keep(small, [*rows[:2], rows[2] | {"split": "test"}, *rows[3:]])
    assert freeze(small) == 2
    assert "missing of lff (1 of 3)" in capsys.readouterr().err


def test_missing_rows_are_named_and_nothing_is_written(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(small, judged(small, [(0.5,)] * 5)[:2])
    assert freeze(small) == 2
    assert capsys.readouterr().err == (
        "ipg.experiments.unified: rows of bars_unified_tuning are missing of lff (2 of 3), erm class_weighted=False "
        "(1 of 1): run `ipg study bars_unified_tuning`, or leave methods out with --partial\n"
    )
    assert not (small / "bars_unified.toml").exists()


def test_partial_leaves_methods_out_and_says_so(small: Path) -> None:
    keep(small, judged(small, [(0.5,)] * 5)[:2])
    assert freeze(small, "--partial") == 0
    assert [arm["method"] for arm in frozen(small)["arm"]] == ["erm"]
    text = (small / "bars_unified.toml").read_text(encoding="utf-8")
    assert "# Left out, since rows were missing: lff, erm class_weighted=False.\n" in text


def test_there_has_to_be_something_to_freeze(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert freeze(small, "--partial") == 2
    assert "no method has all of its rows of bars_unified_tuning" in capsys.readouterr().err


def test_rows_of_another_protocol_are_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small / "bars_unified_tuning.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("epochs = 1", "epochs = 2"), encoding="utf-8")
    assert freeze(small) == 2
    assert "is not what the protocol gives; write it with `python -m" in capsys.readouterr().err
    file.unlink()
    assert freeze(small) == 2
    assert "there is no study file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("search", (0.7,)),
        ("training_environments", (0.6,)),
        ("worst_group", (0.3, 0.4)),
        ("pairs", (0.6,)),
    ],
)
def test_what_a_row_is_worth(rule: str, expected: tuple[float, ...]) -> None:
    assert worth(rule, {"metrics": metrics_of(0.7, 0.3, 0.4)}) == pytest.approx(expected)
    assert rule in run.RULES


def test_the_page_of_results_names_methods_and_the_best_of_each(small: Path) -> None:
    keep(small, judged(small, [(0.5,), (0.9, 0.2), (0.9, 0.4), (0.9, 0.3), (0.5, 0.6)]))
    page = results_page(measured(small / "results", small), [], [])
    lines = [line for line in page.splitlines() if line.startswith(("| ERM", "| LfF"))]
    assert [("amplification" in line, "highest" in line) for line in lines] == [
        (False, True),
        (False, False),
        (True, True),
        (True, False),
        (True, False),
    ]
    assert "| 40.0 |" in lines[2]
    assert "| method | class weighted | seeds | worst group on `validation` |" in page


def test_settings_above_the_ceiling_are_not_the_highest(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `freeze` has it: they take the shortcut the other way round."""
    monkeypatch.setattr(long, "ceiling_of", {"bars_unified_tuning": 0.35}.get)
    keep(small, judged(small, [(0.5,), (0.9, 0.2), (0.9, 0.4), (0.9, 0.3), (0.5, 0.6)]))
    page = results_page(measured(small / "results", small), [], [])
    lines = [line for line in page.splitlines() if line.startswith("| LfF")]
    assert [(line.split("|")[-4].strip(), line.split("|")[-2].strip()) for line in lines] == [
        ("25.0", "above the ceiling"),
        ("25.0", "highest"),
        ("25.0", ""),
    ]
    assert "above the ceiling of 35.0 %: more is had from the shortcut alone" in " ".join(page.split())


def test_the_ceiling_is_that_of_the_protocol() -> None:
    assert ceiling_of("colored_mnist_unified_tuning") == load_protocol("colored_mnist").ceiling == 0.77
    assert ceiling_of("waterbirds100_unified_tuning") is None
    assert ceiling_of("colored_mnist_tuning") is None


@pytest.mark.usefixtures("bars", "one_thread", "own_random_state")
def test_from_the_protocol_to_the_frozen_study(small: Path) -> None:
    """Real rows: what is frozen has the highest worst group among them."""
    study = load_study(small / "bars_unified_tuning.toml")
    folder = small / "results" / study.name
    tally = run_study(study, folder, device="cpu", workers=1, console=Console(file=io.StringIO()))
    assert (tally.done, tally.failed) == (5, 0)
    assert freeze(small) == 0
    rows = [row for row in read_rows(folder / "trials.jsonl") if row["method"] == "lff"]
    assert {row["split"] for row in rows} == {"validation"}
    best = max(row["metrics"]["worst_group"] for row in rows)
    (chosen,) = [arm["config"]["options"] for arm in frozen(small)["arm"] if arm["method"] == "lff"]
    (kept,) = [row for row in rows if row["config"]["amplification"] == chosen["amplification"]]
    assert kept["metrics"]["worst_group"] == best


# -- every configuration trains ----------------------------------------------------------------------------------------


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


def test_a_run_that_went_wrong_is_chosen_only_where_all_did() -> None:
    """One class for every image is right for half of them, more than an honest network that trusts the colour."""
    honest, constant = metrics_of(0.42), metrics_of(0.5)
    constant["groups"] = {"0, red": {"accuracy": 1.0, "count": 5}, "1, red": {"accuracy": 0.0, "count": 5}}
    rows = [{"metrics": constant}, {"metrics": honest}, {"metrics": metrics_of(0.6), "collapse": "it collapsed"}]
    assert run.best_of("search", rows) == 1
    assert run.best_of("search", [rows[0], rows[2]]) == 1


def test_more_than_the_digits_allow_is_chosen_only_where_all_have_it() -> None:
    """A network that reads the colour the other way round is right where the colour misleads, nine times in ten."""
    rows = [{"metrics": metrics_of(value)} for value in (0.6, 0.9, 0.77, 0.95)]
    assert run.best_of("search", rows, 0.77) == 2
    assert run.best_of("search", rows) == 3
    assert run.best_of("search", [rows[1], rows[3]], 0.77) == 1
    ceiling = load_protocol("colored_mnist").ceiling
    assert ceiling is not None
    assert 0.75 < ceiling < 0.8
