"""Studies: which trials a file describes, and what identifies each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipg.config import ConfigError, RunConfig, earlier
from ipg.experiments.ablations import AblatedIpg
from ipg.experiments.study import ADDED, GUIDED, ON_PAIRS, STUDIES, Network, Study, Trial, find_study, load_study
from ipg.methods import METHODS
from ipg.methods.ipg import Ipg

STUDY = """
dataset = "colored_fashion"
seeds = 2
[base]
epochs = 3
alpha = 0.5
precision = "fp32"
[[arm]]
method = "erm"
protocol = "paper"
[[arm]]
method = "joint"
protocol = "tuned"
seeds = [7]
dataset = "colored_fashion_noisy"
config = { alpha = 0.2, options = { order = "sum" } }
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def study_of(tmp_path: Path, text: str = STUDY) -> Study:
    return load_study(written(tmp_path, text))


def problems(tmp_path: Path, text: str) -> list[str]:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert all(problem.startswith(f"{path}: ") for problem in caught.value.problems)
    return [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]


def test_the_trials_of_a_file(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert (study.name, study.metrics_split) == ("small", "test")
    base: dict[str, Any] = {"epochs": 3, "precision": "fp32", "restarts": 0, **earlier({})}
    erm = RunConfig(data="colored_fashion", method="erm", alpha=0.5, **base)
    joint = RunConfig(data="colored_fashion_noisy", method="joint", alpha=0.2, options={"order": "sum"}, seed=7, **base)
    assert study.trials == (
        Trial("small", "colored_fashion", "erm", "paper", 0, erm),
        Trial("small", "colored_fashion", "erm", "paper", 1, erm.with_changes(seed=1)),
        Trial("small", "colored_fashion_noisy", "joint", "tuned", 7, joint),
    )


def test_everything_may_stand_in_the_arm(tmp_path: Path) -> None:
    text = 'metrics_split = "search"\n' + ARM + 'dataset = "colored_mnist"\nseeds = 1\n'
    study = study_of(tmp_path, text)
    assert study.metrics_split == "search"
    assert [trial.dataset for trial in study.trials] == ["colored_mnist"]


# -- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_is_pinned(tmp_path: Path) -> None:
    """Rows are found again by their keys: another form of them would run every study anew.

    A setting that is new goes into `study.ADDED`, with the value that all trials have had so far.
    """
    assert study_of(tmp_path).trials[0].key == "3610f3695bf4fe43"


def key_of(trial: Trial) -> str:
    """Worked out anew: a trial keeps its own."""
    return replace(trial).key


@pytest.mark.parametrize(("name", "usual", "other"), [("jitter", 0.0, 0.1), ("strict", False, True), ("size", None, 9)])
def test_a_setting_that_joins_changes_no_key_while_it_has_its_old_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, usual: Any, other: Any
) -> None:
    trial = study_of(tmp_path).trials[0]
    changed = replace(trial, config=trial.config.with_changes(**{name: other}))
    flat = RunConfig.flat
    with monkeypatch.context() as before_it_joined:
        before_it_joined.setattr(RunConfig, "flat", lambda config: {k: v for k, v in flat(config).items() if k != name})
        before = key_of(trial)
        assert key_of(changed) == before
    assert key_of(trial) != before
    monkeypatch.setitem(ADDED, name, usual)
    assert key_of(trial) == before
    assert key_of(changed) != before


def test_a_trial_works_out_its_key_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat, asked = RunConfig.flat, []
    monkeypatch.setattr(RunConfig, "flat", lambda config: asked.append(config) or flat(config))
    trials = study_of(tmp_path).trials
    assert len({trial.key for trial in trials} | {trial.key for trial in trials}) == len(trials) == len(asked)


def test_settings_that_joined_have_their_old_value_by_default() -> None:
    """But for restarts, which trials of studies have only where the study says so."""
    settings = RunConfig().flat()
    differing = {name for name, value in ADDED.items() if settings.get(name, value) != value}
    assert differing == {"restarts"}
    assert "engine" in settings


def test_a_collapse_is_a_result_unless_a_study_says_otherwise(tmp_path: Path) -> None:
    text = 'dataset = "colored_fashion"\nseeds = 1\n{}\n[[arm]]\nmethod = "{}"\nprotocol = "p"\n'
    keys: dict[tuple[str, int], str] = {}
    for method in ("ipg", "erm", "pair_augmentation"):
        for count in (0, 2):
            base = f"[base]\nrestarts = {count}" if count else ""
            (trial,) = load_study(written(tmp_path, text.format(base, method))).trials
            assert trial.config.restarts == count
            keys[method, count] = trial.key
    assert keys["ipg", 0] != keys["ipg", 2]
    for method in ("erm", "pair_augmentation"):
        assert keys[method, 0] == keys[method, 2]  # nothing collapses


