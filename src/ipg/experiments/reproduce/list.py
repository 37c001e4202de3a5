"""How the reproductions stand: what each needs, how long it takes and on what, what is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ipg.experiments.progress import duration
from ipg.experiments.reproduce.plan import Reproduction, load_reproduction, names, shared, title_of
from ipg.experiments.summary import Standing, packaged_standing, standings

__all__ = ["listing", "needs", "takes"]


def listing(results: Path) -> Iterator[str]:
    """Four lines on each reproduction; without rows at hand, what the project's own say of the time it takes."""
    known = standings(results)
    at_hand = any(found.done for found in known.values())
    for name in names():
        reproduction, here = load_reproduction(name), known[name]
        there = None if at_hand else packaged_standing(name)
        yield f"{name}: {reproduction.title}" + (f" ({reproduction.paper})" if reproduction.paper else "")
        yield f"  needs  {needs(reproduction)}"
        yield f"  takes  {takes(reproduction, there or here)}"
        yield f"  done   {_done(reproduction, here, there)}"
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


def takes(reproduction: Reproduction, standing: Standing) -> str:
    """Time of all trials of each data set, from the rows of those measured; `not measured` where there are none."""
    if not reproduction.trials:
        return "seconds to minutes on a CPU" if reproduction.kind in ("theory", "schematic") else "not measured"
    counts = Counter(trial.dataset for trial in reproduction.trials)
    parts = []
    for time in standing.times:
        count = counts[time.dataset]
        trials = f"{count} trials of {time.seconds:.0f} s, the mean of {time.measured} measured"
        parts.append(f"{title_of(time.dataset)} {duration(count * time.seconds)} on {time.hardware} ({trials})")
    known = {time.dataset for time in standing.times}
    parts += [f"{title_of(name)} not measured ({count} trials)" for name, count in counts.items() if name not in known]
    return "; ".join(parts)


def _done(reproduction: Reproduction, here: Standing, there: Standing | None) -> str:
    """What is done in the folder of results, and in the project's own where that is another."""
    if reproduction.kind == "search":
        count, what = len(reproduction.settings["studies"]), "searches"
    elif not reproduction.trials:
        return "made anew every time"
    else:
        count, what = len(reproduction.trials), "trials"
    done = f"{here.done} of {count} {what}"
    return done if there is None else f"{done} here, {there.done} in the project's own results"
