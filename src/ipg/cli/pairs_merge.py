"""`ipg pairs merge`: pairs of several folders in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ipg.cli.options import KnownAttributeColumn, KnownLabelColumn, KnownPathColumn
from ipg.words import are, number_of

__all__ = ["EXAMPLES", "merge"]

EXAMPLES = """
**Examples**

`ipg pairs merge pairs/real pairs/composed --count 388 --output pairs/both`: the real ones first, as many as the labels
have room for, then composed ones

`ipg pairs merge mine.csv pairs --data photos/labels.csv --output pairs/all`
"""


def merge(
    manifests: Annotated[
        list[Path], typer.Argument(help="Folders or manifests, the most trusted first.", metavar="MANIFEST")
    ],
    output: Annotated[Path, typer.Option(help="The folder to make; the same command again continues it.")],
    count: Annotated[
        int | None, typer.Option(help="How many training pairs, equally from all labels; all by default.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The data set, if the folders do not say.")] = None,
    data_path: Annotated[str | None, typer.Option(help="Where its files are, if they have moved.")] = None,
    path_column: KnownPathColumn = None,
    label_column: KnownLabelColumn = None,
    attribute_column: KnownAttributeColumn = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write the manifest as Parquet, not CSV.")] = False,
) -> None:
    """Merge the pairs of several folders, for instance a few real pairs topped up with composed ones.

    Pairs of the first folder come first. An image that has a pair gets no second one. Rejected pairs are left out.
    Held-out pairs are merged as well, all of them.
    """
    import shlex
    from collections import Counter

    from ipg.cli.pairs_data import open_data
    from ipg.cli.progress import bar
    from ipg.data.errors import DataError
    from ipg.pairs.merge import plan, shared_settings
    from ipg.pairs.plan import write
    from ipg.pairs.record import RECORD, placed
    from ipg.pairs.rows import Manifest

    if len(manifests) < 2:
        raise DataError(f"only {manifests[0]} is named; name two folders of pairs or more to merge")
    read = [Manifest.read(path) for path in manifests]
    known = shared_settings(read)
    known |= {} if data is None else {"data": placed(data)}
    known |= {} if data_path is None else {"data_path": str(Path(data_path).expanduser().absolute())}
    columns = {"path_column": path_column, "label_column": label_column, "attribute_column": attribute_column}
    known |= {name: column for name, column in columns.items() if column is not None}
    said = next((one for one in read if (one.folder / RECORD).is_file()), read[0])
    found = open_data(said.folder, data, data_path, columns=columns)
    if found is None:
        raise DataError(f"{manifests[0]} does not say which data set its pairs are of; name it with --data")
    splits = [split for split in ("train", "validation") if any(p.split == split for one in read for p in one.pairs)]
    if not splits:
        raise DataError(f"{manifests[0]} has no pairs, nor have the others")
    plans = [plan(read, found.table, count=count if split == "train" else None, split=split) for split in splits]
    of = [str(path.expanduser().absolute()) for path in manifests]
    try:
        with bar("pairs") as progress:
            for split, one in zip(splits, plans, strict=True):
                own: dict[str, Any] = {"builder": "merged", "split": split, "count": len(one), "of": of}
                size = {"size": found.table.images.shape[-1]}
                written = write(one, output, settings={**known, **size, **own}, parquet=parquet, progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; run the same command again to go on") from None
    for split, one in zip(splits, plans, strict=True):
        makers = Counter(pair.builder for pair in one.pairs)
        typer.echo(f"{split}: {', '.join(f'{many:,} {name}' for name, many in makers.items())}")
    total = len(written)
    there = f"{number_of(total, 'pair')} {are(total)} in {written.path}"
    typer.echo(f"{there}; look at them with: ipg pairs show {shlex.quote(str(output))}")