def test_the_rows_in_results_are_those_of_the_studies(repo_root: Path) -> None:
    found = 0
    for path in (repo_root / "src/ipg/experiments/studies").glob("*.toml"):
        keys = {trial.key: trial for trial in load_study(path).trials}
        file = repo_root / "results" / path.stem / "trials.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            row = json.loads(line)
            assert (row["method"], row["seed"]) == (keys[row["key"]].method, keys[row["key"]].seed)
            found += 1
    assert found > 0


def test_keys_tell_everything_apart_that_decides_the_outcome(tmp_path: Path) -> None:
    trial = study_of(tmp_path).trials[0]
    changes: list[dict[str, Any]] = [
        {"study": "other"}, {"dataset": "other"}, {"protocol": "tuned"}, {"seed": 1}, {"method": "ipg"},
        {"config": trial.config.with_changes(alpha=0.51)},
        {"config": trial.config.with_changes(margin="0.5")},
        {"config": trial.config.with_changes(options={"order": "sum"})},
        {"config": trial.config.with_changes(precision="tf32")},
        {"config": trial.config.with_changes(engine="eager")},
    ]  # fmt: skip
    keys = [trial.key, *(replace(trial, **change).key for change in changes)]
    assert len(set(keys)) == len(keys)
    everywhere = {name: f"other {name}" for name in ("data_path",)} | {"device": "cpu"}
    assert replace(trial, config=trial.config.with_changes(**everywhere)).key == trial.key


def test_keys_do_not_depend_on_how_a_file_is_written(tmp_path: Path) -> None:
    text = STUDY.replace("epochs = 3\nalpha = 0.5", "alpha = 0.50\nepochs = 3").replace("0.2", "2e-1")
    assert text != STUDY
    keys, same = ([trial.key for trial in study_of(tmp_path, one).trials] for one in (STUDY, text))
    assert keys == same


# -- mistakes --------------------------------------------------------------------------------------------------------

