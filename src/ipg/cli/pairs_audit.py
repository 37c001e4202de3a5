"""`ipg pairs audit`: every pair scored, and rejected with a reason where it would mislead."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipg.cli.options import MOVED, KnownAttributeColumn, KnownLabelColumn, KnownPathColumn, Network
from ipg.words import are, number_of

if TYPE_CHECKING:
    from torch import Tensor

    from ipg.cli.pairs_data import Data
    from ipg.pairs.members import Coverage
    from ipg.pairs.opinions import Opinions
    from ipg.pairs.rows import Manifest

__all__ = ["EXAMPLES", "audit"]

EXAMPLES = """
**Examples**

`ipg pairs audit pairs`: what can be seen without a model, written to the manifest

`ipg pairs audit pairs --model runs/robust --dry-run`: also whether a network sees the label change; nothing is written

`ipg pairs audit pairs --model timm:resnet50@mine.pth`: the same with a network you have

`ipg pairs audit pairs --predictions predictions.csv --json`: columns image, label, attribute, as any model gave them,
or what ipg predict wrote

`ipg pairs audit mine.csv --data waterbirds100_reverse --data-path data/waterbirds100 --masks
data/waterbirds100/masks.zip --keep scene`
"""


def audit(
    manifest: Annotated[Path, typer.Argument(help="A manifest, or the folder it is in.", metavar="MANIFEST")],
    data: Annotated[str | None, typer.Option(help="The data set, if the folder does not say.")] = None,
    data_path: Annotated[str | None, typer.Option(help=MOVED)] = None,
    path_column: KnownPathColumn = None,
    label_column: KnownLabelColumn = None,
    attribute_column: KnownAttributeColumn = None,
    size: Annotated[
        int | None, typer.Option(help="Side at which images are compared, in pixels; that of the pairs, or 224.", min=1)
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="Folder or zip of masks of the objects, for pairs without masks.")
    ] = None,
    keep: Annotated[
        str, typer.Option(help="What such pairs keep: object, or scene (all that is outside the objects).")
    ] = "object",
    model: Annotated[
        str | None,
        typer.Option(
            help="A trained network to ask for the label: a run, timm:NAME@FILE, torchvision:NAME@FILE, hf:ID, "
            "python:FILE:FUNCTION, or a file of weights. It must not lean on the shortcut itself.",
            metavar="SPEC",
        ),
    ] = None,
    normalization: Annotated[
        str | None, typer.Option(help="Normalisation its weights expect, if they do not say: imagenet, half, none, …")
    ] = None,
    network: Network = None,
    predictions: Annotated[
        list[Path] | None,
        typer.Option(
            help="CSV, Parquet or npz: image, and label, attribute, further attributes or features; or what ipg "
            "predict wrote. May be repeated."
        ),
    ] = None,
    kept: Annotated[float, typer.Option(help="Largest distance, 1 - SSIM, where members should agree.")] = 0.45,
    changed: Annotated[float, typer.Option(help="Smallest distance, 1 - SSIM, where members should differ.")] = 0.1,
    features: Annotated[
        float,
        typer.Option(help="Largest distance in features, as a share of that between strangers; no file, as in build."),
    ] = 1.0,
    others: Annotated[float, typer.Option(help="Largest share of further attributes that may differ.")] = 0.25,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show; leave the manifest as it is.")] = False,
    device: Annotated[str, typer.Option(help="Where the network runs: auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score every pair, and reject those whose label changed, whose shortcut did not, or that changed too much else.

    Also those that come twice, cannot be read, or are of another split than their images. Exits with 1 if none is left.
    """
    import json

    from ipg.classifier import is_run
    from ipg.cli.pairs_data import open_data
    from ipg.cli.progress import bar
    from ipg.pairs.audit import audit as judge
    from ipg.pairs.audit import summary
    from ipg.pairs.findings import Limits
    from ipg.pairs.members import read_for
    from ipg.pairs.opinions import Opinions
    from ipg.pairs.rows import Manifest

    if model is not None and predictions:
        raise ValueError("--model and --predictions both say what is in the images; give one of them")
    if model is None and normalization is not None:
        raise ValueError("--normalization is for --model, which is missing")
    if network is not None and (model is None or not is_run(model)):
        raise ValueError(f"--network makes the network of a run; name the run with --model, or leave {network} out")
    read = Manifest.read(manifest)
    columns = {"path_column": path_column, "label_column": label_column, "attribute_column": attribute_column}
    found = open_data(read.folder, data, data_path, size, columns=columns)
    opinions, coverage = Opinions(), None
    if model is not None:
        opinions = _asked(model, normalization, network, found, size, device)
    elif predictions:
        opinions, coverage = read_for(read, predictions, found.home if found else None)
    mask_of = None if masks is None else _masks(masks, keep, found)
    with bar("pairs") as progress:
        judged = judge(
            read,
            found.table if found else None,
            label_of=opinions.label,
            attribute_of=opinions.attribute,
            others_of=opinions.others,
            features_of=opinions.features,
            limits=Limits(kept, changed, features, others),
            mask_of=mask_of,
            size=size,
            progress=progress,
        )
    counts = summary(judged)
    if not dry_run:
        judged.write()
    if as_json:
        accepted = counts.pop("ok", 0)
        told = {"manifest": str(judged.path), "pairs": len(judged), "ok": accepted, "rejected": dict(counts)}
        told |= {"data": found.table.name if found else None, "written": not dry_run}
        if coverage is not None:
            told["predictions"] = {"members": coverage.members, "covered": coverage.covered, "pairs": coverage.asked}
        typer.echo(json.dumps(told, indent=2))
        counts["ok"] = accepted
    else:
        _print(judged, counts, found, coverage, written=not dry_run)
    if not counts["ok"]:
        raise typer.Exit(1)


