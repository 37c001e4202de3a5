"""What a run works on, made from names or given as objects: the data, the pairs, the network."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ipg.config import RunConfig
from ipg.data.load import load
from ipg.data.reading import Reading
from ipg.data.remembering import recalled
from ipg.data.table import ImageTable
from ipg.evaluation.features import features
from ipg.methods import method_class
from ipg.models import build_model
from ipg.models.build import check_named
from ipg.models.loading import check_there
from ipg.pairs.build import build
from ipg.pairs.pairset import PairSet
from ipg.seeds import derive_seed
from ipg.training.device import numerics, resolve_device
from ipg.training.start import start_from

__all__ = ["Materials", "found_file", "gather", "suited_model"]


PHOTOGRAPH = 64
"""From as many pixels a side on images are taken for photographs, for which the small networks were not made."""


@dataclass(frozen=True)
class Materials:
    """Data, pairs and network of a run, as the method is to see them."""

    table: ImageTable
    model: nn.Module
    pairs: PairSet | None = None
    """Pairs of training images, which guide."""
    held_out: PairSet | None = None
    """Pairs of validation images, which measure."""
    named: bool = False
    """Whether all of it comes from names in a configuration, and so can be made again from there."""
    masks: Tensor | None = None
    """Where every training image shows what counts, (n, 1, H, W) of uint8, empty where that is unknown."""
    make_network: Callable[[], nn.Module] | None = None
    """How `model` was made, its random part from torch's default generator; to be taken out where another is put in."""

    def __post_init__(self) -> None:
        for name, pairs, split in (("pairs", self.pairs, "train"), ("held_out", self.held_out, "validation")):
            if pairs is None:
                continue
            if pairs.split != split:
                raise ValueError(f"{name} must come from the {split} split, these are from {pairs.split!r}")
            if pairs.first.shape[1:] != self.table.images.shape[1:]:
                raise ValueError(
                    f"{name} hold images of shape {tuple(pairs.first.shape[1:])}, "
                    f"the data images of shape {tuple(self.table.images.shape[1:])}"
                )
            if len(pairs) and not 0 <= int(pairs.label.min()) <= int(pairs.label.max()) < self.table.num_classes:
                raise ValueError(
                    f"{name} have labels {int(pairs.label.min())}…{int(pairs.label.max())}, "
                    f"the data 0…{self.table.num_classes - 1}"
                )

        wanted = (len(self.table.indices("train")), 1, *self.table.images.shape[2:])
        if self.masks is not None and (self.masks.shape != wanted or self.masks.dtype != torch.uint8):
            raise ValueError(
                f"masks must be uint8 of shape {wanted}, one for each training image, got {self.masks.dtype} "
                f"{tuple(self.masks.shape)}"
            )

    def to(self, device: torch.device, *, resident: float = 1.0, network: bool = True) -> Materials:
        """Everything on `device`; the network is moved in place, if at all.

        The images of the table stay where they are if they would take more than the share `resident` of a GPU's free
        memory; they are then streamed.
        """
        return replace(
            self,
            table=self.table.to(device, images=_fits(self.table.images, device, resident)),
            model=self.model.to(device) if network else self.model,
            pairs=self.pairs.to(device) if self.pairs is not None else None,
            held_out=self.held_out.to(device) if self.held_out is not None else None,
            masks=self.masks.to(device) if self.masks is not None else None,
        )

    def transformed(self, transform: Callable[[Tensor], Tensor]) -> Materials:
        """The same with every image passed through `transform`."""
        return replace(
            self,
            table=replace(self.table, images=transform(self.table.images)),
            pairs=self.pairs.map(transform) if self.pairs is not None else None,
            held_out=self.held_out.map(transform) if self.held_out is not None else None,
        )

    def fingerprints(self) -> dict[str, str | None]:
        """Digests of the content, so that a run notices when its data or the shape of its network has changed."""
        table = self.table
        shape = [(name, tuple(value.shape), value.dtype) for name, value in self.model.state_dict().items()]
        return {
            "network": hashlib.sha256(repr(shape).encode()).hexdigest()[:16],
            "table": _digest(table.images, table.label, table.attribute, table.split, table.environment),
            "pairs": _pairs_digest(self.pairs),
            "held_out_pairs": _pairs_digest(self.held_out),
            **({} if self.masks is None else {"masks": _digest(self.masks)}),
        }


