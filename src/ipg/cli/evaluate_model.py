"""Any trained model on pairs and on images: what `ipg evaluate --pairs` and `--data` measure, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from ipg.classifier import Classifier, is_run, open_classifier
from ipg.cli.console import in_their_order, percent, same_class, shown_groups
from ipg.cli.own_network import open_with
from ipg.cli.pairs_data import load_data, open_data
from ipg.cli.progress import bar
from ipg.data.errors import DataError, ProblemsError
from ipg.data.parallel import in_order
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.evaluation.groups import group_metrics, intervals, is_constant, logits_of, predict
from ipg.evaluation.pairs import pair_metrics
from ipg.pairs.checks import class_number, problems_of
from ipg.pairs.manifest import check_size
from ipg.pairs.references import References
from ipg.pairs.rows import DATA, Manifest, Pair
from ipg.words import listed

__all__ = ["Question", "measure", "print_measured"]

Item = TypeVar("Item")

BATCH = 64
"""Pairs that are read and looked at together."""


@dataclass(frozen=True)
class Question:
    """What to measure a model on, as the options say it."""

    pairs: str | None
    data: str | None
    data_path: str | None
    classes: str | None
    normalization: str | None
    size: int | None
    split: str | None
    device: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What columns of --data are called, where that was said."""
    network: str | None = None
    """The function that makes the network of a run, where code of the user's does."""


def measure(spec: str, question: Question) -> dict[str, Any]:
    """The metrics of the model `spec`: `pairs` and `data`, as far as they are asked for."""
    named = _names(question)
    manifest = Manifest.read(question.pairs) if question.pairs is not None else None
    run = _run(spec, question) if is_run(spec) else None
    table = _table(question, manifest, run)
    classes = table.classes if table is not None else named
    if table is not None and named is not None:
        _check_same(named, table)
    if run is not None:
        classifier = run
        if classes is not None:
            run.check_classes(spec, classes)
    else:
        classifier = _foreign(spec, question, named, table)
    measured: dict[str, Any] = {}
    if manifest is not None:
        measured["pairs"] = _on_pairs(classifier, manifest, table, question.split)
    if table is not None and question.data is not None:
        measured["data"] = _on_images(classifier, table, question.split or "test")
    return measured


def _names(question: Question) -> tuple[str, ...] | None:
    if question.classes is None:
        return None
    names = tuple(name.strip() for name in question.classes.split(","))
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise ValueError(f"--classes {question.classes!r}: expected two names or more, all different, as in cat,dog")
    return names


def _check_same(named: Sequence[str], table: ImageTable) -> None:
    """ValueError where the outputs that --classes names are not the classes of the data, in whatever order."""
    wrong = [f"{name!r} is none of them" for name in named if name not in table.classes]
    wrong += [f"{name!r} is missing" for name in table.classes if name not in named]
    if wrong:
        raise ValueError(
            f"--classes {','.join(named)}: the classes of {table.name} are {', '.join(table.classes)}; "
            f"{listed(wrong)}: name these, in the order of the model's outputs"
        )


def _foreign(spec: str, question: Question, named: Sequence[str] | None, table: ImageTable | None) -> Classifier:
    """A model that is no run; its classes are in the order of the data's, where there are data."""
    classes, size = (named, question.size) if table is None else (table.classes, table.images.shape[-1])
    found = open_classifier(
        spec, size=size, classes=classes, normalization=question.normalization, device=question.device
    )
    if table is None:
        return found
    if named is None:
        outputs = in_their_order(table.classes)
        typer.echo(f"{spec}: outputs taken as {outputs}; say --classes if they are otherwise", err=True)
        return found
    return replace(found, model=_Reordered(found.model, named, table.classes))