def _asked(
    spec: str, normalization: str | None, network: str | None, data: Data | None, size: int | None, device: str
) -> Opinions:
    """What a network says of images: their class, whatever its outputs are called, and their features."""
    from torch.nn import functional as F

    from ipg.classifier import is_run, open_classifier
    from ipg.cli.own_network import open_with
    from ipg.evaluation.features import features
    from ipg.evaluation.groups import predict
    from ipg.pairs.opinions import Opinions
    from ipg.rationale import HeadNotFoundError, find_head

    if is_run(spec):
        if normalization is not None:
            raise ValueError(f"the run {spec} says what its normalization is; leave --normalization out")
        asked = open_with(Path(spec), network, device=device)
    else:
        side, classes = (size, None) if data is None else (data.table.images.shape[-1], data.table.classes)
        asked = open_classifier(spec, size=side, classes=classes, normalization=normalization, device=device)
    try:
        find_head(asked.model)
        headed = next(asked.model.parameters(), None) is not None
    except HeadNotFoundError:
        headed = False  # what enters it is not known then

    def seen(images: Tensor) -> Tensor:
        """Images with the channels and the side that the network knows."""
        known, side = asked.seen(images), asked.shape[-1]
        if known.shape[-1] == side:
            return known
        return F.interpolate(known, size=side, mode="bilinear", antialias=True)

    return Opinions(
        label=lambda images: predict(asked.model, seen(images)),
        features=(lambda images: features(asked.model, seen(images))) if headed else None,
    )


def _masks(place: Path, keep: str, data: Data | None) -> Any:
    """Where pairs should agree, by the masks of the data set's objects."""
    from ipg.data.errors import DataError
    from ipg.pairs.masks import Masks, agreed

    if data is None or data.listing is None:
        raise DataError("--masks are of a data set's image files; say which with --data")
    masks = Masks(place, data.listing, size=data.table.images.shape[-1])
    return agreed(masks, keep)


def _print(manifest: Manifest, counts: Any, data: Data | None, coverage: Coverage | None, *, written: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from ipg.pairs.findings import LABEL_CHANGED

    console = Console(highlight=False)
    table = Table()
    table.add_column("verdict")
    table.add_column("pairs", justify="right")
    for reason, count in sorted(counts.items(), key=lambda item: (item[0] != "ok", -item[1])):
        table.add_row(reason, f"{count:,}", style="bold" if reason == "ok" else None)
    console.print(table)
    if data is None:
        console.print("Splits and labels were not compared with a data set; name it with --data.")
    if coverage is not None:
        console.print(
            f"Predictions cover {coverage.covered:,} of {coverage.members:,} members; {coverage.asked:,} of "
            f"{number_of(coverage.pairs, 'pair')} {are(coverage.asked)} judged by them"
            + "".join(f"; their names are taken as in {_short(folder)}" for folder in coverage.folders),
            markup=False,
            soft_wrap=True,
        )
    if 2 * counts[LABEL_CHANGED] > len(manifest):
        console.print(
            "For most pairs the label changes under this network: it may lean on the shortcut itself, and then its "
            "opinion means nothing.",
            soft_wrap=True,
        )
    done = f"written to {manifest.path}" if written else "nothing was written"
    if written and counts["ok"] < len(manifest):
        done += f"; see the others, and why, with: ipg pairs show {shlex.quote(str(manifest.path))}"
    pairs = f"{number_of(len(manifest), 'pair')} {are(len(manifest))}"
    console.print(f"{counts['ok']:,} of {pairs} accepted; {done}", soft_wrap=True)


def _short(folder: Path) -> Path:
    """A folder as seen from here, where it is inside."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
