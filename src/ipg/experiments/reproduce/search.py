"""The paper's hyper-parameters beside those that a search of ours finds on validation images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipg.config import RunConfig, earlier, read_toml
from ipg.data.errors import DataError
from ipg.experiments.arms import Row
from ipg.experiments.reproduce.cells import Table
from ipg.experiments.reproduce.place import Place
from ipg.experiments.reproduce.plan import Reproduction, shared, title_of
from ipg.experiments.reproduce.rows import data_obstacle, obstacle
from ipg.experiments.reproduce.table import RULES
from ipg.experiments.search.plan import STARTUP
from ipg.experiments.search.result import origin_of
from ipg.experiments.search.trial import WORST
from ipg.experiments.store import read_rows
from ipg.experiments.tables.rows import check_provenance
from ipg.experiments.tables.text import NONE, commit_text, origin, share
from ipg.words import number_of

__all__ = [
    "VARIED", "Searched", "found_settings", "in_short", "papers_settings", "search_rows", "search_settings",
    "search_table", "whole_searches",
]  # fmt: skip

SETTINGS = ("alpha", "tau", "margin", "pairs", "learning_rate", "batch", "epochs")
VARIED = ("learning_rate", "epochs")
"""Beside the space of the method itself."""
SEED = 100
PAPER = "paper"
PAPERS_TRIALS = 100
"""Of the paper's own search, on each data set."""


@dataclass(frozen=True)
class Searched:
    """What a search has found so far."""

    settings: Mapping[str, Any]
    """The best."""
    trials: int | None
    """How many had ended; None where the file does not say."""
    score: float | None
    """What the best was worth, as a fraction."""

    def is_done(self, asked: int) -> bool:
        """Whether all trials that are `asked` for have ended, as far as is known."""
        return self.trials is None or self.trials >= asked


def found_settings(reproduction: Reproduction, folder: Path) -> dict[str, Searched | None]:
    """What a search in `folder` has found for each data set; None where there was none."""
    files = {dataset: folder / dataset / "best.toml" for dataset in reproduction.settings["studies"]}
    return {dataset: _read(file) if file.exists() else None for dataset, file in files.items()}


def _read(file: Path) -> Searched:
    return Searched(read_toml(file, "result of a search"), *origin_of(file.read_text(encoding="utf-8")))


def whole_searches(reproduction: Reproduction, folder: Path) -> tuple[int, int]:
    """How many searches in `folder` have come to their end, and of how many that are asked for."""
    found = found_settings(reproduction, folder).values()
    done = sum(best is not None and best.is_done(reproduction.settings["trials"]) for best in found)
    return done, len(found)


def search_rows(reproduction: Reproduction, folder: Path) -> dict[str, list[Row]]:
    """The trials of the searches in `folder`, by data set.

    Raises:
        ProvenanceError: a row does not say where it comes from.
    """
    found: dict[str, list[Row]] = {}
    for dataset in reproduction.settings["studies"]:
        file = folder / dataset / "trials.jsonl"
        found[dataset] = list(read_rows(file))
        check_provenance(found[dataset], file)
    return found


def papers_settings(dataset: str) -> dict[str, Any]:
    """What a search begins with: the paper's settings, of photographs with pairs from a file."""
    settings: dict[str, Any] = dict(shared()["protocols"]["paper"][dataset])
    if "weights" in settings and isinstance(settings["pairs"], int):
        settings["pairs"] = f"pairs-{settings['pairs']}"
    return settings


def search_settings(reproduction: Reproduction, dataset: str, home: Path, place: Place) -> bool:
    """Search for the settings of one data set; a search that was stopped goes on. Whether it came to its end.

    The engine of `place` is that of trials whose settings name none.

    Raises:
        DataError: a file is missing; the message says which.
    """
    from ipg.experiments.search.run import make_plan, search

    small = shared()["quick"]
    settings, data = papers_settings(dataset), dataset
    if reproduction.quick:
        data = small["data"][dataset]
        kept = {name: settings[name] for name in ("alpha", "tau", "margin", "every")}
        settings = {**small["config"], **kept, "pairs": 124}
    path = place.data_path(dataset)
    here = {"data": data, "data_path": path, "device": place.device, "seed": SEED}
    config = RunConfig.from_mapping({"engine": place.engine, "restarts": 0, **earlier(settings), **settings, **here})
    given = ["pairs", "every", "pair_batch"]
    vary = [] if reproduction.quick else list(VARIED)
    if (why := data_obstacle(data, path) or obstacle(config, path)) is not None:
        raise DataError(why)
    plan = make_plan(config, name=f"reproduce-{data}", vary=vary, given=given, trials=reproduction.settings["trials"])
    found = search(plan, home, workers=place.workers, console=place.console, limit=place.time_left)
    return bool(found.done >= reproduction.settings["trials"])


