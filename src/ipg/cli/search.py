"""`ipg search`: which settings of a method suit the data, looked for without the test images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ipg.cli.options import TIME_IS_OVER, Limit, Workers, data_name, seconds_of, with_settings_but

__all__ = ["EXAMPLES", "search"]

EXAMPLES = """
**Examples**

`ipg search --pairs 40 --trials 20`: alpha, tau and margin of IPG on the embedded images

`ipg search --data colored_mnist --data-path mnist.npz --pairs 1208 --pair-batch 128 --every 1 --schedule constant
--selection training_environments --vary learning_rate --vary epochs`: as in the paper, 100 trials of TPE

`ipg search --method groupdro --data photos.csv --trials 6 --sampler random --seed 100`: six settings of a method's own
space, the same on every machine

`ipg search --vary learning_rate=1e-4:1e-2:log --vary batch=64,128 --alpha 0.1`: ranges of your own; what you fix is
not searched for

`ipg search --config run.toml --workers 4 --prune`: four processes; trials behind the median are stopped

`ipg search --pairs 40 --trials 100 --limit 55m`: for at most 55 minutes, with the best so far; the same command again
goes on

`ipg search --data waterbirds100 --data-path data --pairs pairs --storage postgresql://ipg@db.example/searches`: many
machines, the same command on each

**Afterwards** `ipg train --config searches/NAME/best.toml` trains with what was found. The same command again
continues a search that was stopped (with `--resume` it never starts a new one by mistake); a larger `--trials` adds to
one that is done.
"""


@with_settings_but("seed")
def search(
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; options on the command line override it.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the search; by default searches/NAME.")] = None,
    trials: Annotated[int, typer.Option(help="How many settings to try.")] = 100,
    sampler: Annotated[str, typer.Option(help="tpe, or random.")] = "tpe",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting to vary besides the method's own: NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C; "
            "may be repeated.",
            metavar="RANGE",
        ),
    ] = None,
    first_seed: Annotated[
        int,
        typer.Option("--seed", help="Seed of the sampler and of every trial; below 100 are those of results."),
    ] = 100,
    objective: Annotated[
        str,
        typer.Option(
            help="What to maximise: search (accuracy on a split of that name), worst_group or pairs (no group labels "
            "needed); auto is the first that the data have."
        ),
    ] = "auto",
    prune: Annotated[
        bool, typer.Option("--prune", help="Stop trials that are behind the median of the others.")
    ] = False,
    workers: Workers = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="PostgreSQL database for many machines, postgresql://USER@HOST/DATABASE; by default a file in the "
            "folder.",
            envvar="IPG_STORAGE",
            show_envvar=True,
            metavar="ADDRESS",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the search in a database; by default DATA-METHOD.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a search; refuse to start a new one.")] = False,
    limit: Limit = None,
    settings: dict[str, Any],
) -> None:
    """Search for settings: train on the training images, judge on validation images, write the best to a file.

    The test images are removed from the data first, so that nothing can look at them. Exits with 75 if --limit has
    left trials.
    """
    import shlex

    from ipg.config import RunConfig, load_config

    seconds = seconds_of(limit)
    usual = RunConfig(restarts=0)  # or settings would be worth what half their learning rate is
    if config is None:
        base = RunConfig.from_mapping(settings, base=usual)
    else:
        base = load_config(config, overrides=settings, base=usual)

    from ipg.experiments.search.storage import require_optuna

    require_optuna()  # torch takes seconds to load: what is missing does not wait for it

    from ipg.experiments.search.result import OBJECTIVES
    from ipg.experiments.search.run import BEST, make_plan
    from ipg.experiments.search.run import search as run
    from ipg.experiments.search.trial import in_percent
    from ipg.report.html import check_page
    from ipg.report.search_page import write_search
    from ipg.words import are, number_of

    plan = make_plan(
        base.with_changes(seed=first_seed),
        name=name or f"{data_name(base.data)}-{base.method}",
        vary=vary or (),
        given=[*settings, *settings.get("options", ())],
        objective=objective,
        trials=trials,
        sampler=sampler,  # type: ignore[arg-type]
        prune=prune,
    )
    folder = output or Path("searches") / plan.name.replace("/", "-")
    check_page(folder / "report.html", remedy="name another folder with --output")
    found = run(plan, folder, storage=storage, workers=workers, resume=resume, limit=seconds)
    page = write_search(folder, found)
    running = found.count("running")
    left = seconds is not None and found.done + running < plan.trials
    if left and (found.best is None or found.in_vain):
        typer.echo(f"Report: {page}")
        raise typer.Exit(TIME_IS_OVER)
    if running:
        typer.echo(f"{number_of(running, 'trial')} {are(running)} being run by other processes.")
        if found.best is None or found.in_vain:
            raise ValueError("no trial is worth anything yet; give the same command again when the others are done")
    if found.in_vain:
        raise ValueError(
            f"no trial got above 0 ({OBJECTIVES[plan.objective]}), so there is nothing to train with: give trials more "
            f"--epochs, try --vary learning_rate, or judge them by another --objective; all are in {page}"
        )
    if found.best is None:
        raise ValueError(f"no trial has a value; why not stands in {page}")
    typer.echo(f"Best: trial {found.best.number}, {in_percent(found.best.value)} ({plan.objective})")
    typer.echo(f"Report: {page}")
    where = ["--data-path", base.data_path] if base.data_path else []  # of this machine, and not in the file
    typer.echo(f"Train with it: {shlex.join(['ipg', 'train', '--config', str(folder / BEST), *where])}")
    if left:
        raise typer.Exit(TIME_IS_OVER)
