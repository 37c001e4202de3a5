"""How the reproductions stand: what each needs, how long it takes and on what, what is done."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ipg.experiments.arms import Row, is_timed
from ipg.experiments.progress import duration
from ipg.experiments.reproduce.plan import Reproduction, load_reproduction, names, shared, title_of
from ipg.experiments.reproduce.rows import all_rows, measure
from ipg.experiments.reproduce.search import found_settings

__all__ = ["listing", "needs", "takes"]


def listing(results: Path) -> Iterator[str]:
    """Four lines on each reproduction."""
    rows = {kind: all_rows(results, kind) for kind in (None, "dynamics")}
    for name in names():
        reproduction = load_reproduction(name)
        known = rows["dynamics" if reproduction.kind == "dynamics" else None]
        own = [row for found in measure(reproduction, known) for row in found.rows]
        yield f"{name}: {reproduction.title}" + (f" ({reproduction.paper})" if reproduction.paper else "")
        yield f"  needs  {needs(reproduction)}"
        yield f"  takes  {takes(reproduction, own)}"
        yield f"  done   {_done(reproduction, own, results)}"
    yield "ipg reproduce NAME --quick runs a small version of any of them on embedded images."


def needs(reproduction: Reproduction) -> str:
    """The data sets, and the files beside them."""
    sources = shared()["sources"]
    data = dict.fromkeys(sources[name] for name in _datasets(reproduction) if name in sources)
    files = dict.fromkeys(
        file
        for trial in reproduction.trials
        for file in (trial.config.weights, trial.config.pairs, trial.config.masks)
        if isinstance(file, str)
    )
    return "; ".join([*data, *files]) or "nothing that is not here"


def _datasets(reproduction: Reproduction) -> list[str]:
    galleries = [entry["dataset"] for entry in reproduction.settings.get("gallery", ())]
    searched = list(reproduction.settings.get("studies", ()))
    return list(dict.fromkeys([*(trial.dataset for trial in reproduction.trials), *galleries, *searched]))


def takes(reproduction: Reproduction, rows: Sequence[Row]) -> str:
    """Time of all trials of each data set, from the rows of those measured; `not measured` where there are none."""
    if not reproduction.trials:
        return "seconds to minutes on a CPU" if reproduction.kind in ("theory", "schematic") else "not measured"
    counts = Counter(trial.dataset for trial in reproduction.trials)
    seconds: dict[tuple[str, str], list[float]] = {}
    for row in {id(row): row for row in rows}.values():
        if is_timed(row):
            seconds.setdefault((row["dataset"], row["hardware"]), []).append(row["seconds"])
    parts = []
    for (dataset, hardware), values in seconds.items():
        mean = statistics.fmean(values)
        time = f"{duration(counts[dataset] * mean)} on {hardware}"
        trials = f"{counts[dataset]} trials of {mean:.0f} s, the mean of {len(values)} measured"
        parts.append(f"{title_of(dataset)} {time} ({trials})")
    known = {dataset for dataset, _ in seconds}
    parts += [f"{title_of(name)} not measured ({count} trials)" for name, count in counts.items() if name not in known]
    return "; ".join(parts)


def _done(reproduction: Reproduction, rows: Sequence[Row], results: Path) -> str:
    if reproduction.kind == "search":
        found = found_settings(reproduction, results / reproduction.name)
        return f"{sum(best is not None for best in found.values())} of {len(found)} searches"
    if not reproduction.trials:
        return "made anew every time"
    return f"{len({id(row) for row in rows})} of {len(reproduction.trials)} trials"