class _Reordered(nn.Module):
    """A model whose outputs are the classes `named`, as one whose outputs are in the order of `classes`."""

    def __init__(self, model: nn.Module, named: Sequence[str], classes: Sequence[str]) -> None:
        super().__init__()
        self.model, self.order = model, [named.index(name) for name in classes]

    def forward(self, images: Tensor) -> Tensor:
        logits = logits_of(self.model(images))
        if logits.shape[1] == 1:  # its sign tells two classes apart
            return logits if self.order == [0, 1] else -logits
        return logits[:, self.order]


def _run(spec: str, question: Question) -> Classifier:
    for name, value in (("size", question.size), ("normalization", question.normalization)):
        if value is not None:
            raise ValueError(f"the run {spec} says what its {name} is; leave --{name} {value} out")
    return open_with(Path(spec), question.network, device=question.device)


def _table(question: Question, manifest: Manifest | None, run: Classifier | None) -> ImageTable | None:
    """The data set that is named, or else the one that the pairs refer to."""
    size, seed = (question.size, 0) if run is None else (run.shape[-1], int(run.config.get("seed", 0)))
    if question.data is not None:
        reading = replace(Reading() if run is None else Reading.kept(run.config), **question.columns)
        return load_data(question.data, question.data_path, size, seed, reading).table
    if manifest is None or not any(
        name.startswith(DATA) for pair in manifest.pairs for name in (pair.first, pair.second)
    ):
        return None
    found = open_data(manifest.folder, None, question.data_path)
    if found is None:
        raise DataError(f"{manifest.path} refers to images of a data set; say which with --data")
    if size is not None and size != (side := found.table.images.shape[-1]):
        raise ValueError(
            f"the pairs are of images of {side} pixels, the model is to see {size}; name the data with --data"
        )
    return found.table


# -- pairs -----------------------------------------------------------------------------------------------------------


def _on_pairs(
    classifier: Classifier, manifest: Manifest, table: ImageTable | None, split: str | None
) -> dict[str, Any]:
    rows = [row for row, pair in enumerate(manifest.pairs) if pair.status != "rejected"]
    if split in ("train", "validation"):
        rows = [row for row in rows if manifest.pairs[row].split == split]
    if not rows:
        raise DataError(f"{manifest.path} has no pair{f' of {split}' if split else ''} that is not rejected")
    for name in sorted({manifest.pairs[row].split for row in rows}):
        of_split = [manifest.pairs[row] for row in rows if manifest.pairs[row].split == name]
        check_size(manifest, of_split, name, classifier.shape[-1])
    references = References(manifest.folder, table, size=classifier.shape[-1], fit=classifier.fit)
    predicted = _predict_members(classifier, manifest, rows, references)
    pairs = [manifest.pairs[row] for row in rows]
    classes = classifier.classes
    names = [pair.label if classes is None else classes[class_number(pair.label, classes)] for pair in pairs]
    return {
        "file": str(manifest.path),
        "count": len(pairs),
        "splits": dict(Counter(pair.split for pair in pairs)),
        **pair_metrics(predicted[:, 0], predicted[:, 1], names, classes=classes),
    }


def _predict_members(classifier: Classifier, manifest: Manifest, rows: Sequence[int], references: References) -> Tensor:
    """The classes that the members of the pairs in `rows` get, (n, 2).

    Raises:
        ProblemsError: some pairs cannot be used; all are named.
    """
    problems: list[str] = []
    found: list[Tensor] = []

    def read(row: int) -> tuple[int, list[Tensor], list[str]]:
        """Both members of a pair, and what is wrong with it."""
        pair = manifest.pairs[row]
        wrong, images = [*_label_problems(pair, classifier), *problems_of(pair, references)], []
        for name in (pair.first, pair.second):
            try:
                images.append(references.image(name))
            except DataError as error:
                wrong.append(str(error))
        return row, images, wrong

    with bar("pairs") as progress:
        for members in _chunks(in_order(read, rows)):
            problems += [f"{manifest.where(row)}: {reason}" for row, _, wrong in members for reason in wrong]
            if not problems:
                images = torch.stack([image for _, both, _ in members for image in both])
                said = predict(classifier.model, classifier.seen(images))
                found.append(said.cpu().view(-1, 2))
            progress(sum(map(len, found)), len(rows))
    if problems:
        raise ProblemsError(problems)
    return torch.cat(found)


