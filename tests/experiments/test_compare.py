"""A comparison before it is run: its trials, what it finds out about the data, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from campaign.bars import halves

from ipg.config import EARLIER, ConfigError, RunConfig
from ipg.data import load
from ipg.data.table import ImageTable
from ipg.experiments.compare import RECORD, UnfitError, as_called, comparison, examine, keep_record, own_settings
from ipg.experiments.study import Study
from ipg.methods.masked import Masked
from ipg.training import loop
from ipg.training.materials import gather

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state", "bars")


@pytest.fixture
def config(small: dict[str, Any]) -> RunConfig:
    return RunConfig(**small)


def test_a_trial_for_each_method_and_seed_and_settings_alike(config: RunConfig) -> None:
    study = comparison(config, ["erm", "jtt"], [0, 7], {"jtt": {"copies": "5"}})
    assert [(trial.method, trial.seed) for trial in study.trials] == [("erm", 0), ("jtt", 0), ("erm", 7), ("jtt", 7)]
    assert study.metrics_split == "test"
    plain, other = study.trials[:2]
    assert other.config.options == {"copies": "5"}
    assert other.config.with_changes(method="erm", options={}) == plain.config
    assert len({trial.key for trial in study.trials}) == 4
    more = comparison(config, ["erm", "ipg"], [0, 7, 8], {})
    assert study.trials[0].key in {trial.key for trial in more.trials}  # what is there serves again


def test_a_method_may_have_settings_for_itself_alone(config: RunConfig) -> None:
    given = {"ncm": {"model": "linear", "rank": "3", "class_weighted": "false"}, "ipg": {"every": "1"}}
    study = comparison(config, ["erm", "ncm", "ipg"], [0, 7], given)
    plain, ncm, ipg = study.trials[:3]
    assert plain.key == comparison(config, ["erm"], [0], {}).trials[0].key
    assert (ncm.config.model, ncm.config.class_weighted, ncm.config.options) == ("linear", False, {"rank": "3"})
    assert ipg.config == config.with_changes(method="ipg", every=1)
    assert own_settings(study) == {
        "erm": {},
        "ncm": {"rank": 3, "model": "linear", "class_weighted": False},
        "ipg": {"every": 1},
    }
    assert examine(study).pairs == 8  # it can be trained


def test_settings_for_one_method_that_cannot_be(config: RunConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        comparison(
            config, ["erm", "ipg"], [0], {"erm": {"size": "8", "epochs": "0"}, "ipg": {"alpha": "2", "every": "x"}}
        )
    problems = caught.value.problems
    assert problems[0] == "method 'erm' has no option 'size'; all methods have the same"  # of images
    assert [problem.partition("=")[0] for problem in problems[1:]] == ["method ipg: alpha", "method ipg: every"]


@pytest.mark.parametrize(
    ("method", "name", "hint"),
    [
        ("ipg", "lr", "did you mean learning_rate?"),
        ("jtt", "copie", "did you mean copies?"),
        ("jtt", "zzz", "it has first_epochs, copies"),
        ("erm", "pairs", "all methods have the same"),
    ],
)
def test_what_was_meant_for_one_method(config: RunConfig, method: str, name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        comparison(config, [method], [0], {method: {name: "1"}})
    assert caught.value.problems == [f"method {method!r} has no option {name!r}; {hint}"]


def test_other_settings_for_one_method_are_other_settings(config: RunConfig, tmp_path: Path) -> None:
    def keep(*methods: str, **given: dict[str, Any]) -> Study:
        study = comparison(config, methods, [0], given)
        keep_record(study, facts, tmp_path)
        return study

    facts = examine(comparison(config, ["erm"], [0], {}))
    made = keep("erm", "ipg", ipg={"every": 1})
    lines = [json.dumps({**trial.identity, "key": trial.key}) for trial in made.trials]
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    keep("erm", "ipg", "joint", ipg={"every": 1}, joint={"every": 2})
    keep("erm")
    for given, says in (
        ({"ipg": {"every": 2}}, "ipg.every was 1 and is now 2; name"),
        ({}, f"ipg.every was 1 and is now {config.every}; name"),
        ({"ipg": {"every": 1}, "erm": {"epochs": 9}}, f"erm.epochs was {config.epochs} and is now 9; name"),
    ):
        with pytest.raises(ValueError, match=f"holds another comparison: {says}"):
            keep("erm", "ipg", **given)


def test_all_mistakes_are_named(config: RunConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        comparison(config, ["erm", "erm", "nope", "jtt"], [1, 1], {"dfr": {}, "jtt": {"copies": -1}})
    text = str(caught.value)
    for part in (
        "'erm' is named 2 times",
        "seed 1 is named 2 times",
        "no method 'nope'",
        "'dfr', which is not compared",
    ):
        assert part in text
    assert "option copies=-1: expected a whole number, at least 0" in text
    with pytest.raises(ConfigError, match=r"name a method; .*name a seed"):
        comparison(config, [], [], {})


def test_facts_against_a_loop(config: RunConfig, make_table: Callable[..., ImageTable]) -> None:
    facts = examine(comparison(config, ["erm", "ipg"], [3, 4], {}))
    table = make_table(seed=3)
    rows = list(zip(table.split.tolist(), table.label.tolist(), table.attribute.tolist(), strict=True))
    names = {(y, a): f"{table.classes[y]}, {table.attributes[a]}" for y in range(2) for a in range(2)}
    for split, found in ((0, facts.training), (2, facts.tested)):
        counted = Counter(names[y, a] for s, y, a in rows if s == split)
        assert dict(found) == {name: counted.get(name, 0) for name in names.values()}
    assert (facts.pairs, facts.held_out) == (8, 4)
    assert facts.drawn  # the images of `bars` come from the seed
    assert facts.grouped


def test_the_same_images_for_every_seed(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: make_table(seed=0))
    assert not examine(comparison(config, ["erm"], [0, 1], {})).drawn
    assert not examine(comparison(config, ["erm"], [5], {})).drawn


def one_attribute(table: ImageTable) -> ImageTable:
    zeros = torch.zeros_like(table.attribute)
    return replace(table, attribute=zeros, environment=zeros, attributes=("none",))


def test_every_method_that_cannot_be_is_named_and_nothing_is_trained(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: one_attribute(make_table(seed=seed)))
    monkeypatch.setattr(loop.Training, "_go", lambda *_: pytest.fail("trained"))
    methods = ["erm", "groupdro", "irm", "dfr", "ipg", "jtt"]
    with pytest.raises(UnfitError) as caught:
        examine(comparison(config.with_changes(pairs=0), methods, [0], {}))
    *problems, others = caught.value.problems
    assert [problem.partition(":")[0] for problem in problems] == [
        f"method {name}" for name in ("groupdro", "irm", "dfr", "ipg")
    ]
    assert problems[0].startswith("method groupdro: needs training images whose attribute is known")
    assert "there are none: give --pairs a number above 0" in problems[3]
    assert others == "the others can be trained: --methods erm,jtt"


def test_a_reason_that_several_methods_have_is_said_once(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: one_attribute(make_table(seed=seed)))

    def refused(*methods: str, **changes: Any) -> list[str]:
        with pytest.raises(UnfitError) as caught:
            examine(comparison(config.with_changes(**changes), methods, [0], {}))
        return caught.value.problems

    problems = refused("rwg", "irm", "subg", "erm", "coral")
    assert [problem.partition(" needs ")[0] for problem in problems[:2]] == [
        "methods rwg, subg: each",
        "methods irm, coral: each",
    ]
    assert problems[2:] == ["the other can be trained: --methods erm"]
    assert refused("rwg", "subg")[0].startswith("methods rwg, subg: each needs training images")
    (problem,) = refused("erm", "rwg", "ipg", pairs="nowhere")
    assert problem.startswith("there are no pairs at nowhere")


def test_what_a_method_asks_for_by_an_option_is_said_as_a_comparison_takes_it(config: RunConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        examine(comparison(config, ["erm", "gals"], [0], {}))
    problem, others = caught.value.problems
    assert problem.startswith("method gals: needs maps of where CLIP looks")
    assert "name CLIP's weights with -o gals.clip=FILE, or" in problem
    assert others == "the other can be trained: --methods erm"


def test_what_one_method_needs_of_the_network_is_not_asked_of_all(config: RunConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        examine(comparison(config, ["erm", "ncm"], [0], {}))
    assert caught.value.problems[0].endswith("linear; in `ipg compare`, for this method alone: -o ncm.model=linear")


def test_what_methods_say_of_their_runs(config: RunConfig) -> None:
    (remark,) = examine(comparison(config, ["erm", "irm", "vrex"], [0], {"vrex": {"anneal": "1"}})).remarks
    assert remark.startswith("the penalty of irm weighs 1 in its first 500 iterations, and a run has ")
    assert remark.endswith("give -o irm.anneal=… a smaller number")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": "pairs", "held_out_pairs": 0}, "method erm: selection='pairs' needs held-out pairs"),
        ({"engine": "captured", "device": "cpu"}, "engine='captured' is for a single CUDA GPU"),
        ({"model": "resnet999"}, "method erm: .*resnet999"),
    ],
)
def test_settings_that_cannot_be(config: RunConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        examine(comparison(config.with_changes(**changes), ["erm"], [0], {}))


def test_data_without_test_images(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: make_table(test=0))
    with pytest.raises(ConfigError, match="bars has no test images to compare methods on"):
        examine(comparison(config, ["erm"], [0], {}))


def test_images_are_of_the_size_that_the_run_had_which_all_go_on_from(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def sized(path: Any, size: int | None, seed: int) -> ImageTable:
        table, times = make_table(seed=seed), (size or 8) // 8
        return replace(table, images=table.images.repeat_interleave(times, 2).repeat_interleave(times, 3))

    monkeypatch.setitem(load.DATASETS, "bars", sized)
    before = config.with_changes(method="erm", model="linear", size=16)
    loop.train(before, gather(before), folder=tmp_path / "before")
    config = config.with_changes(start=str(tmp_path / "before"))
    facts = examine(comparison(config, ["erm", "ipg"], [0, 1], {}))
    assert facts.digests == examine(comparison(config.with_changes(size=16), ["erm", "ipg"], [0], {})).digests
    assert facts.drawn
    with pytest.raises(UnfitError, match="does not take images of 2x8x8"):
        examine(comparison(config.with_changes(size=8), ["erm"], [0], {}))


def test_pairs_that_a_network_is_trained_for_are_not_made_yet(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Training, "_go", lambda *_: pytest.fail("trained"))
    assert examine(comparison(config.with_changes(pair_builder="closest"), ["ipg"], [0], {})).pairs == 8


def test_rows_of_other_images_are_noticed(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = comparison(config, ["erm", "ipg"], [0], {})
    keep_record(study, examine(study), tmp_path)
    keep_record(study, examine(study), tmp_path)
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: make_table(seed=99))
    with pytest.raises(ValueError, match=r"holds a comparison on other data: table, pairs, held out pairs changed"):
        keep_record(study, examine(study), tmp_path)


def test_methods_with_pairs_or_masks_join_those_without_and_leave_again(
    config: RunConfig, make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Masked, "regions", lambda *_: halves(make_table(seed=0)))
    tables = set()
    for methods in (["erm"], ["erm", "ipg"], ["erm", "ipg", "epg"], ["gals_mask", "erm"], ["jtt"]):
        study = comparison(config, methods, [0], {})
        keep_record(study, examine(study), tmp_path)
        record = json.loads((tmp_path / RECORD).read_text(encoding="utf-8"))
        tables |= {record[trial.key]["table"] for trial in study.trials}
    assert len(tables) == 1


@pytest.mark.parametrize("methods", [["ipg", "erm"], ["jtt", "erm"], ["ipg"]])
def test_other_images_are_noticed_whichever_method_comes_first(
    methods: list[str],
    config: RunConfig,
    make_table: Callable[..., ImageTable],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    study = comparison(config, ["erm", "ipg"], [0], {})
    keep_record(study, examine(study), tmp_path)
    monkeypatch.setitem(load.DATASETS, "bars", lambda path, size, seed: make_table(seed=99))
    study = comparison(config, methods, [0], {})
    with pytest.raises(ValueError, match=r"holds a comparison on other data: table, "):
        keep_record(study, examine(study), tmp_path)


def test_a_comparison_with_other_settings_is_refused(config: RunConfig, tmp_path: Path) -> None:
    def keep(*methods: str, seeds: Sequence[int] = (0,), copies: int = 5, **changes: Any) -> Study:
        options = {"jtt": {"copies": str(copies)}} if "jtt" in methods else {}
        study = comparison(config.with_changes(**changes), methods, seeds, options)
        keep_record(study, facts, tmp_path)
        return study

    facts = examine(comparison(config, ["erm"], [0], {}))
    keep("erm", "ipg", epochs=9)
    made = keep("erm", "ipg")  # nothing was run by then
    lines = [json.dumps({**trial.identity, "key": trial.key}) for trial in made.trials]
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    keep("erm", "ipg")
    keep("jtt", seeds=(0, 7))
    keep("erm", device="cuda", data_path="elsewhere")  # which make no other run
    before = (tmp_path / "data.json").read_bytes()
    is_now = f"epochs was {config.epochs} and is now {config.epochs + 1}; tau was {config.tau} and is now 0.4"
    with pytest.raises(ValueError, match=f"{tmp_path} holds another comparison: {is_now}; name another place"):
        keep("groupdro", epochs=config.epochs + 1, tau=0.4)
    with pytest.raises(ValueError, match=r"holds another comparison: jtt.copies was 5 and is now 6; name another"):
        keep("erm", "jtt", copies=6)
    assert (tmp_path / "data.json").read_bytes() == before


def test_a_comparison_of_a_time_without_record_is_known_by_its_rows(config: RunConfig, tmp_path: Path) -> None:
    study = comparison(config, ["erm"], [0, 1], {})
    facts = examine(study)
    lines = [json.dumps({**trial.identity, "key": trial.key}) for trial in study.trials]
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds another comparison: its settings were others; name another place"):
        keep_record(comparison(config.with_changes(epochs=9), ["erm", "ipg"], [1, 2], {}), facts, tmp_path)
    keep_record(comparison(config, ["erm", "ipg"], [1, 2], {}), facts, tmp_path)


def test_a_comparison_from_before_crops_could_be_auto_keeps_what_it_had(config: RunConfig, tmp_path: Path) -> None:
    config = config.with_changes(weights="net.safetensors")
    then = comparison(config.with_changes(**EARLIER), ["erm"], [0], {})
    settings = {name: value for name, value in then.trials[0].config.flat().items() if name != "flip"}  # not known yet
    (tmp_path / "data.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    assert as_called(config, tmp_path) == config  # without rows there is nothing to go on with
    (tmp_path / "trials.jsonl").touch()
    (trial,) = comparison(as_called(config, tmp_path), ["erm"], [0], {}).trials
    assert trial.key == then.trials[0].key != comparison(config, ["erm"], [0], {}).trials[0].key
    assert as_called(config.with_changes(crop=0.9), tmp_path).crop == 0.9


def test_files_are_called_as_the_comparison_in_the_folder_calls_them(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its rows are found again; what is another file, or a data set by that name, is left."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos.csv", "other.csv", "more.csv", "colored_fashion"):
        Path(name).touch()
    config = config.with_changes(data="photos.csv", weights="other.csv")
    Path("data.json").write_text(json.dumps({"settings": {"data": "photos.csv", "weights": "more.csv", "pairs": 12}}))
    for spelt in ("./photos.csv", str(tmp_path / "photos.csv"), f"../{tmp_path.name}/photos.csv"):
        assert as_called(config.with_changes(data=spelt), tmp_path) == config
    assert as_called(config.with_changes(data="other.csv"), tmp_path).data == "other.csv"
    assert as_called(config.with_changes(data="./photos.csv"), tmp_path / "elsewhere").data == "./photos.csv"
    Path("data.json").write_text(json.dumps({"settings": {"data": "colored_fashion"}}))
    assert as_called(config.with_changes(data="./colored_fashion"), tmp_path).data == "./colored_fashion"
