"""What a run is made of: one frozen, flat configuration. The string under a field is its help on the command line.

Importing this module is cheap: no torch.
"""

from __future__ import annotations

import ast
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from ipg.coercion import coerce
from ipg.words import did_you_mean

__all__ = [
    "AUTO", "CHOICES", "EARLIER", "ELSEWHERE", "MARGIN", "OPTIONS", "PANELS", "TRAINED_RATE", "ConfigError",
    "RunConfig", "earlier", "field_help", "load_config", "read_toml", "setting_meant",
]  # fmt: skip

if TYPE_CHECKING:
    Rate = float  # which they are in all that trains: `RunConfig.suited` comes first
    Share = float
    Switch = bool
else:
    Rate = Share = float | Literal["auto"]
    Switch = bool | Literal["auto"]
AUTO: Any = "auto"
"""The default of settings that follow from others; `RunConfig.suited` says how."""


class ConfigError(ValueError):
    """One or more mistakes in a configuration, all named in the message."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the outcome of one training run."""

    data: str = "colored_fashion"
    """Data set: colored_fashion (embedded), colored_mnist, waterbirds100, … (`ipg data list` shows all), or the path of
    a folder, zip or table of your own images."""
    data_path: str | None = None
    """Where its files are, for data sets that are not embedded: for ColoredMNIST a folder of idx files or an npz, for
    others the folder that holds the release."""
    size: int | None = None
    """Side of the images in pixels; by default the data set's own."""
    path_column: str = "path"
    """Column of your own table that names the images."""
    label_column: str = "label"
    """Column of your own table that holds the class."""
    attribute_column: str = "attribute"
    """Column of your own table that holds what must not matter; optional."""
    environment_column: str = "environment"
    """Column of your own table that holds where an image comes from, e.g. the hospital, for methods that compare
    environments; optional."""
    split_seed: int = 0
    """Seed that draws the split of your own images if they have none; it is the same for runs of every --seed."""

    model: str | None = None
    """Network: mnist_cnn, small_cnn, linear, … (docs/models.md) or a name of timm's, e.g. resnet50; by default the one
    that suits the data."""
    weights: str | None = None
    """Weights it starts from: a safetensors or pth file, or pretrained for those that timm offers; by default random
    ones."""
    start: str | None = None
    """Trained network to continue from, with its head: the folder of a run, a file of weights, or timm:…,
    torchvision:…, hf:…, python:… (docs/models.md). Replaces --weights, and --model as well unless it is a file of bare
    weights, which does not name its network."""
    normalization: str | None = None
    """Mean and spread its weights expect: imagenet, half, none or M,M,M/S,S,S; by default what the weights say."""
    masks: str | None = None
    """Masks of the objects in training images, for methods that need them (epg, gals_mask): a folder or zip of images
    named like those of the data, white on the object."""
    freeze: bool = False
    """Train only the head and keep the rest of the network as it is."""

    method: str = "ipg"
    """Training method: ipg, erm, groupdro, irm, … (`ipg methods` lists and describes them)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """An option of the method itself, as NAME=VALUE; may be repeated (`ipg methods NAME` lists them)."""

    epochs: int = 6
    """Passes over the training images."""
    steps: int | None = None
    """Iterations per epoch, over as many passes as that takes; by default one pass. With a batch of all images each is
    a step of full-batch descent."""
    batch: int = 128
    """Task images per iteration."""
    learning_rate: Rate = AUTO
    """Peak learning rate: a number, or auto: 1e-4 for a network that starts from weights, 3e-3 for a fresh one or if
    only the head is trained; with --from a run, that run's, but no more than 1e-4 if it started from weights."""
    schedule: str = "cosine"
    """constant, cosine decay to zero, or step (a tenth in the second half)."""
    warmup: int = 0
    """Iterations of linear warm-up; a few hundred help if the first corrections are large."""
    optimizer: str = "adam"
    """adam, adamw or sgd (momentum 0.9)."""
    weight_decay: float = 0.0
    """Weight decay. It acts in each update, and a guided iteration that corrects makes two."""
    crop: Share = AUTO
    """Smallest share of an image that a random crop keeps; the same crop for both members of a pair. auto: 0.7 for a
    network that starts from weights, 1 (no crop) for a fresh one or if only the head is trained; with --from a run of
    a fresh network crop and flip are that run's."""
    flip: Switch = AUTO
    """Mirror every second image at random; both members of a pair or none. auto: yes for a network that starts from
    weights, no for a fresh one or if only the head is trained. Give --no-flip where a mirrored image is another one
    (digits, text)."""
    class_weighted: bool = True
    """Weight the cross-entropy by the inverse frequency of the classes."""

    pairs: int | str = 40
    """Training pairs: how many to make (a few dozen are often enough), for data in two colours (colored_fashion,
    colored_mnist); for all other data their folder or manifest (`ipg pairs build` makes it)."""
    pair_builder: str = "recolored"
    """How pairs are made where --pairs is a number: recolored (the same image in the other colour), random (any two of
    one label whose attributes differ, of any data) or closest (two similar ones)."""
    pair_batch: int = 32
    """Pairs per correction."""
    held_out_pairs: int = 200
    """Pairs made from validation images, to measure disagreement on; never trained on. If --pairs is a file, its
    pairs of the validation split are used, up to this many."""
    alpha: float = 0.1
    """Length of the task gradient, as a share of the correction's, while the condition is violated (see tau). Raise it
    only when the task signal is weak: when the training loss hardly falls."""
    tau: float = 0.0
    """The condition is that fewer than this share of pairs disagree, i.e. get two answers. While it is violated, with 0
    always, alpha sets the length of the task gradient; while it is met, the gradient is only clipped. The paper raises
    tau when pairs may mislead; in our runs that did not help."""
    margin: str = "auto"
    """Distance kept between classes: a number as in the paper, a multiple of the first mean distance such as 0.5x, or
    auto: 0.85x."""
    every: int | Literal["auto"] = 4
    """Correct at every k-th iteration; the paper has 1. Keep every * alpha below 1. auto corrects at every iteration
    while pairs disagree and less and less often while they agree, within that bound."""
    floor: float = 1e-3
    """The paper's epsilon: the smallest length the task gradient is clipped to when the condition is met."""
    batch_norm: str = "auto"
    """BatchNorm statistics, for any method: train (updated by task and pair batches), eval (kept), or auto: eval for a
    network that starts from weights, train for a fresh one."""
    distance: str = "rationale"
    """What pairs are compared by: rationale (the method), features or logits."""
    strict: bool = False
    """Count the condition as violated when disagreement > tau instead of >= tau."""
    jitter: float = 0.0
    """Ours: noise in the uniformity term, as a share of the margin, that frees collapsed rationales."""
    restarts: int = 3
    """Ours: how often a run that collapses may start again, each time with half the learning rate. 0 ends it there,
    as studies and searches do unless told otherwise."""

    selection: str = "last"
    """Epoch to keep: last, training_environments, worst_group (needs group labels) or pairs (needs none)."""
    decision: str = "argmax"
    """Where the line between classes is drawn: argmax, or moved after each epoch to suit the worst_group of the
    validation images (needs group labels) or the mean of their classes (balanced). The biases of the head store it."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: str = "auto"
    """fp32, tf32 (fp32 with TF32 matrix products) or bf16 (autocast); auto is bf16 on GPUs that have it, else fp32."""
    engine: str = "auto"
    """How iterations run: eager, captured (on a GPU, each a CUDA graph) or compiled (the same with a compiled network,
    which takes a minute more before the first iteration; on a CPU mnist_cnn and small_cnn with kernels of their own,
    which takes seconds more); auto is captured on a GPU and eager elsewhere."""
    shard: bool = False
    """With several processes (torchrun), let each hold only a part of the weights, gradients and optimizer states, for
    large networks (FSDP2, docs/scale.md); otherwise each holds all of them."""
    resident: float = 0.5
    """Share of the GPU's free memory that images may take; a larger data set is streamed."""
    deterministic: bool = False
    """On a GPU: use only deterministic kernels, so that a run ends with the same bits if resumed or repeated."""

    def __post_init__(self) -> None:
        self._settle(_kinds())

    def _settle(self, names: Iterable[str]) -> None:
        if problems := list(self._problems(names)):
            raise ConfigError(problems)

    def _problems(self, names: Iterable[str]) -> Iterator[str]:
        """Bring the named fields to their types and ranges; what cannot be is a problem."""
        for name in names:
            given = getattr(self, name)
            try:
                value = coerce(given, _kinds()[name])
                _check(name, value)
            except ValueError as error:
                yield f"{name}={given!r}: {error}"
            else:
                object.__setattr__(self, name, value)

    def suited(self) -> RunConfig:
        """The same, with what `auto` stands for; `every` and settings of the machine stay.

        What a run that is gone on from has to say, `ipg.training.start.as_started` has put in before.
        """
        trained = self.weights is not None or self.start is not None
        whole = trained and not self.freeze
        meant: dict[str, Any] = {
            "margin": MARGIN,
            "batch_norm": "eval" if trained else "train",
            "learning_rate": TRAINED_RATE if whole else FRESH_RATE,
            "crop": TRAINED_CROP if whole else FRESH_CROP,
            "flip": TRAINED_FLIP if whole else FRESH_FLIP,
        }
        return self.with_changes(**{name: value for name, value in meant.items() if self.is_auto(name)})

    def iterations(self, images: int) -> int:
        """How many iterations a run on so many training images makes, unless its method draws more or fewer of them."""
        return self.epochs * (self.steps or math.ceil(images / self.batch))

    def is_auto(self, name: str) -> bool:
        """Whether a setting is left to follow from others."""
        return bool(getattr(self, name) == AUTO)

    def as_before(self, saved: Mapping[str, Any]) -> RunConfig:
        """The same, with what it leaves to `auto` as in `saved` where that was made before it could be (`EARLIER`)."""
        known = earlier(vars(self))
        had = {name: value for name, value in known.items() if self.is_auto(name) and saved.get(name, value) == value}
        meant = self.suited()
        return self.with_changes(**{name: value for name, value in had.items() if getattr(meant, name) != value})

    def flat(self) -> dict[str, Any]:
        """All fields as one level of plain values, the method's own options among them: for result rows."""
        meant = self.suited()
        values: dict[str, Any] = {field.name: getattr(meant, field.name) for field in fields(meant)}
        options: dict[str, Any] = values.pop("options")
        if not meant.margin.endswith("x"):
            values["margin"] = float(meant.margin)
        return values | options

    def with_changes(self, **changes: Any) -> RunConfig:
        """The same configuration with some fields changed; the others are not looked at again."""
        if unknown := changes.keys() - _kinds().keys():
            raise TypeError(f"a configuration has no {', '.join(sorted(unknown))}")
        made = copy(self)
        vars(made).update(changes)
        made._settle(changes)
        return made

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, base: RunConfig | None = None) -> RunConfig:
        """Build from plain values (a TOML file, flags), over `base` where it is given; all mistakes at once."""
        names = [field.name for field in fields(cls)]
        problems: list[str] = []
        for name in values:
            if name not in names:
                hint = OF_METHODS if name in OPTIONS else NO_SETTINGS.get(name) or setting_meant(name, names)
                problems.append(f"unknown key {name!r}" + (f"; {hint}" if hint else ""))
        try:
            config = replace(base or cls(), **{name: value for name, value in values.items() if name in names})
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return config


