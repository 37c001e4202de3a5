"""`ipg study`: what is missing of a study, on one machine or on a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipg.cli.options import (
    TIME_IS_OVER,
    ClusterAddress,
    Cpus,
    Engine,
    Gpus,
    Limit,
    Only,
    OtherModel,
    OtherNormalization,
    OtherWeights,
    Workers,
    check_cluster,
    cluster_of,
    network_of,
    seconds_of,
)

if TYPE_CHECKING:
    from ipg.experiments.store import Store
    from ipg.experiments.study import Study

__all__ = ["EXAMPLES", "study"]

STATES = ("done", "running", "begun", "failed", "missing")
"""Of a trial that has begun, nobody is at work on it now, and the next runner goes on with it."""

EXAMPLES = """
**Examples**

`ipg study margin --results runs/margin`: one of the project's own studies, into a folder of your own

`ipg study --list`: the project's own studies

`ipg study colored_mnist --data-path mnist.npz --list`: which trials are done, under way, failed or missing

`ipg study mine.toml --workers 4`: a study file, by four processes

`ipg study mine.toml --cluster auto --cpus 4 --gpus 1`: on a Ray cluster, four cores and a GPU per trial

`ipg study mine.toml --only method=ipg --only seed=0,1 --limit 55m`: a part of it, for at most 55 minutes

`ipg study waterbirds100_tuned --data-path waterbirds --model resnet50 --weights resnet50.safetensors`: with the paper's
network, whose weights you have; its rows stand beside the others; the command table shows them with the same options

`ipg study colored_mnist_unified --data-path mnist.npz --timed --only seed=0`: how long each method takes; the tables
show it beside the accuracies

**A study file.** Every arm is run once per seed, with the settings of `[base]` and its own:

```
dataset = "photos.csv"
seeds = 3
[base]
epochs = 5
pairs = "pairs"
[[arm]]
method = "erm"
protocol = "mine"
[[arm]]
method = "ipg"
protocol = "mine"
config = { alpha = 0.2 }
```

docs/scale.md says what else it may hold.

**Continuing.** The same command again runs what is still missing: unfinished trials continue where they were, failed
ones are tried again. Several runners may work on one study at once, also on several machines that share the folder of
results.
"""


def study(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Study file (TOML), or the name of one of the project's own; --list alone shows these.",
            metavar="STUDY",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder of the rows, or one with a folder named after the study; by default results/STUDY."),
    ] = None,
    data_path: Annotated[str | None, typer.Option(help="Where the data set's files are.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    engine: Engine = "auto",
    workers: Workers = None,
    cluster: ClusterAddress = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    model: OtherModel = None,
    weights: OtherWeights = None,
    normalization: OtherNormalization = None,
    chosen: Only = None,
    limit: Limit = None,
    timed: Annotated[
        bool,
        typer.Option(
            "--timed",
            help="Run all trials again for their seconds: one at a time per GPU, each after a short one of its kind, "
            "with rows of their own in results/times/STUDY.",
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Show which trials are done, running, begun, failed or missing; run none.")
    ] = False,
) -> None:
    """Run the trials of a study that are not done yet, and write one row for each.

    A trial that fails leaves a traceback and does not stop the others. Exits with 1 if trials have failed, and with 75
    if --limit has left some.
    """
    check_cluster(cluster, cpus, gpus, workers)
    if name is None:
        if not show:
            raise ValueError("say which study to run, e.g. ipg study margin; ipg study --list shows all")
        if chosen or model or weights or normalization:
            raise ValueError(
                "--only, --model, --weights and --normalization are for the trials of one study; name it, e.g. "
                "ipg study margin --list"
            )
        _list_all(results)
        return

    from ipg.experiments.store import TIMES
    from ipg.experiments.study import find_study, only

    whole = find_study(name, check_options=not show)  # a list is there at once, without torch
    if (network := network_of(model, weights, normalization)) is not None:
        whole = replace(whole, trials=network.over(whole.trials, whole.name))
    found = only(whole, chosen or ())
    seconds = seconds_of(limit)
    folder = rows_folder(results, f"{TIMES}/{found.name}" if timed else found.name)
    if show:
        _list(found, folder)
        return

    from ipg.experiments.runner import run_study
    from ipg.experiments.timed import run_timed
    from ipg.experiments.trial import run_trial
    from ipg.experiments.workers import suitable_workers

    if timed and workers is not None:
        workers = min(workers, suitable_workers(device))
    tally = run_study(
        found,
        folder,
        data_path=data_path,
        device=device,
        engine=engine,
        workers=workers,
        cluster=cluster_of(cluster, cpus, gpus),
        limit=seconds,
        run=run_timed if timed else run_trial,
    )
    if tally.failed:
        raise typer.Exit(1)
    if seconds is not None and tally.done + tally.elsewhere < len(found.trials):
        raise typer.Exit(TIME_IS_OVER)


def rows_folder(given: Path | None, study: str) -> Path:
    """The folder of a study's rows: the one given, or that of the study in it where it is one of several studies."""
    if given is None:
        return Path("results") / study
    of_several = not _has_rows(given) and given.is_dir() and any(map(_has_rows, given.iterdir()))
    return given / study if of_several else given


def _has_rows(folder: Path) -> bool:
    """Whether a study has rows, or trials under way, in `folder`."""
    try:
        return any((folder / name).exists() for name in ("trials.jsonl", "trials"))
    except PermissionError:  # somebody else's
        return False


def _list_all(results: Path | None) -> None:
    """A line on each of the project's own studies."""
    from ipg.experiments.store import Store
    from ipg.experiments.study import STUDIES, load_study
    from ipg.words import number_of

    for path in sorted(STUDIES.glob("*.toml")):
        study = load_study(path, check_options=False)
        done = Store(rows_folder(results, study.name), study.metrics_split).done()
        count = sum(trial.key in done for trial in study.trials)
        data = ", ".join(dict.fromkeys(trial.dataset for trial in study.trials))
        typer.echo(f"{study.name}: {number_of(len(study.trials), 'trial')} on {data}, {count} done")
    typer.echo("ipg study NAME --list shows the trials of one, ipg study NAME runs what is missing of it.")


def _list(study: Study, results: Path) -> None:
    """A line a trial, and how many there are of each kind."""
    from collections import Counter

    from ipg.experiments.store import Store
    from ipg.words import number_of

    store = Store(results, study.metrics_split)
    done = store.done()
    counts: Counter[str] = Counter()
    for trial in study.trials:
        state, epochs = _state(store, trial.key, done), trial.config.epochs
        far = ""
        if state in ("running", "begun"):  # a network that is fitted once more after its last epoch has a line more
            far = f", {min(store.epochs(trial.key), epochs)} of {number_of(epochs, 'epoch')}"
        counts[state] += 1
        typer.echo(f"{state:8} {trial.key}  {trial.dataset}: {trial.title}{far}")
    shares = ", ".join(f"{counts[state]} {state}" for state in STATES)
    typer.echo(f"{study.name}: {number_of(len(study.trials), 'trial')}, {shares}")


def _state(store: Store, key: str, done: set[str]) -> str:
    """Which of `STATES` a trial is in."""
    if key in done:
        return "done"
    if store.is_held(key):
        return "running"
    if store.error_file(key).exists():
        return "failed"
    return "begun" if store.has_begun(key) else "missing"
