"""`ipg evaluate`: the metrics of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLES", "evaluate"]

EXAMPLES = """
**Examples**

`ipg evaluate runs/guided runs/plain`: both side by side, on the test images

`ipg evaluate runs/guided --split validation --json`: as JSON, for scripts
"""


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    split: Annotated[str, typer.Option(help="Which images: test, validation, …")] = "test",
    data_path: Annotated[str | None, typer.Option(help="Where the data set's files are, if they have moved.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
) -> None:
    """Measure finished runs: accuracy on average, by group and in the worst group, and pair disagreement."""
    import json

    from rich.console import Console

    from ipg.cli.console import print_metrics
    from ipg.notebook import Run

    measured = [
        (str(folder), Run.load(folder, device=device, data_path=data_path).evaluate(split), None) for folder in runs
    ]
    if as_json:
        typer.echo(json.dumps({name: metrics for name, metrics, _ in measured}, indent=2))
    else:
        print_metrics(Console(), measured, title=f"{split.capitalize()} images, % right")
