"""The paper's hyper-parameters beside those that a search of ours finds on validation images."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ipg.config import RunConfig, read_toml
from ipg.data.errors import DataError
from ipg.experiments.reproduce.plan import Reproduction, shared, title_of
from ipg.experiments.reproduce.rows import data_obstacle, obstacle
from ipg.experiments.reproduce.table import Table
from ipg.experiments.search.result import origin_of

__all__ = ["VARIED", "Searched", "found_settings", "in_short", "search_settings", "search_table"]

SETTINGS = ("alpha", "tau", "margin", "pairs", "learning_rate", "batch", "epochs")
VARIED = ("learning_rate", "epochs")
"""Beside the space of the method itself."""
SEED = 100
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


def found_settings(reproduction: Reproduction, folder: Path) -> dict[str, Searched | None]:
    """What a search in `folder` has found for each data set; None where there was none."""
    files = {dataset: folder / dataset / "best.toml" for dataset in reproduction.settings["studies"]}
    return {dataset: _read(file) if file.exists() else None for dataset, file in files.items()}


def _read(file: Path) -> Searched:
    return Searched(read_toml(file, "result of a search"), *origin_of(file.read_text(encoding="utf-8")))


def search_settings(
    reproduction: Reproduction,
    dataset: str,
    home: Path,
    path: str | None,
    *,
    workers: int | None,
    device: str,
    engine: str,
    console: Console,
    limit: float | None = None,
) -> bool:
    """Search for the settings of one data set; a search that was stopped goes on. Whether it came to its end.

    `engine` is that of trials whose settings name none; after `limit` seconds trials under way are saved.

    Raises:
        DataError: a file is missing; the message says which.
    """
    from ipg.experiments.search.run import make_plan, search

    small = shared()["quick"]
    settings: dict[str, Any] = dict(shared()["protocols"]["paper"][dataset])
    data = dataset
    if "weights" in settings and isinstance(settings["pairs"], int):
        settings["pairs"] = f"pairs-{settings['pairs']}"
    if reproduction.quick:
        data = small["data"][dataset]
        kept = {name: settings[name] for name in ("alpha", "tau", "margin", "every")}
        settings = {**small["config"], **kept, "pairs": 124}
    config = RunConfig.from_mapping(
        {"engine": engine, "restarts": 0, **settings, "data": data, "data_path": path, "device": device, "seed": SEED}
    )
    given = ["pairs", "every", "pair_batch"]
    vary = [] if reproduction.quick else list(VARIED)
    if (why := data_obstacle(data, path) or obstacle(config, path)) is not None:
        raise DataError(why)
    plan = make_plan(config, name=f"reproduce-{data}", vary=vary, given=given, trials=reproduction.settings["trials"])
    found = search(plan, home, workers=workers, console=console, limit=limit)
    return bool(found.count("complete", "wrong", "pruned") >= reproduction.settings["trials"])


def search_table(reproduction: Reproduction, found: Mapping[str, Searched | None]) -> Table:
    """Two lines a data set: the paper's settings, and those found, of how many trials and with what score.

    Of the small version, whose data are others, those found alone.
    """
    lines = []
    for dataset, best in found.items():
        paper = shared()["protocols"]["paper"][dataset] | reproduction.settings.get("paper", {}).get(dataset, {})
        data, settings = title_of(dataset), "ours"
        if reproduction.quick:
            data, settings = title_of(shared()["quick"]["data"][dataset]), "ours, quick version"
        else:
            values = (in_short(paper.get(name)) for name in SETTINGS)
            lines.append((data, "paper", *values, str(PAPERS_TRIALS), "–", ""))
        known = Searched({}, None, None) if best is None else best
        score = "–" if known.score is None else f"{100 * known.score:.1f}"
        ours = [*(in_short(known.settings.get(name)) for name in SETTINGS), in_short(known.trials), score]
        lines.append((data, settings, *ours, "" if best else "not run"))
    head = ("data", "settings", *(name.replace("_", " ") for name in SETTINGS), "trials", "score", "")
    return Table(head, tuple(lines), (_note(reproduction),))


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
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
