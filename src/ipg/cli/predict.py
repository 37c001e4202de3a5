"""`ipg predict`: what a trained run says of images, as a CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipg.cli.errors import printable
from ipg.cli.options import Network

__all__ = ["EXAMPLES", "predict"]

EXAMPLES = """
**Examples**

`ipg predict runs/guided holiday-photos`: every image in the folder, to predictions.csv

`ipg predict runs/guided photos.csv --output labels.csv`: the images that the column path names

`ipg predict runs/guided photos.csv --path-column file`: those that the column file names

`ipg predict runs/guided photos.zip --batch 16`

`ipg predict runs/guided photo.jpg --output -`: to standard output

`ipg predict runs/mine photos --network python:mine.py:make`: a run that started from your own code
"""
SHOWN = 5
"""How many unreadable images are named at the end; the CSV names all."""
STANDARD_OUTPUT = (Path("-"), Path("/dev/stdout"))


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    images: Annotated[
        Path,
        typer.Argument(
            help="A folder or zip of images, one image, or a table (CSV, TSV, Parquet) that names them.",
            metavar="IMAGES",
        ),
    ],
    output: Annotated[Path, typer.Option(help="The CSV to write; - is standard output.")] = Path("predictions.csv"),
    data_path: Annotated[
        Path | None, typer.Option(help="For a table: the folder or zip that its paths are relative to; else its own.")
    ] = None,
    path_column: Annotated[
        str | None,
        typer.Option(help="For a table: the column that names the images; as in the run's own table, or path."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images that are looked at together.")] = 64,
    network: Network = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write the predicted class of every image and how likely each class is.

    One line per image: path, predicted, probability, p_CLASS for every class, and error. If an image cannot be read,
    error says why, and the command exits with 1. The data that the run was trained on are not needed.
    """
    from contextlib import nullcontext

    from rich.console import Console

    from ipg.cli.own_network import open_with
    from ipg.cli.progress import bar
    from ipg.prediction import find_images, predictions, write_predictions
    from ipg.words import number_of

    classifier = open_with(run, network, device=device)
    found = find_images(images, data_path, path_column=path_column, usual=classifier.path_column)
    piped = output in STANDARD_OUTPUT
    if not piped:
        _check_output(output, force=force)
    console = Console(highlight=False, stderr=piped)
    with nullcontext() if piped else bar("images") as progress:
        said = predictions(classifier, found, batch=batch, progress=progress)
        counts = write_predictions(None if piped else output, classifier, said)
    read = sum(counts.classes.values())
    where = "" if piped else f"; {output} has a line for each"
    classified = f"{read:,} of {number_of(read + len(counts.errors), 'image')} classified{where}"
    console.print(classified, markup=False, soft_wrap=True)
    for name, count in counts.classes.items():
        console.print(f"  {printable(name)}: {count:,}", markup=False, soft_wrap=True)
    if found.note:
        console.print(found.note, markup=False, soft_wrap=True)
    if not counts.errors:
        return
    console.print(f"{len(counts.errors):,} cannot be read:")
    for name, reason in counts.errors[:SHOWN]:
        console.print(f"  {printable(name)}: {printable(reason)}", markup=False, soft_wrap=True)
    if (more := len(counts.errors) - SHOWN) > 0:
        console.print(f"  … and {more:,} more; the CSV names all", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def _check_output(output: Path, *, force: bool) -> None:
    """ValueError where a folder or somebody's file is in the way; a pipe or a device is not."""
    if output.is_dir():
        raise ValueError(f"{output} is a folder; name the file to write, e.g. --output {output / 'predictions.csv'}")
    if output.is_file() and not force:
        raise ValueError(f"{output} exists; name another file with --output, or replace it with --force")
