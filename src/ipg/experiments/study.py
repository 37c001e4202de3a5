"""A study: which trials there are, and what identifies each.

A study file lists arms; every arm is run once a seed:

    dataset = "colored_mnist"
    seeds = 10
    [base]                       # configuration of all arms
    epochs = 18
    [[arm]]
    method = "ipg"
    protocol = "paper"
    config = { alpha = 0.5 }     # over the base

Importing this module is cheap: torch comes with the methods, whose own options are checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ipg.config import ConfigError, RunConfig, earlier, read_toml, setting_meant
from ipg.data.names import is_own
from ipg.words import are, listed, number_of

__all__ = [
    "ADDED", "ELSEWHERE", "GUIDED", "ON_PAIRS", "STUDIES", "Network", "Study", "Trial", "arm_trials", "find_study",
    "load_study", "only", "own_options",
]  # fmt: skip

STUDIES = Path(__file__).with_name("studies")
"""The project's own studies."""

ADDED: dict[str, Any] = {
    "engine": "auto",
    "weights": None,
    "normalization": None,
    "freeze": False,
    "crop": 1.0,
    "flip": False,
    "resident": 0.5,
    "start": None,
    "masks": None,
    "steps": None,
    "decision": "argmax",
    "restarts": 0,
    "shard": False,
    **{"path_column": "path", "label_column": "label", "attribute_column": "attribute", "split_seed": 0},
    "environment_column": "environment",
}
"""Settings that joined after rows had been written, with the value that trials had in effect before them.

A setting that has this value is left out of the key, and a row that lacks it is read as having it: so the rows written
before still count. Nothing is ever taken out of here again.
"""

ELSEWHERE = ("device", "data_path", "resident", "shard")
"""Settings of the machine, which make no other trial."""

RESCALED = frozenset(("ipg", "ipg_ablated", "continuous"))
"""Those that rescale the task gradient, by alpha."""
GUIDED = RESCALED | {"joint", "joint_weighted", "cggd"}
"""Those with corrections, whose training may collapse."""
ON_PAIRS = GUIDED | {"pair_augmentation", "pair_contrastive", "ncm"}
"""Methods that need pairs, named here since to ask them is to load torch."""

_KEYS = ("dataset", "seeds", "metrics_split", "decides", "base", "arm")
_DECIDE = ("average", "worst_group", "pairs")
_ARM_KEYS = ("dataset", "seeds", "method", "protocol", "config")