def search_table(reproduction: Reproduction, folder: Path) -> Table:
    """Two lines a data set: the paper's settings, and those found in `folder`, of how many trials, with what score.

    Of the small version, whose data are others, those found alone. The rows of the trials say where that was.

    Raises:
        ProvenanceError: a row does not say where it comes from.
    """
    found, rows = found_settings(reproduction, folder), search_rows(reproduction, folder)
    asked = reproduction.settings["trials"]
    lines: list[tuple[str, ...]] = []
    records: list[dict[str, Any]] = []

    def add(whose: str, dataset: str, known: Searched, note: str) -> None:
        """A line and its record; `rows` are told of ours alone."""
        ours = [] if whose == PAPER else rows.get(dataset, ())
        data = title_of(shared()["quick"]["data"][dataset] if reproduction.quick else dataset)
        values = {name: known.settings.get(name) for name in SETTINGS}
        lines.append((data, whose, *map(in_short, values.values()), in_short(known.trials), share(known.score), note))
        named = {name.replace("_", " "): value for name, value in values.items()}
        records.append(
            {
                "data": data,
                "settings": whose,
                **named,
                "trials": known.trials,
                "trials asked": None if whose == PAPER else asked,
                "score": None if known.score is None else 100 * known.score,
                "selection": None if whose == PAPER else known.settings.get("selection"),
                "hardware": " and ".join(dict.fromkeys(row["hardware"] for row in ours)),
                "commit": " and ".join(dict.fromkeys(commit_text(row["commit"]).strip("`") for row in ours)),
                "note": note,
            }
        )

    for dataset, best in found.items():
        if not reproduction.quick:
            own = reproduction.settings.get("paper", {}).get(dataset, {})
            add(PAPER, dataset, Searched(shared()["protocols"]["paper"][dataset] | own, PAPERS_TRIALS, None), "")
        whose, ended = "ours, quick version" if reproduction.quick else "ours", rows[dataset]
        if best is None:
            add(whose, dataset, Searched({}, len(ended) or None, None), _in_vain(ended, folder / dataset))
        else:
            add(whose, dataset, best, _lacks(best, len(ended), asked))
    head = ("data", "settings", *(name.replace("_", " ") for name in SETTINGS), "trials", "score", "")
    trials = [row for dataset in found for row in rows.get(dataset, ())]
    notes = [_note(reproduction), *_selection(reproduction, found), *([f"{origin(trials)}."] if trials else [])]
    return Table(head, tuple(lines), tuple(notes), records=tuple(records))


def _lacks(found: Searched, rows: int, asked: int) -> str:
    """What a search that has found settings lacks of the trials that are asked for, or of their rows, in words."""
    if (trials := found.trials) is None:
        return ""
    lacks = [f"not done: {trials} of {number_of(asked, 'trial')}"] if trials < asked else []
    lacks += ["all drawn at random"] if trials <= STARTUP else []
    if rows > trials:
        lacks.append(f"settings of the first {trials}, and {rows} have ended: run it again")
    elif rows < trials:
        lacks.append(f"rows of {rows} of {number_of(trials, 'trial')} are here")
    return "; ".join(lacks)


def _in_vain(rows: Sequence[Row], folder: Path) -> str:
    """What became of a search that has found no settings, from its trials that have ended."""
    if not rows:
        return "begun, but no trial has ended" if folder.is_dir() else "not run"
    if any((row.get("value") or WORST) > WORST for row in rows if row.get("state") == "complete"):
        return "no settings written yet; run it again"
    ends = Counter(row.get("state") for row in rows)
    told = [f"{ends['wrong']} went wrong"] if ends["wrong"] else []
    told += [f"{ends['pruned']} {'was' if ends['pruned'] == 1 else 'were'} given up"] if ends["pruned"] else []
    why = f" ({', '.join(told)})" if told else ""
    lacks = "was worth more than 0" if ends["complete"] else "came to its end"
    return f"in vain: of {number_of(len(rows), 'trial')} none {lacks}{why}"


def _selection(reproduction: Reproduction, found: Mapping[str, Searched | None]) -> list[str]:
    """A sentence on the epoch that trials are judged at, where it is known."""
    rules: dict[str, list[str]] = {}
    for dataset, best in found.items():
        if best is not None and (rule := best.settings.get("selection")):
            data = shared()["quick"]["data"][dataset] if reproduction.quick else dataset
            rules.setdefault(str(rule), []).append(title_of(data))
    told = "; ".join(
        f"`{rule}`, {RULES.get(rule, 'a rule of its own')} ({'; '.join(on)})" for rule, on in rules.items()
    )
    return [f"*Selection rule*, by which an epoch is kept and its trial judged: {told}."] if told else []


def _note(reproduction: Reproduction) -> str:
    """What stands in the lines of ours, and what their score is."""
    ours = (
        "Ours: the best of the trials of a tree-structured Parzen estimator (`ipg search`) that have ended, "
        f"{reproduction.settings['trials']} in all when the search is done; its score in percent is what it is judged "
        "by: accuracy "
    )
    if reproduction.quick:
        return f"{ours}in the worst group of the validation images."
    return (
        f"{ours}on the hold-out of the environment with e = 0.9 on ColoredMNIST and in the worst group of the "
        "validation images elsewhere, on as many pairs as there are (122 of the reverse task). The paper does not give "
        "its ranges."
    )


def in_short(value: Any) -> str:
    """A number with three digits; of a margin its text may tell the unit, as `0.5x`."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    return NONE if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
