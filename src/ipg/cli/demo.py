"""`ipg demo`: plain training, the oracle and guided training side by side, and a page to look at."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["EXAMPLES", "demo"]

EXAMPLES = """
**Examples**

`ipg demo`: clothes whose colour gives the class away; embedded, half a minute on two cores

`ipg demo --data colored-mnist --mnist mnist.npz`: the paper's ColoredMNIST; minutes on a GPU, hours on a CPU
"""

FASHION: dict[str, Any] = {
    "data": "colored_fashion", "model": "small_cnn", "epochs": 6, "batch": 128, "learning_rate": 3e-3,
    "schedule": "cosine", "pairs": 40, "pair_batch": 32, "alpha": 0.1, "margin": 0.1, "every": 4,
}  # fmt: skip
MNIST: dict[str, Any] = {
    "data": "colored_mnist", "model": "mnist_cnn", "epochs": 18, "batch": 128, "learning_rate": 1e-3,
    "schedule": "constant", "pairs": 1208, "pair_batch": 128, "alpha": 0.5, "margin": 0.08, "every": 1,
    "selection": "training_environments",
}  # fmt: skip
WORDS = {
    "colored_fashion": (
        "On clothes whose colour changed",
        "In the training images every garment is red and every shoe or bag is green, so the colour alone gives the "
        "class away. In the test images nine in ten wear the other colour.",
    ),
    "colored_mnist": (
        "On digits whose colour changed",
        "In training, digits below five are mostly green and the others mostly red. In the test images it is the "
        "other way round, and a quarter of all labels are wrong, so 75 % is the best possible.",
    ),
}


def demo(
    data: Annotated[str, typer.Option(help="colored-fashion (embedded) or colored-mnist.")] = "colored-fashion",
    mnist: Annotated[str | None, typer.Option(help="For colored-mnist: an npz or a folder of idx files.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("ipg-demo"),
    pairs: Annotated[int | None, typer.Option(help="Number of pairs; 40, or the paper's 1208.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Show what a shortcut does and how a few pairs undo it: trains three models and writes a report."""
    from rich.console import Console

    from ipg.cli.console import command_line, print_metrics, watching
    from ipg.config import RunConfig
    from ipg.notebook import Run
    from ipg.report.build import NAMES, page_data
    from ipg.report.page import write
    from ipg.training.interrupt import Interrupted, late_request
    from ipg.training.loop import train
    from ipg.training.materials import gather

    start = time.perf_counter()
    sets = {"colored_fashion": FASHION, "colored_mnist": MNIST}
    name = data.replace("-", "_")
    if name not in sets:
        raise ValueError(f"there is no demo on {data!r}; there are {', '.join(key.replace('_', '-') for key in sets)}")
    given = {"pairs": pairs, "epochs": epochs, "seed": seed, "device": device, "data_path": mnist}
    base = RunConfig.from_mapping({**sets[name], **{key: value for key, value in given.items() if value is not None}})
    console = Console()
    title, shortcut = WORDS[name]
    console.print(f"{shortcut}\n", highlight=False)
    runs: list[Run] = []
    for method in ("erm", "oracle", "ipg"):
        config = base.with_changes(method=method)
        with watching(console, label=NAMES[method]) as listener:
            materials = gather(config)
            with late_request() as late:
                outcome = train(config, materials, folder=output / method, listeners=[listener])
            if late.made:
                raise Interrupted(f"stopped after {NAMES[method]}")
        if not listener.trained:
            typer.echo(f"{NAMES[method]}: finished before, read from {output / method}")
        runs.append(Run(config, materials, outcome))
    typer.echo()
    rows = [(NAMES[run.config.method], run.result["metrics"], run.result["seconds"]) for run in runs]
    print_metrics(console, rows, title=f"{title} (test images, % right)")
    page = write(output / "report.html", page_data(runs, title=title, shortcut=shortcut, command=command_line()))
    used = len(runs[-1].materials.pairs or ())
    typer.echo(f"Guided by {used} pairs. {time.perf_counter() - start:.0f} s in all.")
    typer.echo(f"Report: {page}")