ELSEWHERE = {
    "lr": "learning_rate", "wd": "weight_decay", "bs": "batch", "amp": "precision", "autocast": "precision",
    "from": "start",
}  # fmt: skip
"""What settings are often called elsewhere, or on the command line."""


def setting_meant(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME?` of the nearest of the `known` settings, by what it is called elsewhere as well."""
    return did_you_mean(ELSEWHERE.get(name, name), known)


NO_SETTINGS = {
    "output": "the folder of a run is --output on the command line and folder= in ipg.fit",
    "head": "runs find it where it is called head, fc or classifier, or is what get_classifier() returns",
    "scaler": "runs have no fp16 and need none; ipg.Guidance takes one",
}
"""What is often taken for a setting."""
OPTIONS = frozenset((
    "adjustment", "amplification", "anneal", "annotated", "attached", "attribution", "augment", "average", "clip",
    "copies", "divide", "draws", "evidence", "factor", "first_epochs", "form", "inner_rate", "judge", "l2", "loss",
    "mean", "memory", "momentum", "network", "order", "outer", "outside", "pace", "penalty", "policy", "prompts",
    "ramp", "rank", "region", "restart", "share", "spread", "standardised", "step_size", "temperature", "tolerance",
    "transferred", "weight", "weight_before",
))  # fmt: skip
"""All that methods have for themselves, named here since to ask them is to load torch."""
OF_METHODS = "options of a method's own stand under options, on the command line behind -o"

CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": ("constant", "cosine", "step"),
    "optimizer": ("adam", "adamw", "sgd"),
    "batch_norm": ("auto", "train", "eval"),
    "distance": ("rationale", "features", "logits"),
    "selection": ("last", "training_environments", "worst_group", "pairs"),
    "decision": ("argmax", "worst_group", "balanced"),
    "device": ("auto", "cpu", "cuda", "mps"),
    "precision": ("auto", "fp32", "tf32", "bf16"),
    "engine": ("auto", "eager", "captured", "compiled"),
}
"""Fields with a fixed set of values."""

_RANGES: dict[str, tuple[Any, str]] = {
    "size": (lambda v: v >= 1, "at least 1 pixel"),
    "epochs": (lambda v: v >= 1, "at least 1"),
    "steps": (lambda v: v >= 1, "at least 1"),
    "batch": (lambda v: v >= 1, "at least 1"),
    "learning_rate": (lambda v: v == "auto" or v > 0, "a positive number, or auto"),
    "warmup": (lambda v: v >= 0, "at least 0 iterations"),
    "weight_decay": (lambda v: v >= 0, "at least 0"),
    "pairs": (lambda v: isinstance(v, str) or v >= 0, "at least 0, or a file"),
    "crop": (lambda v: v == "auto" or 0 < v <= 1, "a share of the image, above 0 and up to 1, or auto"),
    **dict.fromkeys(
        ("path_column", "label_column", "attribute_column", "environment_column"), (bool, "the name of a column")
    ),
    "resident": (lambda v: 0 <= v <= 1, "a share, from 0 to 1"),
    "pair_batch": (lambda v: v >= 1, "at least 1"),
    "held_out_pairs": (lambda v: v >= 0, "at least 0"),
    "alpha": (lambda v: 0 <= v < 1, "0 <= alpha < 1"),
    "tau": (lambda v: 0 <= v <= 1, "0 <= tau <= 1, a share of the pairs"),
    "every": (lambda v: v == "auto" or v >= 1, "at least 1 iteration, or auto"),
    "floor": (lambda v: v > 0, "a positive number"),
    "jitter": (lambda v: v >= 0, "at least 0"),
    "restarts": (lambda v: v >= 0, "at least 0"),
    "seed": (lambda v: 0 <= v < 2**63, "a whole number from 0 to 2**63 - 1"),
    "split_seed": (lambda v: 0 <= v < 2**63, "a whole number from 0 to 2**63 - 1"),
}

PANELS: dict[str, tuple[str, ...]] = {
    "Data and model": (
        "data", "data_path", "size", "path_column", "label_column", "attribute_column", "environment_column",
        "split_seed", "model", "weights", "start", "normalization", "masks", "freeze",
    ),
    "Method": ("method", "options"),
    "Pairs and guidance": (
        "pairs", "pair_builder", "pair_batch", "held_out_pairs", "alpha", "tau", "margin", "every", "floor",
        "batch_norm", "distance", "strict", "jitter", "restarts",
    ),
    "Training": (
        "epochs", "steps", "batch", "learning_rate", "schedule", "warmup", "optimizer", "weight_decay", "crop", "flip",
        "class_weighted", "selection", "decision", "seed",
    ),
    "Machine": ("device", "precision", "engine", "shard", "resident", "deterministic"),
}  # fmt: skip
"""The fields in the groups that `--help` shows them in."""


FRESH_RATE, TRAINED_RATE = 3e-3, 1e-4
FRESH_CROP, TRAINED_CROP = 1.0, 0.7
FRESH_FLIP, TRAINED_FLIP = False, True
"""What `auto` stands for: for a fresh network, or one of which the head alone is trained, and for one that starts from
weights. Say it in the help above, too."""
MARGIN = "0.85x"
"""What it stands for as the margin, of all networks."""

EARLIER: dict[str, Any] = {"crop": 1.0, "flip": False}
"""What settings that may be `auto` now were before they could be, where nothing was said of them: in runs of that time,
and in files of trials, whose meaning stays (`ipg.experiments.study.arm_trials`)."""

LARGEST_FILE = 16 << 20
"""Bytes of a file of settings; a device or a mistaken file may have no end."""


def earlier(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`EARLIER`, and what `auto` was as the margin, by where the network starts."""
    fresh = settings.get("weights") is None and settings.get("start") is None
    return EARLIER | {"margin": "0.5x" if fresh else "0.85x"}


def _check(name: str, value: Any) -> None:
    """ValueError says what was expected where `value` is out of the field's range."""
    if name in CHOICES and value not in CHOICES[name]:
        raise ValueError(f"expected one of {', '.join(CHOICES[name])}")
    if name in _RANGES and value is not None:
        test, expected = _RANGES[name]
        if not (isinstance(value, str) or abs(value) < math.inf) or not test(value):
            raise ValueError(f"expected {expected}")
    if name == "margin" and value != "auto":
        try:
            good = 0 <= float(value.removesuffix("x")) < math.inf
        except ValueError:
            good = False
        if not good:
            raise ValueError('expected a number, at least 0, a multiple such as "0.5x", or auto')


def load_config(path: Path, *, overrides: Mapping[str, Any] | None = None, base: RunConfig | None = None) -> RunConfig:
    """Read a configuration from a TOML file; `overrides` win over it, and it wins over `base`."""
    values = read_toml(path, "configuration file")
    given = dict(overrides or {})
    config = base or RunConfig()
    problems: list[str] = []
    for origin, part in ((f"{path}: ", {k: v for k, v in values.items() if k not in given}), ("", given)):
        try:
            config = RunConfig.from_mapping(part, base=config)
        except ConfigError as error:
            problems += [f"{origin}{problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return config


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file; ConfigError where it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ValueError(f"it has more than {LARGEST_FILE:,} bytes")
        return tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError([f"there is no {what} {path}"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path} is not valid TOML: {error}"]) from None


@cache
def _kinds() -> dict[str, Any]:
    """The type of every field of `RunConfig`."""
    return get_type_hints(RunConfig)


@cache
def field_help() -> dict[str, str]:
    """Help of every field of `RunConfig`: the string under it."""
    module = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == "RunConfig")
    found: dict[str, str] = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    missing = {f.name for f in fields(RunConfig)} - set(found)
    if missing:
        raise RuntimeError(f"fields without help: {sorted(missing)}")
    return found