ARM = '[[arm]]\nmethod = "erm"\nprotocol = "paper"\n'
HEAD = 'dataset = "colored_fashion"\nseeds = 2\n'
KEYS = "there are dataset, seeds, metrics_split, decides, base and arm"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD, ["there is nothing to run; expected at least one [[arm]]"]),
        (HEAD + "arm = 3\n", ["there is nothing to run; expected at least one [[arm]]"]),
        (HEAD + "arm = [3]\n", ["arm 1: expected a table"]),
        (HEAD + "[arm]\nmethod = 'erm'\n", ["there is nothing to run; expected at least one [[arm]]"]),
        (HEAD + "sedes = 3\n" + ARM, [f"unknown key 'sedes'; {KEYS}"]),
        (HEAD + "data = 'mine'\n" + ARM, [f"unknown key 'data'; {KEYS}"]),
        (HEAD + "epochs = 3\n" + ARM, ["unknown key 'epochs'; settings go under [base]"]),
        (HEAD + ARM + "alpha = 0.1\n", ["arm 1: unknown key 'alpha'; settings go into config = { … }"]),
        (ARM, ["arm 1: lacks 'dataset'", "arm 1: lacks 'seeds'"]),
        (HEAD + "[[arm]]\n", ["arm 1: lacks 'method'", "arm 1: lacks 'protocol'"]),
        (
            HEAD + ARM + "confg = { alpha = 0.1 }\n",
            ["arm 1: unknown key 'confg'; there are dataset, seeds, method, protocol and config"],
        ),
        (HEAD + ARM + "config = 3\n", ["arm 1: config must be a table"]),
        (HEAD + "base = 3\n" + ARM, ["arm 1: base must be a table"]),
        (HEAD + "[base]\nepoch = 3\n" + ARM, ["arm 1: unknown key 'epoch'; did you mean epochs?"]),
        (
            HEAD + ARM + "config = { alpha = 3, tau = 4 }\n",
            ["arm 1: alpha=3: expected 0 <= alpha < 1", "arm 1: tau=4: expected 0 <= tau <= 1, a share of the pairs"],
        ),
        (
            HEAD + ARM.replace("erm", "quack"),
            [f"arm 1: there is no method 'quack'; there are {', '.join(METHODS)}"],
        ),
        (
            HEAD + ARM + "config = { options = { order = 'sum' } }\n",
            ["arm 1: method 'erm' has no option 'order'; it has none"],
        ),
        (
            HEAD + ARM + "seeds = [3, 1, 3]\n",
            ["arm 1: seeds=[3, 1, 3]: expected each once, since a seed gives the same run again"],
        ),
        (HEAD + ARM + ARM, ["arm 2: repeats trials of an arm above it"]),
        (HEAD + ARM + ARM + "seeds = [5, 1]\n", ["arm 2: repeats trials of an arm above it"]),
        (
            HEAD + "extra = 1\n" + ARM.replace("erm", "quack") + "[[arm]]\nmethod = 'ipg'\n",
            [
                f"unknown key 'extra'; {KEYS}",
                f"arm 1: there is no method 'quack'; there are {', '.join(METHODS)}",
                "arm 2: lacks 'protocol'",
            ],
        ),
    ],
)
def test_mistakes_are_all_named(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(tmp_path, text) == expected


@pytest.mark.parametrize("seeds", ["0", "-1", "true", "1.5", '"ten"', "[]", "[1, -2]", "[1, true]", '["1"]', "{}"])
def test_seeds_that_are_none(tmp_path: Path, seeds: str) -> None:
    (problem,) = problems(tmp_path, HEAD.replace("2", seeds) + ARM)
    assert problem.startswith("arm 1: seeds=")
    assert problem.endswith(": expected how many there are, or a list of them")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no study file .*none\.toml"):
        load_study(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        load_study(tmp_path / "bad.toml")


def test_the_studies_of_the_project(repo_root: Path) -> None:
    for path in (repo_root / "src/ipg/experiments/studies").glob("*.toml"):
        assert load_study(path).trials


# -- by name ---------------------------------------------------------------------------------------------------------


def test_the_projects_own_studies_go_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_study("margin") == load_study(STUDIES / "margin.toml")
    (tmp_path / "margin").mkdir()  # a folder is no study
    assert find_study("margin").name == "margin"
    written(tmp_path, STUDY)
    assert find_study("small.toml") == find_study(str(tmp_path / "small.toml")) == load_study(tmp_path / "small.toml")


def test_a_name_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no study 'marign': expected a TOML file, or one of .*, margin"):
        find_study("marign")
    with pytest.raises(ConfigError, match=r"there is no study file marign\.toml"):
        find_study("marign.toml")


def test_titles(tmp_path: Path) -> None:
    titles = [trial.title for trial in study_of(tmp_path).trials]
    assert titles[1] == "erm (paper), seed 1"  # to which pairs are nothing
    assert titles[2] == "joint order=sum (tuned), 40 pairs, every 4, seed 7"
    trial = study_of(tmp_path).trials[2]
    assert replace(trial, study="mine", protocol="mine").title.startswith("joint order=sum, 40 pairs, ")
    kept = replace(trial, config=trial.config.with_changes(pairs="folder"))
    assert kept.title == "joint order=sum (tuned), pairs folder, every 4, seed 7"
    told = {
        name: replace(trial, method=name, config=trial.config.with_changes(method=name, options={})).title
        for name in ("ipg", "continuous", "cggd", "pair_augmentation", "pair_contrastive", "ncm", "groupdro")
    }  # what acts on each
    paced = {name for name, title in told.items() if "every 4" in title}
    assert {name for name, title in told.items() if "alpha 0.2" in title} == {"ipg", "continuous"}
    assert paced == {"ipg", "continuous", "cggd"}
    assert {name for name, title in told.items() if "40 pairs" in title} == told.keys() - {"groupdro"}


def test_which_methods_are_on_pairs_is_known_without_torch() -> None:
    known = {**METHODS, AblatedIpg.name: AblatedIpg}
    assert {name for name, kind in known.items() if "pairs" in kind.needs} == ON_PAIRS
    assert {name for name, kind in known.items() if issubclass(kind, Ipg)} == GUIDED


def test_another_pretrained_network_makes_other_trials() -> None:
    """Those that start from weights: keys and settings tell them apart; the others are as they were."""
    trials = find_study("waterbirds100_tuned").trials[:2]
    plain = replace(trials[0], config=trials[0].config.with_changes(weights=None))
    found = Network("resnet50.safetensors", "resnet50").over([*trials, plain], "it")
    config = found[0].config
    assert (config.model, config.weights, config.normalization) == ("resnet50", "resnet50.safetensors", "imagenet")
    assert found[2] is plain
    assert len({trial.key for trial in (*trials, *found)}) == 5
    (own,) = Network("mine.safetensors").over(trials[:1], "it")
    assert (own.config.model, own.config.normalization) == ("mobilenetv2_100", "half")  # the study's own
    (hub,) = Network("pretrained", "resnet50").over(trials[:1], "it")
    assert hub.config.normalization is None  # as the weights say
    (given,) = Network("x", "resnet50", "0.5/0.2").over(trials[:1], "it")
    assert given.config.normalization == "0.5/0.2"
    with pytest.raises(ValueError, match="--weights x: no trial of it starts from weights"):
        Network("x").over([plain], "it")
