"""Training in one call, for notebooks and scripts: `run = ipg.fit(...)`, `run.evaluate()`, `run.report()`."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from ipg.classifier import Classifier, fit_of
from ipg.config import RunConfig
from ipg.data.errors import DataError
from ipg.data.table import ImageTable
from ipg.data.tensors import as_bytes, table_of
from ipg.evaluation.groups import evaluate, evaluating, logits_of
from ipg.evaluation.pairs import pair_disagreement
from ipg.guidance import Pairs
from ipg.methods import Method, method_class
from ipg.models import load_model
from ipg.pairs.pairset import PairSet
from ipg.prediction import Prediction, find_images, predictions, said_of
from ipg.restarts import rate_after
from ipg.training.device import autocast_dtype, numerics, resolve_device, usual_defaults
from ipg.training.folder import FolderError, RunFolder
from ipg.training.listeners import Listener
from ipg.training.loop import Outcome, train
from ipg.training.materials import Materials, gather
from ipg.training.rows import wrong_in_result, wrong_in_rows
from ipg.training.start import as_started
from ipg.whereabouts import find_data, find_file
from ipg.words import times

__all__ = ["Run", "fit"]


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run: its network, its numbers, and what it was trained on."""

    config: RunConfig
    materials: Materials
    outcome: Outcome

    def __repr__(self) -> str:
        metrics = self.result.get("metrics") or {}
        known = [(name, metrics.get(name)) for name in ("average", "worst_group", "pair_disagreement")]
        told = "".join(f", {name.replace('_', ' ')} {100 * share:.1f} %" for name, share in known if share is not None)
        return f"Run({self.config.method} on {self.materials.table.name}, seed {self.config.seed}{told})"

    @property
    def model(self) -> nn.Module:
        """The network with the weights of the kept epoch."""
        return self.outcome.model

    @property
    def result(self) -> dict[str, Any]:
        """Metrics, settings and origin, as in `result.json`."""
        return self.outcome.result

    @property
    def epochs(self) -> Sequence[dict[str, Any]]:
        """A row an epoch, as in `metrics.jsonl`."""
        return self.outcome.rows

    @usual_defaults()
    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Accuracy on average, by group and in the worst group, and disagreement on held-out pairs."""
        device = next(self.model.parameters()).device
        autocast = autocast_dtype(self.config)
        held_out, table = self.materials.held_out, self.materials.table
        part, training = table.part(split).to(device), table.part("train")
        pairs = None if held_out is None else held_out.to(device)
        with numerics(self.config, device):  # as in training
            found = evaluate(self.model, part, autocast=autocast, training=training)
            return found | {"pair_disagreement": pair_disagreement(self.model, pairs, autocast=autocast)}

    @usual_defaults()
    def predict(self, images: Any, *, batch: int = 64) -> list[Prediction]:
        """What the network says of new images, one after the other: how likely each class is, and the likeliest.

        Args:
            images: (N, C, H, W), bytes or floats from 0 to 1, of the size of the training images; or a folder, zip,
                table or image file, which is brought to that size.
            batch: how many are looked at together.
        """
        if batch < 1:
            raise ValueError(f"batch={batch}: expected at least 1")
        table = self.materials.table
        _, channels, height, width = table.images.shape
        shape, fit = (channels, height, width), fit_of(self.config.data)
        classifier = Classifier(self.model, shape, table.classes, fit, config=self.config.flat())
        if isinstance(images, str | Path):
            return list(predictions(classifier, find_images(Path(images)), batch=batch))
        pictures = as_bytes(images, "images")
        if pictures.shape[2:] != (height, width):
            given = tuple(pictures.shape[2:])
            raise ValueError(f"images are {given}, those of the training {(height, width)}: resize them, or give files")
        shares = [share for part in torch.split(pictures, batch) for share in classifier.probabilities(part).tolist()]
        return [said_of(str(number), share, table.classes) for number, share in enumerate(shares)]

    def images_of(self, split: str) -> str:
        """A digest of which images are in `split`, whatever the method sees of them: equal where they are the same."""
        part = self.materials.table.part(split)
        digest = hashlib.sha256(repr((part.classes, part.attributes, part.names)).encode())
        for column in (part.label, part.attribute, part.content):
            digest.update(column.cpu().numpy().tobytes())
        return digest.hexdigest()

    @usual_defaults()
    def report(self, path: str | Path = "report.html", *, beside: Sequence[Run] = ()) -> Path:
        """Write the report, one self-contained HTML page, on this run and those `beside` it."""
        from ipg.report.build import page_data
        from ipg.report.page import write

        return write(Path(path), page_data([*beside, self]))

    @classmethod
    @usual_defaults()
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        data_path: str | None = None,
        pairs: str | None = None,
        network: nn.Module | None = None,
    ) -> Run:
        """Read a finished run back from its folder; the data is loaded again, and has to be the same.

        Args:
            folder: what `ipg train` wrote.
            device: where the network goes.
            data_path: where the data set's files are, or the folder of its table, if not where they were.
            pairs: where the manifest of its pairs is, if not where it was.
            network: one like that of the run, where code of yours has made that; it takes the run's weights.
        """
        home = RunFolder(Path(folder))
        config, (_, then, origin) = home.configured()
        if not origin.get("named"):
            raise FolderError(f"{home.path} was trained on objects of your own; evaluate it where they are")
        if (found := home.finished()) is None:
            raise home.unfinished()
        weights, rows, result = found
        if wrong := wrong_in_result(result):
            raise home.damaged(home.result, wrong)
        if wrong := wrong_in_rows(rows):
            raise home.damaged(home.metrics, wrong)
        there = origin.get("started_in")
        data, path = find_data(config.data, origin.get("data_path"), run=home.path, given=data_path, started_in=there)
        config = config.with_changes(device=device, data=data, data_path=path)
        if isinstance(config.pairs, str):
            config = config.with_changes(pairs=pairs or _find_pairs(config, home, there))
        try:
            if network is None and config.start is not None:
                network = load_model(home.path)
            plain = config.with_changes(weights=None)  # what it started from is not needed
            materials = gather(plain, model=network, to_train=False)
        except DataError as error:
            raise DataError(f"{error}; if the files have moved, say where they are with --data-path") from None
        now = materials.fingerprints()
        changed = [name.replace("_", " ") for name, digest in now.items() if then.get(name) != digest]
        if isinstance(config.pairs, str) and changed == ["held out pairs"]:  # which nothing was trained on
            warnings.warn(
                f"the held-out pairs of {home.path} are others than when it was trained: what is told of them is of "
                "those there are now",
                stacklevel=3,  # beyond `usual_defaults`
            )
        elif changed:
            of_pairs = isinstance(config.pairs, str) and all("pairs" in name for name in changed)
            raise FolderError(
                f"what {home.path} was trained on has changed since: {', '.join(changed)}. Give the files of then with "
                f"{'--pairs' if of_pairs else '--data-path'}, or train again."
            )
        model = materials.model.to(resolve_device(device)).eval()
        try:
            model.load_state_dict(weights)
        except (RuntimeError, TypeError):
            raise home.damaged(home.model) from None
        return cls(config, materials, Outcome(model, rows, result))


def _find_pairs(config: RunConfig, home: RunFolder, started_in: object) -> str:
    """Where the pairs of a run are; DataError where they are nowhere."""
    pairs = str(config.pairs)
    found = find_file(pairs, run=home.path, started_in=started_in)
    beside = Path(config.data_path or "") / pairs  # as `gather` looks for it
    if not (Path(found).expanduser().exists() or beside.exists()):
        raise DataError(f"the pairs {pairs} of the run in {home.path} are not here; say where they are with --pairs")
    return found


@usual_defaults()
def fit(
    model: nn.Module | str | None = None,
    data: ImageTable | Mapping[str, Sequence[Any]] | str | Path = "colored_fashion",
    pairs: PairSet | Pairs | int | str | Path | None = None,
    *,
    method: str = "ipg",
    held_out: PairSet | Pairs | None = None,
    folder: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Run:
    """Train a classifier and return the finished run.

    Args:
        model: a network of your own with a linear head, or the name of one; what suits the data where not given.
        data: your images as tensors by split, `{"train": (images, labels), "test": (images, labels)}` with attributes
            for a third where they are known (`ipg.data.tensors`), or a torch data set for each split; as an
            `ImageTable`; a folder or table of them; or the name of a data set.
        pairs: your invariance pairs, of training images, their folder or manifest, or how many to build.
        method: `ipg`, or another of `ipg methods`.
        held_out: pairs of validation images to measure disagreement on. They are built where the data has a name;
            for data of your own give them, or ask for some with `held_out_pairs`.
        folder: where to keep the run, so that it can be resumed; nowhere if not given.
        listeners: who is told of its progress.
        settings: any further field of `ipg.config.RunConfig`, e.g. `epochs=10, alpha=0.2`.
    """
    _check_kind("model", model, (nn.Module, str, NoneType), "an nn.Module, or the name of a model")
    kinds = 'tensors by split, {"train": (images, labels), "test": (images, labels)}, the name of a data set, or a path'
    _check_kind("data", data, (ImageTable, Mapping, str, Path), kinds)
    kinds = "ipg.Pairs(first, second, label), an ipg.PairSet, their folder, or how many to build"
    _check_kind("pairs", pairs, (PairSet, Pairs, int, str, Path, NoneType), kinds)
    _check_kind("held_out", held_out, (PairSet, Pairs, NoneType), "ipg.Pairs(first, second, label) or an ipg.PairSet")
    data = table_of(data) if isinstance(data, Mapping) else data
    pairs = _set_of(pairs, "pairs", "train") if isinstance(pairs, Pairs) else pairs
    held_out = _set_of(held_out, "held_out", "validation") if isinstance(held_out, Pairs) else held_out
    values: dict[str, Any] = {"method": method, **settings}
    if isinstance(model, str):
        values["model"] = model
    if isinstance(data, str | Path):
        values["data"] = str(data)
    else:
        values.setdefault("held_out_pairs", 0)
    if pairs is not None:
        values["pairs"] = 0 if isinstance(pairs, PairSet) else pairs if isinstance(pairs, int) else str(pairs)
    if held_out is not None:
        values["held_out_pairs"] = 0
    config = as_started(RunConfig.from_mapping(values))
    own = model if isinstance(model, nn.Module) else None
    materials = gather(config, table=data if isinstance(data, ImageTable) else None, model=own)
    config, materials = _with_own(config, materials, model, pairs, held_out)
    where = Path(folder) if folder is not None else None
    run = Run(config, materials, train(config, materials, folder=where, listeners=listeners))
    if (restarts := run.result.get("restarted", 0)) and not listeners:
        asked = run.result["config"]["learning_rate"]
        last = rate_after(asked, restarts)
        warnings.warn(
            f"training collapsed and began again {times(restarts)}, with a learning rate of {last:g} in the place of "
            f"{asked:g}; restarts=0 ends such a run",
            stacklevel=3,  # beyond `usual_defaults`
        )
    return run


def _check_kind(name: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    if not isinstance(value, kinds):
        raise ValueError(f"{name} is a {type(value).__name__}; expected {expected}")


def _set_of(pairs: Pairs, name: str, split: str) -> PairSet:
    """A batch of pairs as a set of them; where its images come from is not known."""
    first, second = as_bytes(pairs.first, f"{name}.first"), as_bytes(pairs.second, f"{name}.second")
    if same := int((first == second).flatten(1).all(dim=1).sum()):
        warnings.warn(
            f"{same} of {len(pairs)} {name} show the same image twice and teach nothing: leave them out",
            stacklevel=4,  # beyond `fit` and `usual_defaults`
        )
    nowhere = torch.full((len(pairs), 2), -1)
    return PairSet(first, second, pairs.label.cpu().long(), nowhere, split=split, builder="own")


def _with_own(
    config: RunConfig,
    made: Materials,
    model: nn.Module | str | None,
    pairs: PairSet | int | str | Path | None,
    held_out: PairSet | None,
) -> tuple[RunConfig, Materials]:
    """What the caller gave in the place of what was made, and a configuration that says so."""
    kind = method_class(config.method)
    settings: dict[str, Any] = {} if made.named else {"data": made.table.name}
    given: dict[str, Any] = {}
    if isinstance(model, nn.Module):
        _check_network(model, made.table)
        given["model"] = model
        settings["model"] = type(model).__name__
    if isinstance(pairs, PairSet) and "pairs" in kind.needs:
        given["pairs"] = _seen(pairs, "pairs", kind)
        settings |= {"pairs": len(pairs), "pair_builder": pairs.builder}
    if held_out is not None:
        given["held_out"], settings["held_out_pairs"] = _seen(held_out, "held_out", kind), len(held_out)
    return config.with_changes(**settings), replace(made, **given, named=made.named and not given)


def _seen(pairs: PairSet, name: str, kind: type[Method]) -> PairSet:
    """The caller's pairs as the method sees them."""
    if pairs.first.dtype != torch.uint8 or pairs.second.dtype != torch.uint8:
        raise ValueError(f"{name} must hold uint8 images, as the data does; these are {pairs.first.dtype}")
    return pairs.map(kind.transform)


def _check_network(model: nn.Module, table: ImageTable) -> None:
    """Say at once what training would stumble over: a network that does not fit the images or the classes."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no parameter to train: every one is frozen (requires_grad=False)")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    shape = tuple(table.images.shape[1:])
    try:
        with evaluating(model):
            logits = logits_of(model(table.images[:1].to(device).float() / 255))
    except RuntimeError as error:
        raise ValueError(f"{type(model).__name__} does not take images of shape {shape}: {error}") from error
    if logits.shape != (1, table.num_classes):
        raise ValueError(
            f"{type(model).__name__} gives an image logits of shape {tuple(logits.shape[1:])}; {table.name} has "
            f"{table.num_classes} classes ({', '.join(table.classes)}) and needs one for each"
        )
