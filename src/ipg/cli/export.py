"""`ipg export`: a trained run for other programs, checked, with a card that says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipg.cli.options import MOVED, Network

__all__ = ["EXAMPLES", "export"]

EXAMPLES = """
**Examples**

`ipg export runs/guided --output birds`: torch.export and ONNX, weights, and a model card

`ipg export runs/guided --output birds --format torch`: without ONNX, which needs the extra `export`

`ipg export runs/guided --images photos`: checked on these images, if you do not have the run's data
"""


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    output: Annotated[Path, typer.Option(help="The folder to make.", metavar="DIR")] = Path("exported"),
    format: Annotated[str, typer.Option(help="torch (torch.export), onnx or both.")] = "both",
    data_path: Annotated[str | None, typer.Option(help=MOVED)] = None,
    images: Annotated[
        Path | None, typer.Option(help="Images to check on; by default test images of the run's data.")
    ] = None,
    path_column: Annotated[
        str | None,
        typer.Option(help="Where --images is a table: the column that names them; as in the run's own, or path."),
    ] = None,
    network: Network = None,
) -> None:
    """Write a run as programs that need no ipg, each checked against the network on real images.

    model.pt2 (torch.export) and model.onnx take float images in [0, 1], any number at a time, and normalise them
    themselves. Beside them: weights.safetensors, model.json, and README.md, the model card.
    """
    from dataclasses import replace

    from rich.console import Console

    from ipg.cli.own_network import open_with
    from ipg.export.build import build, check_place, real_images
    from ipg.whereabouts import find_data

    if path_column is not None and images is None:
        raise ValueError("--path-column is for a table of --images, which is missing")
    check_place(output, format)
    classifier = open_with(run, network, device="cpu")
    origin = classifier.origin
    data, path = find_data(
        str(classifier.config.get("data")),
        origin.get("data_path"),
        run=run,
        given=data_path,
        started_in=origin.get("started_in"),
    )
    at_hand = replace(classifier, config={**classifier.config, "data": data})
    checked = real_images(at_hand, data_path=path, images=images, path_column=path_column)
    console = Console(highlight=False)
    with console.status("exporting"):
        differences = build(output, classifier, checked, name=run.resolve().name, format=format)
    for file, difference in differences.items():
        console.print(
            f"{output / file}: logits of {len(checked)} images differ by {difference:.1e} at most",
            markup=False,
            soft_wrap=True,
        )
    console.print(f"{output / 'README.md'} is the model card", markup=False, soft_wrap=True)
