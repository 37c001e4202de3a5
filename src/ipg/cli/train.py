"""`ipg train`: one run of one method, kept in a folder and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ipg.cli.options import with_settings

__all__ = ["EXAMPLES", "train"]

EXAMPLES = """
**Examples**

`ipg train --pairs 40 --output runs/guided`: guided training on the embedded images

`ipg train --method erm --output runs/plain`: plain training, to compare with

`ipg train --data colored_mnist --data-path mnist.npz --pairs 1208 --alpha 0.5 --margin 0.08 --every 1 --pair-batch 128
--epochs 18 --learning-rate 1e-3 --schedule constant`: the paper's settings

`ipg train --config run.toml --seed 3`: settings from a file, one of them changed

**Which settings?** alpha 0.1 and tau 0 suit new data. Raise alpha only when the task signal is weak, tau only when
pairs may mislead.
"""


@with_settings
def train(
    *,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; options given here win over it.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/DATA-METHOD-SEED where not given.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")] = False,
    settings: dict[str, Any],
) -> None:
    """Train a classifier. Run the same command again to go on with a run that was stopped."""
    from rich.console import Console

    from ipg.cli.console import ConsoleListener, metrics_table
    from ipg.config import RunConfig, load_config
    from ipg.training.listeners import Listener, TensorBoard
    from ipg.training.loop import train as run
    from ipg.training.materials import gather

    chosen = load_config(config, overrides=settings) if config is not None else RunConfig.from_mapping(settings)
    folder = output or Path("runs") / f"{chosen.data}-{chosen.method}-{chosen.seed}"
    console = Console()
    listener = ConsoleListener(console, label=chosen.method)
    listeners: list[Listener] = [listener]
    if tensorboard:
        listeners.append(TensorBoard(folder / "tensorboard"))
    try:
        outcome = run(chosen, gather(chosen), folder=folder, listeners=listeners)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"{error}; run the same command again to go on from {folder}") from None
    finally:
        listener.close()
    result = outcome.result
    title = f"Test images, epoch {result['selected_epoch']} (kept by rule: {result['selection']})"
    console.print(metrics_table([(chosen.method, result["metrics"], result["seconds"])], title=title))
    console.print(f"The run is in {folder}. See it with: ipg report {folder}", highlight=False)
