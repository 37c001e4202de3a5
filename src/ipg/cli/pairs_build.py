"""`ipg pairs build`: pairs by one of the builders, written to a folder."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ipg.cli.errors import printable
from ipg.cli.options import AttributeColumn, LabelColumn, PathColumn, SplitSeed
from ipg.words import are, number_of

__all__ = ["EXAMPLES", "build"]

EXAMPLES = """
**Examples**

`ipg pairs build background --data waterbirds100 --data-path data/waterbirds100 --masks data/waterbirds100/masks.zip
--count 388 --output pairs`: the same bird on the other kind of background

`ipg pairs build background --data waterbirds100 --data-path data/waterbirds100 --masks data/waterbirds100/masks.zip
--count 200 --split validation --output pairs`: in the same folder, pairs to hold out

`ipg pairs build background --data waterbirds100_reverse --data-path data/waterbirds100 --masks
data/waterbirds100/masks.zip --count 388 --traces both --output reverse`: the other kind of bird on the same background,
both members composed

`ipg pairs build counterparts --data photos/labels.csv --table pairs.csv --images counterparts.zip --output pairs/mine`

`ipg pairs build matched --data celeba_subset --data-path data/celeba-subset --network mobilenetv2_100 --weights
mobilenetv2_100.safetensors --attributes data/celeba-subset/attributes.csv.gz --count 890 --output pairs/faces`

`ipg pairs build edited --data celeba --model black-forest-labs/FLUX.1-Kontext-dev --output pairs/edited`