def _fits(images: Tensor, device: torch.device, share: float) -> bool:
    """Whether `images` may lie on `device`."""
    if device.type != "cuda":
        return True
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # kept for what comes next
    return images.nbytes <= share * (torch.cuda.mem_get_info(device)[0] + unused)


def gather(
    config: RunConfig,
    *,
    table: ImageTable | None = None,
    model: nn.Module | None = None,
    masks: Tensor | None = None,
    to_train: bool = True,
) -> Materials:
    """Load the data, build the pairs and make the network that `config` names; no global generator is touched.

    What is given is taken as it is: a `table`, the `model` of a run that is read back, or the `masks` of the training
    images, for methods that need some. They are looked for only where there is something `to_train`.
    """
    kind = method_class(config.method)
    named = table is None
    if config.start is not None and model is None:  # before the data are read, which may take long
        check_there(found_file(config, config.start))
    if table is None:
        table = load(
            config.data,
            path=config.data_path,
            size=config.size,
            seed=config.seed,
            reading=Reading.of(config),
            before=partial(_check_first, config, network=model is None) if to_train else None,
        )
    guided = "pairs" in kind.needs
    if isinstance(config.pairs, str):
        made = _read_pairs(config, table, guided=guided)
    else:
        made = _pairs(config, table, {"train": config.pairs if guided else 0, "validation": config.held_out_pairs})
    make = None
    if model is None:
        images = kind.transform(table.images[:1])
        make = _maker(config, table, images)
        model = _network(config, table, images, make)
    if masks is None and to_train:
        masks = kind.regions(config.with_changes(masks=config.masks and found_file(config, config.masks)), table)
    found = Materials(table, model, made.get("train"), made.get("validation"), named, masks, make)
    return found.transformed(kind.transform)


def _check_first(config: RunConfig, side: int, *, network: bool) -> None:
    """Mistakes that show before image files are decoded to such a side; `network`: it is made here."""
    from ipg.pairs.manifest import check_usable

    if network and config.start is None:
        check_named(config.model or _suited(side), config.weights and found_file(config, config.weights))
    if isinstance(config.pairs, str):
        check_usable(found_file(config, config.pairs), side)
    elif config.pairs and config.pair_builder == "recolored" and "pairs" in method_class(config.method).needs:
        raise _not_recolored(config, 3)  # as files are decoded