@dataclass(frozen=True)
class Trial:
    """One run of one arm with one seed."""

    study: str
    dataset: str
    method: str
    protocol: str
    seed: int
    config: RunConfig
    known_as: str | None = field(default=None, compare=False)
    """The key of the trial as its study states it, where a machine has settled what that leaves open."""

    def on(self, device: str, *, data_path: str | None, engine: str = "auto") -> Trial:
        """The same trial as a machine runs it: there, with data from there, and by `engine` if it names none."""
        config = self.config.with_changes(device=device, data_path=data_path)
        if config.engine == "auto":
            config = config.with_changes(engine=engine)
        return replace(self, config=config, known_as=self.key)

    @cached_property
    def key(self) -> str:
        """What identifies the trial: a digest of all that decides its outcome.

        The split that its row reports is no part of it: the same trial may have a row of each split.
        """
        if self.known_as is not None:
            return self.known_as
        settled = {
            name: value
            for name, value in self.config.flat().items()
            if name not in ELSEWHERE and not self._is_as_before(name, value)
        }
        text = json.dumps([self.study, self.dataset, self.method, self.protocol, self.seed, settled], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def stated(self) -> dict[str, Any]:
        """The settings that decide the outcome, the seed apart, as they are given and under the names of rows."""
        values = self.config.flat()
        if isinstance(values["pairs"], str):  # of a file, rows tell the number and the builder
            del values["pair_builder"]
            values["pair_file"] = values.pop("pairs")
        return {name: value for name, value in values.items() if name not in ("seed", *ELSEWHERE)}

    @cached_property
    def in_full(self) -> dict[str, Any]:
        """The same with all of the method's own options, those at their defaults, too."""
        return self.stated | own_options(self.config)

    def _is_as_before(self, name: str, value: Any) -> bool:
        """Whether a setting that joined has the value that the trial had in effect before."""
        if name == "split_seed" and is_own(self.dataset):
            return bool(value == self.seed)  # the seed drew the split
        if name == "restarts" and self.method not in GUIDED:
            return True  # nothing collapses
        return name in ADDED and value == ADDED[name]

    @property
    def identity(self) -> dict[str, Any]:
        """What a row says of the trial that it is of."""
        names = ("study", "dataset", "method", "protocol", "seed")
        return {"key": self.key, **{name: getattr(self, name) for name in names}}

    @property
    def title(self) -> str:
        """The trial in words."""
        config = self.config
        options = "".join(f" {name}={value}" for name, value in config.options.items())
        protocol = f" ({self.protocol})" if self.protocol != self.study else ""
        parts = [f"{self.method}{options}{protocol}"]
        if config.pairs and self.method in ON_PAIRS:
            parts.append(f"pairs {config.pairs}" if isinstance(config.pairs, str) else number_of(config.pairs, "pair"))
            parts += [f"alpha {config.alpha:g}"] if self.method in RESCALED else []
            parts += [f"every {config.every}"] if self.method in GUIDED else []
        return ", ".join([*parts, f"seed {self.seed}"])


@dataclass(frozen=True)
class Study:
    """A set of independent trials."""

    name: str
    trials: tuple[Trial, ...]
    metrics_split: str
    """The split whose metrics the rows carry: `test`, or another while settings are being chosen."""
    decides: str | None = None
    """What settings are chosen by: `average`, `worst_group`, or `pairs`, balanced accuracy times the share of held-out
    pairs that agree. Where nothing is said, what the epochs of all arms are selected by, else `average`."""
    unit: str = "trial"
    """What one of its trials is called while they are run."""
    shared: RunConfig | None = None
    """What its trials were made from, where that is one configuration."""


@dataclass(frozen=True)
class Network:
    """A pretrained network in the place of the one that trials name: what the paper has, for those who have it.

    Its settings enter the keys of trials and the configurations of rows, so that these are told from others.
    """

    weights: str
    """A file, or `pretrained`."""
    model: str | None = None
    """The trials' own where it is not given."""
    normalization: str | None = None
    """Where not given, ImageNet's for a file of another model's weights, and as `pretrained` ones know themselves."""

    def over(self, trials: Iterable[Trial], name: str) -> tuple[Trial, ...]:
        """Trials that start from weights, with this network; the others as they are.

        Raises:
            ValueError: no trial does; `name` says of what.
        """
        known = tuple(trials)
        if all(trial.config.weights is None for trial in known):
            raise ValueError(f"--weights {self.weights}: no trial of {name} starts from weights; leave it out")
        return tuple(trial if trial.config.weights is None else self._of(trial) for trial in known)

    def _of(self, trial: Trial) -> Trial:
        config = trial.config
        changes: dict[str, Any] = {"weights": self.weights}
        if self.model is not None:
            usual = None if self.weights == "pretrained" else "imagenet"
            changes |= {"model": self.model, "normalization": usual}
        if self.normalization is not None:
            changes["normalization"] = self.normalization
        return replace(trial, config=config.with_changes(**changes))


def find_study(name: str, *, check_options: bool = True) -> Study:
    """The study in the file of that name, or the project's own study of that name; see `load_study`."""
    own = STUDIES / f"{name}.toml"
    if own.is_file() and not Path(name).is_file():
        return _own_study(own, check_options)
    if not Path(name).suffix and not Path(name).exists():
        known = ", ".join(sorted(path.stem for path in STUDIES.glob("*.toml")))
        raise ConfigError([f"there is no study {name!r}: expected a TOML file, or one of {known}"])
    return load_study(Path(name), check_options=check_options)


@cache
def _own_study(path: Path, check_options: bool) -> Study:
    """One of the project's own, read once: a reproduction asks for the same study cell by cell."""
    return load_study(path, check_options=check_options)


def only(study: Study, rules: Sequence[str]) -> Study:
    """The study with the trials alone that fit all rules `NAME=VALUE[,VALUE…]`.

    A name is one of what identifies a trial (method, seed, dataset, protocol), a setting, or an option of the method.
    """
    facts = {trial.key: _facts(trial) for trial in study.trials} if rules else {}
    known = {name for of_one in facts.values() for name in of_one}
    left = study.trials
    for rule in rules:
        name, equals, values = rule.partition("=")
        if not equals or name not in known:
            expected = "expected NAME=VALUE, or several values with commas between"
            hint = setting_meant(name, known) if equals else expected
            raise ConfigError([f"--only {rule}: {hint or f'no trial of {study.name} has {name!r}'}"])
        wanted = values.split(",")
        for text in wanted:
            if not any(_is_written(has.get(name), text) for has in facts.values()):
                raise ConfigError([f"--only {rule}: no trial has {text}; {_there(name, facts.values())}"])
        before = left
        left = tuple(one for one in left if any(_is_written(facts[one.key].get(name), text) for text in wanted))
        if not left:
            raise ConfigError(
                [f"--only {rule}: no trial is left; {_there(name, [facts[trial.key] for trial in before])}"]
            )
    return replace(study, trials=left)


def _facts(trial: Trial) -> dict[str, Any]:
    """What a trial can be told from others by."""
    flat = {name: value for name, value in trial.config.flat().items() if name not in ELSEWHERE}
    return {name: value for name, value in {**flat, **trial.identity}.items() if name not in ("key", "study")}


def _there(name: str, facts: Iterable[Mapping[str, Any]]) -> str:
    """Which values of a name there are."""
    values = sorted({str(has[name]) for has in facts if name in has})
    return f"of {name} there {are(len(values))} {listed(values)}"


def _is_written(value: Any, text: str) -> bool:
    """Whether `text` is a way to write `value`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(text) == value
    return str(value).lower() == text.strip().lower()


def load_study(path: Path, *, check_options: bool = True) -> Study:
    """Read a study file; all mistakes are reported together.

    Those in methods' names and own options only where they are checked, which imports the methods.
    """
    content = read_toml(path, "study file")
    problems = [*_unknown(content, _KEYS, "under [base]")]
    if (decides := content.get("decides")) not in (None, *_DECIDE):
        problems.append(f"decides={decides!r}: expected one of {', '.join(_DECIDE)}")
    arms = content.get("arm")
    if not isinstance(arms, list) or not arms:
        problems.append("there is nothing to run; expected at least one [[arm]]")
        arms = []
    trials: dict[str, Trial] = {}
    for number, arm in enumerate(arms, start=1):
        try:
            found = {trial.key: trial for trial in arm_trials(path.stem, content, arm, check_options=check_options)}
            if trials.keys() & found.keys():
                raise ConfigError(["repeats trials of an arm above it"])
        except ConfigError as error:
            problems += [f"arm {number}: {problem}" for problem in error.problems]
        else:
            trials |= found
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return Study(path.stem, tuple(trials.values()), content.get("metrics_split", "test"), decides)


def _unknown(given: Iterable[str], known: Sequence[str], home: str) -> Iterator[str]:
    """What is wrong with names that are not known: settings of runs go elsewhere, others are none."""
    settings = {setting.name for setting in fields(RunConfig)} - {"data", "seed"}  # here dataset and seeds
    for name in given:
        if name not in known:
            yield f"unknown key {name!r}; " + (
                f"settings go {home}" if name in settings else f"there are {listed(known)}"
            )


def arm_trials(
    study: str, content: Mapping[str, Any], arm: Mapping[str, Any], *, check_options: bool = True
) -> list[Trial]:
    """The trials of one arm, a seed each.

    What an arm does not say is as `RunConfig` has it, but for what was `earlier` so: files keep the meaning that they
    were written with. And a run that collapses is a result, unless an arm allows for restarts.
    """
    if not isinstance(arm, dict):
        raise ConfigError(["expected a table"])
    settled = {"base": {}, "config": {}} | {k: v for k, v in content.items() if k in ("dataset", "seeds", "base")} | arm
    problems = [*_unknown(arm, _ARM_KEYS, "into config = { … }")]
    problems += [f"lacks {name!r}" for name in ("dataset", "method", "protocol", "seeds") if name not in settled]
    problems += [f"{name} must be a table" for name in ("base", "config") if not isinstance(settled[name], dict)]
    if problems:
        raise ConfigError(problems)
    names = {"data": settled["dataset"], "method": settled["method"]}
    given = {**settled["base"], **settled["config"], **names}
    config = RunConfig.from_mapping({"restarts": ADDED["restarts"], **earlier(given), **given})
    if check_options:
        _check_options(config)
    return [
        Trial(study, config.data, config.method, settled["protocol"], seed, config.with_changes(seed=seed))
        for seed in _seeds(settled["seeds"])
    ]


def _check_options(config: RunConfig) -> None:
    """ConfigError where the method is not known, or has no such options."""
    try:
        own_options(config)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def own_options(config: RunConfig) -> dict[str, Any]:
    """All of the method's own options, each of its type: as given, else its default. This imports the methods."""
    import ipg.experiments.ablations  # noqa: F401 - its methods are known to studies
    from ipg.methods import method_class, parse_options

    return asdict(parse_options(method_class(config.method), config.options))


def _seeds(given: Any) -> Sequence[int]:
    """A number of seeds, or a list of them."""
    seeds = range(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(seeds, range | list) or not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ConfigError([f"seeds={given!r}: expected how many there are, or a list of them"])
    if len(set(seeds)) < len(seeds):
        raise ConfigError([f"seeds={given!r}: expected each once, since a seed gives the same run again"])
    return seeds
