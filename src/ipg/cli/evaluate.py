"""`ipg evaluate`: the metrics of finished runs, and of any trained model on pairs or images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ipg.cli.options import MOVED, KnownAttributeColumn, KnownLabelColumn, KnownPathColumn, Network
from ipg.words import did_you_mean

__all__ = ["EXAMPLES", "evaluate"]

EXAMPLES = """
**Examples**

`ipg evaluate runs/guided runs/plain`: both side by side, on the test images

`ipg evaluate runs/guided --split validation --json`: as JSON, for scripts

`ipg evaluate --model timm:resnet50@mine.pth --pairs pairs.csv --classes cat,dog`: a model that exists, before
anything is trained

`ipg evaluate --model python:mine.py:make --pairs pairs.csv --data photos.csv`: on pairs, and on images by group

`ipg evaluate runs/guided --pairs other-pairs.csv`: a run on other pairs than its own

`ipg evaluate runs/mine --network python:mine.py:make`: a run that started from your own code, on its test images
"""
OF_PAIRS = ("train", "validation")
"""The splits that pairs are of."""


def evaluate(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of finished runs.", metavar="RUN", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A trained model instead: timm:NAME@FILE, torchvision:NAME@FILE, hf:ID, python:FILE:FUNCTION, a run, "
            "or a file of weights that names its network.",
            metavar="SPEC",
        ),
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Pairs to measure on: a manifest, or its folder.", metavar="MANIFEST")
    ] = None,
    network: Network = None,
    data: Annotated[str | None, typer.Option(help="Data set to measure on, by group; a name or a path.")] = None,
    data_path: Annotated[str | None, typer.Option(help=MOVED)] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="What the model's outputs mean, in their order: cat,dog. By default, with --data, the classes of the "
            "data in their order."
        ),
    ] = None,
    normalization: Annotated[
        str | None, typer.Option(help="Normalisation its weights expect, if they do not say: imagenet, half, none, …")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels; by default the run's own, or 224.")
    ] = None,
    path_column: KnownPathColumn = None,
    label_column: KnownLabelColumn = None,
    attribute_column: KnownAttributeColumn = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Which images: test (default), validation, … For pairs: train or validation; all by default."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure finished runs, or any trained model, on images and on pairs.

    Runs alone: accuracy on average, by group and in the worst group, and pair disagreement. With --pairs: how many
    pairs disagree and how many members are right, by label; with --data: accuracy by group; all with the interval
    that holds the true share with 95 % confidence. A model that gives every image the same class is named.
    """
    import json

    from rich.console import Console

    split = None if split is None else _called(split)
    specs = [*map(str, runs or ()), *([model] if model is not None else [])]
    if not specs:
        raise ValueError("nothing to measure: name the folder of a run, or a model with --model")
    if network is not None:
        if len(specs) > 1 or model is not None:
            raise ValueError("--network makes the network of one run: name that run alone")
        if pairs is None and data is None:
            data, data_path = _own_data(Path(specs[0]), data_path)
    if pairs is None and data is None:
        if model is not None:
            raise ValueError(f"what is {model} to be measured on? Give --pairs MANIFEST, --data DATA, or both")
        if given := [name for name, value in (("classes", classes), ("size", size)) if value is not None]:
            raise ValueError(f"--{given[0]} is for --pairs or --data, which are missing; the runs know theirs")
        _evaluate_runs(runs or [], split or "test", data_path, device, as_json=as_json)
        return

    from ipg.cli.evaluate_model import Question, measure, print_measured

    columns = {"path_column": path_column, "label_column": label_column, "attribute_column": attribute_column}
    named = {name: value for name, value in columns.items() if value is not None}
    if named and data is None:
        raise ValueError(f"--{next(iter(named)).replace('_', '-')} is for --data, which is missing")
    if data is None and split is not None and split not in OF_PAIRS:
        hint = did_you_mean(split, OF_PAIRS)
        raise ValueError(f"--split {split}: pairs are of train or validation{f'; {hint}' if hint else ''}")
    question = Question(pairs, data, data_path, classes, normalization, size, split, device, named, network)
    measured = [(spec, measure(spec, question)) for spec in specs]
    if as_json:
        typer.echo(json.dumps(dict(measured), indent=2, ensure_ascii=False))
        return
    for spec, metrics in measured:
        print_measured(Console(highlight=False), spec, metrics)


def _called(split: str) -> str:
    """A split by its own name where it is given by another that tables may have for it, such as val."""
    from ipg.data.splits import SPLIT_NAMES, SPLITS

    number = None if split.isdecimal() else SPLIT_NAMES.get(split.lower())
    return split if number is None else SPLITS[number]


def _own_data(run: Path, data_path: str | None) -> tuple[str, str | None]:
    """What to load as the data that a run was trained on."""
    from ipg.training.folder import RunFolder
    from ipg.whereabouts import find_data

    config, _, origin = RunFolder(run).recorded()
    known, there = origin.get("data_path"), origin.get("started_in")
    return find_data(str(config.get("data")), known, run=run, given=data_path, started_in=there)


def _evaluate_runs(runs: list[Path], split: str, data_path: str | None, device: str, *, as_json: bool) -> None:
    """Runs side by side, on the data they were trained on."""
    import json

    from rich.console import Console

    from ipg.cli.console import print_metrics, same_class
    from ipg.cli.own_network import refuse_own_code
    from ipg.evaluation.groups import is_constant
    from ipg.notebook import Run

    measured: dict[str, dict[str, Any]] = {}
    pairs: dict[str, int] = {}
    alike: dict[tuple[str, str], list[str]] = {}  # runs by the images that they are measured on
    for folder in runs:
        refuse_own_code(folder)
        run = Run.load(folder, device=device, data_path=data_path)
        measured[str(folder)] = run.evaluate(split)
        pairs[str(folder)] = len(run.materials.held_out or ())
        alike.setdefault((run.materials.table.name, run.images_of(split)), []).append(str(folder))
    if as_json:
        told = {spec: metrics | {"intervals": _intervals(metrics, pairs[spec])} for spec, metrics in measured.items()}
        typer.echo(json.dumps(told, indent=2))
        return
    console = Console()
    for (name, _), folders in alike.items():
        whose = f" of {name}" if len(alike) > 1 else ""
        columns = [(folder, measured[folder], None) for folder in folders]
        title = f"{split.capitalize()} images{whose}, % right"
        print_metrics(console, columns, title=title, pairs=[pairs[folder] for folder in folders])
    for spec, metrics in measured.items():
        if is_constant(metrics):
            said = same_class(spec, pairs=metrics.get("pair_disagreement") is not None)
            console.print(said, highlight=False, markup=False, soft_wrap=True)
    if len(alike) > 1:
        console.print(
            "Runs in different tables are measured on different images: their figures are not comparable.",
            highlight=False,
            soft_wrap=True,
        )


def _intervals(metrics: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Every share of a run with its interval and what it was counted on, as for a model on --data."""
    from ipg.evaluation.groups import intervals
    from ipg.evaluation.statistics import counted

    disagreeing = round((metrics["pair_disagreement"] or 0) * pairs)
    return intervals(metrics) | {"pair_disagreement": counted(disagreeing, pairs)}