def _label_problems(pair: Pair, classifier: Classifier) -> list[str]:
    try:
        if classifier.classes is not None:
            class_number(pair.label, classifier.classes)
    except DataError as error:
        return [str(error)]
    return []


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """`BATCH` items at a time."""
    rest = iter(items)
    while chunk := list(islice(rest, BATCH)):
        yield chunk


# -- images ----------------------------------------------------------------------------------------------------------


def _on_images(classifier: Classifier, table: ImageTable, split: str) -> dict[str, Any]:
    """Accuracy on average, by group and in the worst group, each with its interval."""
    part = table.part(split)
    if not len(part):
        raise DataError(f"{table.name} has no {split} image; name another --split")
    said = predict(classifier.model, classifier.seen(part.images)).cpu()
    found = group_metrics(said, part)
    about = {"name": table.name, "split": split}
    return about | intervals(found) | {"predicted_classes": found["predicted_classes"]}


# -- tables ----------------------------------------------------------------------------------------------------------


def print_measured(console: Console, spec: str, measured: Mapping[str, Any]) -> None:
    """The metrics of one model, a table for pairs and one for images."""
    if "pairs" in measured:
        pairs = measured["pairs"]
        of = " and ".join(f"{count:,} of {split}" for split, count in pairs["splits"].items())
        console.print(f"{spec} on the pairs of {pairs['file']} ({of})", markup=False)
        console.print(_table_of(list(_pair_lines(pairs)), "% of pairs", "pairs"))
        if pairs["first_right"] is None:
            console.print("Who is right is not known: say what its outputs mean with --classes or --data.")
        if len(pairs["splits"]) > 1:
            console.print("If it was trained on some of these, see the others with --split validation.")
    if "data" in measured:
        data = measured["data"]
        word, names = shown_groups(data["groups"])
        worst = names[data["worst_group"]["group"]]
        lines = [("average", data["average"]), (f"worst {word}: {worst}", data["worst_group"])]
        lines += [(f"  {names[group]}", share) for group, share in data["groups"].items()]
        console.print(f"{spec} on the {data['split']} images of {data['name']}", markup=False)
        console.print(_table_of(lines, "% right", "images"))
    if _is_constant(measured):
        console.print(same_class(spec, pairs=measured.get("pairs") is not None), markup=False, soft_wrap=True)


def _is_constant(measured: Mapping[str, Any]) -> bool:
    """Whether a model was seen to give every image the same class, where there are images of several."""
    data, pairs = measured.get("data"), measured.get("pairs")
    if data is not None and is_constant({**data, "average": data["average"]["share"]}):
        return True
    return data is None and pairs is not None and pairs["predicted_classes"] == 1 and len(pairs["labels"]) > 1


def _pair_lines(pairs: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    titles = {"disagreement": "disagree", "first_right": "first member right", "second_right": "second member right"}
    for key, title in titles.items():
        if pairs[key] is not None:
            yield title, pairs[key]
            yield from ((f"  {name}", shares[key]) for name, shares in pairs["labels"].items())


def _table_of(lines: Sequence[tuple[str, Mapping[str, Any]]], share: str, count: str) -> Table:
    table = Table()
    table.add_column("")
    for title in (share, "95 % interval", count):
        table.add_column(title, justify="right")
    for title, value in lines:
        between = "–" if value["share"] is None else f"{percent(value['low'])} to {percent(value['high'])}"
        style = None if title.startswith(" ") else "bold"
        table.add_row(escape(title), percent(value["share"]), between, f"{value['count']:,}", style=style)
    return table