def _network(config: RunConfig, table: ImageTable, images: Tensor, make: Callable[[], nn.Module] | None) -> nn.Module:
    """The network that `config` names, for such `images` (1, C, H, W): a new one, or one to go on from."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(config.seed, "model"))
        if make is not None:
            return make()
        return start_from(config.with_changes(start=found_file(config, str(config.start))), images, table.classes)


def _maker(config: RunConfig, table: ImageTable, images: Tensor) -> Callable[[], nn.Module] | None:
    """Makes new networks as `config` names them, for such `images` (1, C, H, W); None where one is gone on from."""
    if config.start is not None:
        return None
    return partial(
        build_model,
        config.model or suited_model(table),
        channels=images.shape[1],
        classes=table.num_classes,
        weights=config.weights and found_file(config, config.weights),
        normalization=config.normalization,
        freeze=config.freeze,
        size=images.shape[-1],
    )


def suited_model(table: ImageTable) -> str:
    """The network for images of this size."""
    return _suited(int(table.images.shape[-1]))


def _suited(size: int) -> str:
    if size >= PHOTOGRAPH:
        raise ValueError(
            f"images of {size} pixels need a network of their kind: name one of timm's and its weights, e.g. "
            f"--model resnet50 --weights pretrained; for a first look a small network of our own does: --size 32"
        )
    return "small_cnn" if size < 28 else "mnist_cnn"


def found_file(config: RunConfig, file: str) -> str:
    """A file as it is named, or else as it is named beside the data; so a study means the same on every machine."""
    if config.data_path is None or Path(file).exists():
        return file
    beside = Path(config.data_path) / file
    return str(beside) if beside.exists() else file


def _read_pairs(config: RunConfig, table: ImageTable, *, guided: bool) -> dict[str, PairSet]:
    """The pairs of the file that `config` names, those of the training and those of the validation split."""
    file = found_file(config, str(config.pairs))
    made = {split: _recalled_pairs(file, table, split) for split in ("train", "validation")}
    if not guided:
        made.pop("train")
    held_out = made["validation"]
    made["validation"] = held_out.take(torch.arange(min(len(held_out), config.held_out_pairs)))
    return {split: pairs for split, pairs in made.items() if len(pairs)}


def _recalled_pairs(file: str, table: ImageTable, split: str) -> PairSet:
    """The pairs of a file, which are read once where tables are."""
    from ipg.pairs.manifest import load_pairs

    key = ("pairs", file, split, id(table))
    read = partial(load_pairs, file, table, split=split)
    return recalled(key, lambda: (read(), table), lambda found: 2 * found[0].first.nbytes)[0]  # which keeps its id


def _pairs(config: RunConfig, table: ImageTable, wanted: Mapping[str, int]) -> dict[str, PairSet]:
    """As many pairs of the images of each split as are wanted; none of a split without images."""
    counts = {s: n for s, n in wanted.items() if n and s in table.splits and len(table.indices(s))}
    if config.pair_builder == "recolored" and table.images.shape[1] != 2:
        if "train" in counts:
            raise _not_recolored(config, table.images.shape[1])
        return {}  # plain training, and nothing to measure disagreement on
    known = _oracle_features(config, table, list(counts)) if counts and config.pair_builder == "closest" else {}
    return {
        split: build(
            config.pair_builder,
            table,
            count,
            split=split,
            seed=derive_seed(config.seed, "pairs", split),
            features=known.get(split),
        )
        for split, count in counts.items()
    }


def _not_recolored(config: RunConfig, channels: int) -> ValueError:
    """That pairs have to be given where images have more than two colours, and how."""
    return ValueError(
        f"method {config.method!r} needs pairs, which cannot be made by swapping colours of images with {channels} "
        f"channels: make a folder of them and give it as --pairs, e.g. {_builds(config)}; or in Python "
        f"pairs=ipg.Pairs(first, second, label)"
    )


def _builds(config: RunConfig) -> str:
    """The command that makes a folder of pairs of the data that `config` names."""
    plain = RunConfig()
    data = "DATA" if config.data == plain.data else config.data  # whose images are others than the caller's
    names = ("data_path", "size", "split_seed", "path_column", "label_column", "attribute_column")
    differing = [name for name in names if getattr(config, name) != getattr(plain, name)]
    given = [text for name in differing for text in (f"--{name.replace('_', '-')}", str(getattr(config, name)))]
    words = ["--data", data, *given, "--masks", "MASKS", "--count", str(config.pairs), "--output", "pairs"]
    return shlex.join(["ipg", "pairs", "build", "background", *words])


def _oracle_features(config: RunConfig, table: ImageTable, splits: Sequence[str]) -> dict[str, Tensor]:
    """Features (n, D) of the images of each split from a network trained without colour, as *closest* needs.

    The training is deterministic, so that a run which is begun again finds the same pairs.
    """
    from ipg.training.distributed import Team
    from ipg.training.interrupt import Interrupted, late_request
    from ipg.training.loop import train

    plain = config.with_changes(
        method="oracle", options={}, held_out_pairs=0, pair_builder="recolored", selection="last", deterministic=True
    )
    plain = plain.with_changes(start=None)  # which takes coloured images
    with late_request() as late:
        outcome = train(plain, gather(plain, table=table), evaluate_on=())
    if any(Team().agree(late.made)):
        raise Interrupted("stopped before the pairs were found")
    device = resolve_device(config.device)
    look = method_class("oracle").transform
    with numerics(plain, device):
        return {split: features(outcome.model, look(table.part(split).images)).cpu() for split in splits}


def _digest(first: Tensor, *columns: Tensor) -> str:
    digest = _begun(first).copy()
    for column in columns:
        _add(digest, column)
    return str(digest.hexdigest()[:16])


_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Digests of tensors, with the version of each, for as long as they live: to read all of a data set takes a while."""


def _begun(column: Tensor) -> Any:
    """The digest of a column, to which others may be added."""
    version = None if column.is_inference() else column._version  # inference tensors do not count their changes
    if version is not None and column in _KNOWN and _KNOWN[column][0] == version:
        return _KNOWN[column][1]
    digest = hashlib.sha256()
    _add(digest, column)
    if version is not None:
        _KNOWN[column] = (version, digest)
    return digest


def _add(digest: Any, column: Tensor) -> None:
    digest.update(repr((tuple(column.shape), column.dtype)).encode())
    digest.update(column.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())  # its bytes, not copied


def _pairs_digest(pairs: PairSet | None) -> Any:
    return None if pairs is None else _digest(pairs.first, pairs.second, pairs.label)
