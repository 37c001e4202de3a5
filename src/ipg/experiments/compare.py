"""Several methods on the same data with the same seeds, as a study; what cannot be is refused before any training."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from ipg.config import EARLIER, PANELS, ConfigError, RunConfig, setting_meant
from ipg.data.load import list_files, load
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import ELSEWHERE, Study, Trial, own_options
from ipg.files import write_json
from ipg.methods import method_class, parse_options
from ipg.methods.options import option_defaults
from ipg.training.device import resolve_device
from ipg.training.engine import resolve
from ipg.training.folder import FILES, read_json, same_setting
from ipg.training.materials import Materials
from ipg.training.readiness import get_ready
from ipg.training.start import as_started

__all__ = ["SPLIT", "Facts", "UnfitError", "as_called", "comparison", "examine", "keep_record", "own_settings"]

NAME = "compare"
SPLIT = "test"
"""The split that methods are compared on."""
RECORD = "data.json"
"""Beside the rows: digests of the images and pairs that they are of, and the settings that methods share."""
SETTINGS = "settings"
"""In the record, among the keys of trials."""
ALIKE = ("pairs", "pair_builder", "held_out_pairs", "selection", "seed")
OWN = (
    *("model", "weights", "normalization", "freeze"),
    *(name for panel in ("Pairs and guidance", "Training") for name in PANELS[panel] if name not in ALIKE),
)
"""Settings that a method may have for itself alone: those of the network and of training."""


class UnfitError(ConfigError):
    """Methods that cannot be trained on the data: a sentence for each reason, and which of the others can be."""

    named_in_full = True


@dataclass(frozen=True)
class Facts:
    """What a reader has to know of the data to judge a comparison on it."""

    name: str
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    training: Mapping[str, int]
    """Images of each group, those without any among them."""
    tested: Mapping[str, int]
    validated: Mapping[str, int]
    pairs: int
    """Pairs that guide the methods which need some."""
    held_out: int
    """Pairs to measure disagreement on."""
    drawn: bool
    """Whether another seed makes other training and test images."""
    digests: Mapping[str, str]
    """Of what any method is given."""
    remarks: Sequence[str] = ()
    """What methods say of their runs before these begin."""

    @property
    def grouped(self) -> bool:
        """Whether the data says which form of the shortcut an image has."""
        return len(self.attributes) > 1


def comparison(
    config: RunConfig, methods: Sequence[str], seeds: Sequence[int], options: Mapping[str, Mapping[str, Any]]
) -> Study:
    """A trial for each method and seed, seeds on the outside, so that a part of it compares all methods already.

    Args:
        config: settings of all methods.
        methods: their names.
        seeds: one run of every method each.
        options: of methods' own, by method, and settings (`OWN`) that one has for itself.

    Raises:
        ConfigError: all that is wrong with methods, seeds and options.
    """
    problems = [f"method {name!r} is named {count} times" for name, count in Counter(methods).items() if count > 1]
    problems += [f"seed {seed} is named {count} times" for seed, count in Counter(seeds).items() if count > 1]
    problems += ["there is nothing to compare: name a method"] if not methods else []
    problems += ["there is nothing to compare: name a seed"] if not seeds else []
    problems += [
        f"option of method {name!r}, which is not compared; expected one of {', '.join(methods)}"
        for name in options
        if name not in methods
    ]
    configs: dict[str, RunConfig] = {}
    for name in dict.fromkeys(methods):
        try:
            configs[name] = _configured(config, name, options.get(name, {}))
        except ConfigError as error:
            problems += [f"method {name}: {problem}" for problem in error.problems]
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    return Study(
        NAME,
        tuple(
            Trial(
                NAME,
                config.data,
                name,
                NAME,
                seed,
                configs[name].with_changes(seed=seed),
            )
            for seed in seeds
            for name in methods
        ),
        SPLIT,
        unit="run",
        shared=config,
    )


def _configured(config: RunConfig, method: str, given: Mapping[str, Any]) -> RunConfig:
    """`config` for a method with what is given for it alone."""
    options = {name: value for name, value in given.items() if name not in OWN}
    if unknown := list(_unknown(method, options)):
        raise ValueError("; ".join(unknown))
    parse_options(method_class(method), options)
    settings = {name: value for name, value in given.items() if name in OWN}
    return RunConfig.from_mapping(settings, base=config.with_changes(method=method, options=options))


def _unknown(method: str, names: Iterable[str]) -> Iterator[str]:
    """What is wrong with names that are neither options of a method nor settings that it may have for itself."""
    options = option_defaults(method_class(method))
    for name in (name for name in names if name not in options):
        if name in RunConfig().flat():
            hint = "all methods have the same"
        else:
            hint = setting_meant(name, [*options, *OWN]) or f"it has {', '.join(options) or 'none'}"
        yield f"method {method!r} has no option {name!r}; {hint}"


def own_settings(study: Study) -> dict[str, dict[str, Any]]:
    """What each method has for itself alone: all of its options, and the settings in which it differs."""
    shared = cast(RunConfig, study.shared)
    return {
        trial.method: own_options(trial.config)
        | {name: value for name in OWN if (value := getattr(trial.config, name)) != getattr(shared, name)}
        for trial in study.trials
    }


def examine(study: Study) -> Facts:
    """Look at the data, and make every method ready to train with the first seed, without a single step.

    Raises:
        UnfitError: some method cannot be trained on this data.
        ConfigError: there is nothing to compare them on.
    """
    first = study.trials[0]
    trials = [replace(trial, config=as_started(trial.config)) for trial in study.trials if trial.seed == first.seed]
    config = trials[0].config
    resolve(config, resolve_device(config.device), processes=1)
    table = load(config.data, path=config.data_path, size=config.size, seed=config.seed, reading=Reading.of(config))
    if not len(table.indices(SPLIT)):
        raise ConfigError([f"{table.name} has no test images to compare methods on; give some rows the split test"])
    refused: dict[str, list[str]] = {}  # methods by the reason
    materials: Materials | None = None  # with pairs, where any method has them
    digests: dict[str, str] = {}
    for trial in trials:
        try:
            ready = get_ready(trial.config, table, ("validation", SPLIT))
            if not digests or (ready.pairs is not None and "pairs" not in digests) or ready.masks is not None:
                digests = _digests(ready, trial.method) | digests
            materials = ready if materials is None or materials.pairs is None else materials
        except (ValueError, ImportError, OSError) as error:
            refused.setdefault(_reason(trial.method, str(error)), []).append(trial.method)
    if refused or materials is None:
        raise UnfitError(list(_told(refused, [trial.method for trial in trials])))
    counts = {split: _counts(table, split) for split in ("train", SPLIT, "validation")}
    return Facts(
        name=table.name,
        classes=table.classes,
        attributes=table.attributes,
        training=counts["train"],
        tested=counts[SPLIT],
        validated=counts["validation"],
        pairs=len(materials.pairs or ()),
        held_out=len(materials.held_out or ()),
        drawn=_drawn(config, table, {trial.seed for trial in study.trials} - {first.seed}),
        digests=digests,
        remarks=[_of_method(trial.method, remark) for trial in trials if (remark := _remark(trial, table))],
    )


def as_called(config: RunConfig, results: Path) -> RunConfig:
    """`config` with files called as the comparison in `results` calls them, which is by what its rows are known.

    And with settings of before they could be `auto`, where its rows are from then.
    """
    file = results / RECORD
    before = read_json(file).get(SETTINGS) if file.exists() else None
    known = before if isinstance(before, dict) else {}
    there = [name for name in FILES if name in known]
    if known and Store(results).rows.exists():
        config = config.as_before(known)
    return config.with_changes(
        **{name: known[name] for name in there if same_setting(name, known[name], None, getattr(config, name))}
    )


def keep_record(study: Study, facts: Facts, results: Path) -> None:
    """Note which images and pairs the rows in `results` are of, and by which settings.

    Raises:
        ValueError: rows of this very comparison are of others, or the folder holds a comparison on another data set or
            with other settings, whose page this one's would replace.
    """
    file, first = results / RECORD, study.trials[0].seed  # other seeds may draw other images
    keys = [trial.key for trial in study.trials if trial.seed == first]
    known = read_json(file) if file.exists() else {}
    rows = read_rows(Store(results).rows)
    others = {str(row.get("dataset")) for row in rows} - {study.trials[0].dataset}
    if others:
        raise ValueError(
            f"{results} holds a comparison on other data ({', '.join(sorted(others))}); name another place with "
            f"--output, or delete it"
        )
    then = {key: {name: digest for name, digest in known.get(key, {}).items() if digest is not None} for key in keys}
    changed = [
        name.replace("_", " ")
        for name, digest in facts.digests.items()  # what no method of then was given is new, and not changed
        if any(before.get(name, digest) != digest for before in then.values())
    ]
    if changed:
        raise ValueError(
            f"{results} holds a comparison on other data: {', '.join(changed)} changed since; name another place with "
            f"--output, or delete it"
        )
    settings, before = _settings(study), known.get(SETTINGS, {}) if rows else {}
    if differing := _differing(study, rows, before, settings):
        raise ValueError(
            f"{results} holds another comparison: {'; '.join(differing)}; name another place with --output, or "
            f"delete it"
        )
    digests = {key: {**then[key], **facts.digests} for key in keys}
    write_json(file, {**known, **digests, SETTINGS: {**before, **settings}})


def _settings(study: Study) -> dict[str, Any]:
    """What all trials share, and what methods have for themselves as METHOD.NAME, as JSON has them."""
    config = cast(RunConfig, study.shared)
    aside = {"method", "seed", *ELSEWHERE}
    own = {f"{method}.{name}": v for method, named in own_settings(study).items() for name, v in named.items()}
    shared = {name: value for name, value in config.flat().items() if name not in aside}
    return dict(json.loads(json.dumps(shared | own)))


def _differing(
    study: Study, rows: Sequence[Mapping[str, Any]], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
    """In what the rows there are were made otherwise, in words; nothing where there are none."""
    if before:
        then = {**RunConfig().flat(), **EARLIER, **before}  # a setting that is newer had its default
        again = {trial.method for trial in study.trials} & {row.get("method") for row in rows}
        own = [name for name in {**now, **before} if name.partition(".")[0] in again]
        told = {name: (_in_effect(then, name), _in_effect(now, name)) for name in dict.fromkeys([*now, *own])}
        return [
            f"{name} was {was[0]!r} and is now {is_[0]!r}"
            for name, (was, is_) in told.items()
            if was and is_ and was != is_ and (name in then or name in own)
        ]
    keys, made = {row.get("key") for row in rows}, {(row.get("method"), row.get("seed")) for row in rows}
    twice = [trial for trial in study.trials if (trial.method, trial.seed) in made]  # of a time without record
    return ["its settings were others"] if twice and not any(trial.key in keys for trial in twice) else []


def _in_effect(settings: Mapping[str, Any], name: str) -> list[Any]:
    """A setting of all, or of a method, `METHOD.NAME`, which has that of all where it has none of its own; if known."""
    return [settings[known] for known in (name, name.rpartition(".")[2]) if known in settings][:1]


def _digests(materials: Materials, method: str) -> dict[str, str]:
    """Of the images and of the pairs and masks that there are, where methods may each have their own masks."""
    found = {name: digest for name, digest in materials.fingerprints().items() if name != "network" and digest}
    if "masks" in found:
        found[f"masks of {method}"] = found.pop("masks")
    return found


def _reason(method: str, text: str) -> str:
    """What a method says against a run of it, without its name."""
    return _of_method(method, text).replace(f"method {method!r} ", METHOD)


def _of_method(method: str, text: str) -> str:
    """What a method says of its options, with `-o NAME=` as a comparison takes it: `-o METHOD.NAME=`."""
    return re.sub(r"(?<=-o )(?=\w+=)", f"{method}.", text)


def _remark(trial: Trial, table: ImageTable) -> str | None:
    return method_class(trial.method).remark(trial.config, table)


METHOD = "each "
"""Stands before what a method says of itself; of one alone it is left out."""


def _told(refused: Mapping[str, Sequence[str]], methods: Sequence[str]) -> Iterator[str]:
    """The reasons with the methods that have them, then those that have none; what no method can help is said alone."""
    for reason, named in refused.items():
        if len(named) == len(methods) > 1 and not reason.startswith(METHOD):
            yield reason
        else:
            who = f"method{'s' if len(named) > 1 else ''} {', '.join(named)}"
            yield f"{who}: {reason if len(named) > 1 else reason.removeprefix(METHOD)}"
    others = [name for name in methods if all(name not in named for named in refused.values())]
    if others:
        yield f"the other{'s' if len(others) > 1 else ''} can be trained: --methods {','.join(others)}"


def _counts(table: ImageTable, split: str) -> dict[str, int]:
    group = table.group[table.indices(split)] if split in table.splits else table.group[:0]
    counts = torch.bincount(group, minlength=len(table.group_names)).tolist()
    return dict(zip(table.group_names, counts, strict=True))


def _drawn(config: RunConfig, table: ImageTable, others: set[int]) -> bool:
    """Whether a run with one of the `others` seeds trains or is tested on other images than `table` has."""
    if not others:
        return False
    seed = min(others)
    if list_files(config.data, path=config.data_path, reading=Reading.of(config)) is not None:
        return False  # what their split is drawn by is no seed of a run
    other = load(config.data, path=config.data_path, size=config.size, seed=seed)
    return not all(torch.equal(getattr(table, name), getattr(other, name)) for name in ("images", "label", "split"))