`ipg pairs build recolored --data colored_fashion --count 40 --output pairs/colors`
"""


class Builder(StrEnum):
    """How pairs are made."""

    counterparts = "counterparts"
    background = "background"
    matched = "matched"
    random = "random"
    recolored = "recolored"
    edited = "edited"


OWN = {
    "counterparts": ("table", "images"),
    "background": ("masks", "keep", "traces"),
    "matched": ("features", "network", "weights", "normalization", "attributes", "weight"),
    "edited": ("model", "prompts", "per_group", "candidates", "side", "steps", "device"),
}
"""Options that belong to one builder."""
FLAGS = {"weight": "attribute-weight"}
"""What options are called whose name is another, by which `build.json` knows them."""


def build(
    builder: Annotated[
        Builder, typer.Argument(help="How to make them: one of those above.", metavar="BUILDER", show_choices=False)
    ],
    output: Annotated[Path, typer.Option(help="The folder to make; the same command again continues it.")],
    data: Annotated[str, typer.Option(help="A data set of `ipg data list`, or a folder or table of your own.")],
    data_path: Annotated[str | None, typer.Option(help="Where its files are.")] = None,
    count: Annotated[int | None, typer.Option(help="How many pairs, equally from all labels and groups.")] = None,
    split: Annotated[str, typer.Option(help="train, to guide by, or validation, to hold out.")] = "train",
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every draw.")] = 0,
    split_seed: SplitSeed = 0,
    path_column: PathColumn = "path",
    label_column: LabelColumn = "label",
    attribute_column: AttributeColumn = "attribute",
    parquet: Annotated[bool, typer.Option("--parquet", help="Write the manifest as Parquet, not CSV.")] = False,
    table: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet with the columns image, counterpart, label.", rich_help_panel="counterparts"),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Folder or zip of the counterparts; by default counterparts beside the table.",
            rich_help_panel="counterparts",
        ),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(help="Folder or zip of masks, white on the object.", rich_help_panel="background"),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="object, to swap the background, or scene, to swap the object; by default as the data set needs.",
            rich_help_panel="background",
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(help="second, or both, to compose the first member too.", rich_help_panel="background"),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(help=".npy, .npz or .safetensors, one row per image.", rich_help_panel="matched"),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="In place of such a file: a network to make them, by timm's name.", rich_help_panel="matched"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Its weights: a file, or `pretrained`.", rich_help_panel="matched"),
    ] = None,
    normalization: Annotated[
        str | None,
        typer.Option(help="What these were trained with, where they do not say.", rich_help_panel="matched"),
    ] = None,
    attributes: Annotated[
        Path | None,
        typer.Option(help="Table of further attributes, 0 or 1, to match in too.", rich_help_panel="matched"),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            "--attribute-weight",
            "--weight",
            help="How much these count, against the features. [default: 1]",
            rich_help_panel="matched",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="FLUX.1 Kontext: a folder, or its name on the hub.", rich_help_panel="edited"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="TOML, one prompt per group; by default the paper's.", rich_help_panel="edited"),
    ] = None,
    per_group: Annotated[
        int | None, typer.Option(help="Images of each group. [default: 1300]", rich_help_panel="edited")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Versions of each image. [default: 3]", rich_help_panel="edited")
    ] = None,
    side: Annotated[
        int | None, typer.Option(help="Pixels at which the model works. [default: 1024]", rich_help_panel="edited")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of the sampler. [default: 28]", rich_help_panel="edited")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs. [default: cuda]", rich_help_panel="edited")
    ] = None,
) -> None:
    """Make pairs that differ only in the shortcut: a manifest, and beside it the images made for it.

    counterparts: your own, from a table. background: cut out and pasted, by masks. matched: two images of one label
    whose attributes differ, as near in features as can be. random: any two of one label whose attributes differ.
    recolored: the two colours swapped. edited: changed by an image model.
    """
    given = {
        **{"table": table, "images": images, "masks": masks, "keep": keep, "traces": traces, "features": features},
        **{"network": network, "weights": weights, "normalization": normalization},
        **{"attributes": attributes, "weight": weight, "model": model, "prompts": prompts, "per_group": per_group},
        **{"candidates": candidates, "side": side, "steps": steps, "device": device},
    }
    own = {name: value for name, value in given.items() if value is not None}
    _check(builder.value, own, count, split)

    import shlex

    from ipg.cli.pairs_data import load_data
    from ipg.cli.pairs_plan import plan_of
    from ipg.cli.progress import bar
    from ipg.data.reading import Reading
    from ipg.models.build import check_named
    from ipg.pairs.plan import write
    from ipg.pairs.record import placed

    if network is not None:
        check_named(network, weights)
    reading = Reading(split_seed, path_column, label_column, attribute_column)
    found = load_data(data, data_path, size, seed, reading)
    before = _counts(output)
    plan = plan_of(builder.value, found, count, split, seed, own, before.keys())
    settings: dict[str, Any] = {"builder": builder.value, "split": split, "count": count, "seed": seed}
    settings |= {"data": placed(data), "size": found.table.images.shape[-1]}
    settings |= {f"{role}_column": name for role, name in reading.renamed.items()}
    settings |= {} if found.table.drawn is None else {"split_seed": split_seed}
    settings |= {name: _recorded(value) for name, value in own.items()}
    if data_path is not None:
        settings["data_path"] = str(Path(data_path).expanduser().absolute())

    def say_made(made: int) -> None:
        rest = "going on with the rest" if made < len(plan) else "nothing is left to make"
        typer.echo(f"{made:,} of {number_of(len(plan), 'pair')} {are(made)} there already; {rest}")

    try:
        with bar("pairs") as progress:
            manifest = write(plan, output, settings=settings, parquet=parquet, begun=say_made, progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; run the same command again to go on") from None
    for note in plan.notes:
        typer.echo(printable(note))
    added, total = len(manifest) - before.total(), len(manifest)
    done = f"{number_of(added, 'pair')} {'was' if added == 1 else 'were'} added; " if before and added else ""
    there = f"{number_of(total, 'pair')} {are(total)} {'now ' if done else ''}in {manifest.path}"
    typer.echo(f"{done}{there}; look at them with: ipg pairs show {shlex.quote(str(output))}")


def _counts(folder: Path) -> Counter[str]:
    """How many pairs of each split a folder has."""
    from ipg.pairs.rows import NAMES, Manifest

    there = any((folder / name).is_file() for name in NAMES)
    return Counter(pair.split for pair in Manifest.read(folder).pairs) if there else Counter()


def _recorded(value: Any) -> Any:
    """An option as `build.json` keeps it."""
    return str(value.expanduser().absolute()) if isinstance(value, Path) else value


def _check(builder: str, own: dict[str, Any], count: int | None, split: str) -> None:
    """Say all that is wrong with the options at once, before anything is loaded."""
    from importlib.util import find_spec

    from ipg.data.errors import ProblemsError

    problems = []
    for name in own:
        if (home := next(key for key, names in OWN.items() if name in names)) != builder:
            problems.append(
                f"--{FLAGS.get(name, name.replace('_', '-'))} is for {home} pairs; {builder} pairs take none"
            )
    needed = {"counterparts": "table", "background": "masks"}.get(builder)
    if needed is not None and needed not in own:
        problems.append(f"{builder} pairs need --{needed}; see `ipg pairs build --help`")
    files = [(name, value) for name, value in own.items() if isinstance(value, Path)]
    problems += [f"there is no {file}, which --{name} names" for name, file in files if not file.exists()]
    if count is None and builder in ("background", "matched", "random", "recolored"):
        problems.append("say how many pairs with --count, e.g. --count 388")
    if count is not None and builder == "edited":
        problems.append("edited pairs are counted with --per-group and --candidates; leave --count out")
    if "network" in own and "features" in own:
        problems.append("--features and --network are two ways to the same; give one")
    if ("network" in own) != ("weights" in own):
        problems.append("--network and --weights go together: a network that knows nothing has no features")
    if builder == "edited" and find_spec("diffusers") is None:
        problems.append('edited pairs need the extra edit: pip install "invariance-pair-guidance[edit]"')
    if split not in ("train", "validation"):
        problems.append(f"--split is {split!r}; pairs are made of train or validation images alone")
    if problems:
        raise ProblemsError(problems)
