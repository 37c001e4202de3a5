"""`ipg train`: one run of one method, kept in a folder and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ipg.cli.options import data_name, with_settings

__all__ = ["EXAMPLES", "train"]

EXAMPLES = """
**Examples**

`ipg train --pairs 40 --output runs/guided`: guided training on the embedded images

`ipg train --method erm --output runs/plain`: plain training, to compare with

`ipg train --data colored_mnist --data-path mnist.npz --pairs 1208 --alpha 0.5 --margin 0.08 --every 1 --pair-batch 128
--epochs 18 --learning-rate 1e-3 --schedule constant --selection training_environments`: the paper's settings

`ipg train --from runs/plain --data photos.csv --pairs pairs.csv --output runs/repaired`: repair a trained network

`ipg train --config run.toml --seed 3`: settings from a file, one of them changed

`torchrun --nproc-per-node 4 -m ipg train --pairs 40 --output runs/guided`: the same run by four processes

`torchrun --nproc-per-node 8 -m ipg train --model vit_large_patch14_clip_224 --weights pretrained --shard …`: by eight
that share a network too large for each

**Which settings?** alpha 0.1 and tau 0 suit new data. Raise alpha only when the task signal is weak. The paper raises
tau when pairs may mislead; in our runs that did not help.
"""


@with_settings
def train(
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; options on the command line override it.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/DATA-METHOD-SEED.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")] = False,
    settings: dict[str, Any],
) -> None:
    """Train a classifier. Give the same command again to continue a run that was stopped."""
    import shlex

    from ipg.config import RunConfig, load_config

    chosen = load_config(config, overrides=settings) if config is not None else RunConfig.from_mapping(settings)

    from rich.console import Console  # torch takes seconds to load: mistakes in the settings do not wait for it

    from ipg.cli.console import (
        in_a_line,
        outputs_taken,
        print_metrics,
        same_class,
        starts_anew,
        unseen_groups,
        watching,
    )
    from ipg.evaluation.doctor.log import RunLog
    from ipg.evaluation.doctor.training import learnt_and_lost, one_class_remedy, run_begun_again
    from ipg.evaluation.groups import is_constant
    from ipg.evaluation.selection import kept_epoch
    from ipg.methods import method_class
    from ipg.training.distributed import processes
    from ipg.training.listeners import Listener, TensorBoard
    from ipg.training.loop import train as run
    from ipg.training.materials import gather
    from ipg.training.start import as_started, require_data

    if config is None and "data" not in settings:
        require_data(chosen)
    chosen = as_started(chosen)
    folder = output or Path("runs") / f"{data_name(chosen.data)}-{chosen.method}-{chosen.seed}"
    with processes(chosen.device) as first:
        console = Console(quiet=not first)
        with watching(console, label=f"{chosen.method} on {chosen.data}") as listener:
            listeners: list[Listener] = [listener]
            if tensorboard and first:
                listeners.append(TensorBoard(folder / "tensorboard"))
            materials = gather(chosen)
            told = (
                in_a_line(chosen, materials, folder),
                starts_anew(chosen, materials.model),
                outputs_taken(chosen, materials),
                unseen_groups(chosen, materials.table),
                method_class(chosen.method).remark(chosen, materials.table),
            )
            listener.about = [note for note in told if note is not None]
            outcome = run(chosen, materials, folder=folder, listeners=listeners)
    if not first:
        return
    result = outcome.result
    if not listener.trained:
        typer.echo(f"{folder} holds this run, finished on {result['date']}: nothing to do.")
    epoch, refitted = kept_epoch(result)
    kept = f"epoch {epoch}" if epoch is not None else "training"
    after = f"{kept} and a refit" if refitted else kept
    title = f"Test images, % right, after {after} (kept by rule: {result['selection']})"
    print_metrics(console, [(chosen.method, result["metrics"], result["seconds"])], title=title)
    row = next((row for row in outcome.rows if row["epoch"] == result["selected_epoch"]), {})
    log = RunLog(result["config"], outcome.rows)
    if (begun := run_begun_again(log)) is not None:
        typer.echo(begun.meaning)
    if (lost := learnt_and_lost(log)) is not None:
        typer.echo(f"{lost.meaning} {lost.remedy}")
    elif is_constant(result["metrics"]) or is_constant(row.get("validation") or {}):
        paired = row.get("pair_disagreement") is not None
        typer.echo(same_class(str(folder), pairs=paired) + " " + one_class_remedy(log))
    see = f"ipg report {shlex.quote(str(folder))}"
    if chosen.start is not None and chosen.start.startswith("python:"):  # which is run where the user says so
        see = f"ipg report {shlex.quote(str(folder))} --network {shlex.quote(chosen.start)}"
    typer.echo(f"The run is in {folder}. See it with: {see}")
