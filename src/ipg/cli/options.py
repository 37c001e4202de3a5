"""The fields of `RunConfig` as options of a command: type, default and help come from there."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from ipg.config import PANELS, ConfigError, RunConfig, field_help

if TYPE_CHECKING:
    from ipg.experiments.cluster import Cluster
    from ipg.experiments.study import Network as OtherNetwork

__all__ = [
    "MOVED",
    "TIME_IS_OVER",
    "AttributeColumn",
    "ClusterAddress",
    "Cpus",
    "Engine",
    "EnvironmentColumn",
    "Gpus",
    "KnownAttributeColumn",
    "KnownLabelColumn",
    "KnownPathColumn",
    "LabelColumn",
    "Limit",
    "Network",
    "Only",
    "OtherModel",
    "OtherNormalization",
    "OtherWeights",
    "PathColumn",
    "SplitSeed",
    "Workers",
    "check_cluster",
    "cluster_of",
    "data_name",
    "network_of",
    "seconds_of",
    "with_settings",
    "with_settings_but",
]  # fmt: skip

FLAGS = {"start": "--from"}
"""Flags of fields whose name cannot be one in Python."""

MOVED = "Where the data set's files are, or the folder of its table, if they have moved."
"""Help of --data-path for commands that read a run back."""

Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="For a run that started from your own code: the function that makes its network. It is run, and the run's "
        "weights are loaded into what it returns.",
        metavar="python:FILE:FUNCTION",
    ),
]
"""For commands that need no more of a run than its network."""
Engine = Annotated[
    str,
    typer.Option(
        help="How iterations run if a trial does not say: auto, eager, captured, or compiled, which pays off if many "
        "trials have the same small network, on a CPU mnist_cnn or small_cnn."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", help="Only trials with this setting, e.g. seed=0,1; may be repeated.", metavar="NAME=VALUE"),
]
Limit = Annotated[
    str | None, typer.Option(help="Stop after this time (90s, 30m, 2h) and save unfinished trials.", metavar="TIME")
]
OtherModel = Annotated[
    str | None,
    typer.Option("--model", help="Another network for trials that start from weights, e.g. resnet50.", metavar="NAME"),
]
OtherWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Other weights for these trials: a file, here or beside the data, or pretrained.",
        metavar="FILE",
    ),
]
OtherNormalization = Annotated[
    str | None,
    typer.Option(
        "--normalization",
        help="How images are normalised for --weights; by default imagenet if --model is given.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes on this machine; by default one per GPU, or half the cores. More than one per GPU pays off for "
        "small networks if NVIDIA's MPS is available."
    ),
]
ClusterAddress = Annotated[
    str | None, typer.Option("--cluster", help="Run on a Ray cluster: its address, or auto.", metavar="ADDRESS")
]
Cpus = Annotated[float | None, typer.Option(help="With --cluster: cores per trial; 1 by default.")]
Gpus = Annotated[
    float | None,
    typer.Option(help="With --cluster: GPUs per trial; by default 1 if the cluster has any."),
]
"""For commands that run trials."""
TIME_IS_OVER = 75
"""The exit status where `--limit` has left trials: to be tried again, as in sysexits.h."""
SplitSeed = Annotated[int, typer.Option(help=field_help()["split_seed"], min=0)]
PathColumn = Annotated[str, typer.Option(help=field_help()["path_column"])]
LabelColumn = Annotated[str, typer.Option(help=field_help()["label_column"])]
AttributeColumn = Annotated[str, typer.Option(help=field_help()["attribute_column"])]
EnvironmentColumn = Annotated[str, typer.Option(help=field_help()["environment_column"])]
"""How own images are read, for commands that take no other settings."""
KnownPathColumn = Annotated[str | None, typer.Option(help=field_help()["path_column"])]
KnownLabelColumn = Annotated[str | None, typer.Option(help=field_help()["label_column"])]
KnownAttributeColumn = Annotated[str | None, typer.Option(help=field_help()["attribute_column"])]
"""The same for commands on what may say it already: runs, and folders of pairs."""


def check_cluster(address: str | None, cpus: float | None, gpus: float | None, workers: int | None) -> None:
    """Refuse what goes together with no cluster, or with none but this machine."""
    if address is None and (cpus is not None or gpus is not None):
        raise ValueError("--cpus and --gpus say what a trial takes of a cluster; give --cluster, or use --workers")
    if address is not None and workers is not None:
        raise ValueError("--workers is for one machine; on a cluster say with --cpus and --gpus what a trial takes")


def cluster_of(address: str | None, cpus: float | None, gpus: float | None) -> Cluster | None:
    """The cluster that was asked for."""
    from ipg.experiments.cluster import Cluster

    return None if address is None else Cluster(address, 1 if cpus is None else cpus, gpus)


def seconds_of(limit: str | None) -> float | None:
    """The seconds of a `--limit`."""
    if limit is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", limit.strip())
    if found is None or not float(found[1]):
        raise ValueError(f"--limit {limit}: expected a time such as 90s, 30m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def network_of(model: str | None, weights: str | None, normalization: str | None) -> OtherNetwork | None:
    """The network that was asked for in place of the trials' own."""
    from ipg.experiments.study import Network as OtherNetwork

    if weights is None:
        if model is not None or normalization is not None:
            given = "--normalization" if model is None else f"--model {model}"
            raise ValueError(f"{given}: say with --weights where its weights are, a file or pretrained")
        return None
    return OtherNetwork(weights, model, normalization)


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command(*, settings, …)` an option for each field; `settings` holds those the user gave."""
    return with_settings_but()(command)


def with_settings_but(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `with_settings`, for commands that settle the fields `without` by themselves."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [parameter for parameter in own if parameter.name != "settings"]
        shown = [(name, panel) for panel, names in PANELS.items() for name in names if name not in without]
        generated = [_parameter(name, panel) for name, panel in shown]

        @functools.wraps(command)
        def wrapped(**values: Any) -> Any:
            settings = {name: values.pop(name) for name in list(values) if name in field_help()}
            given = {name: value for name, value in settings.items() if value is not None and value != []}
            if "options" in given:
                given["options"] = _own_options(given["options"])
            return command(settings=given, **values)

        wrapped.__signature__ = inspect.Signature([*kept, *generated])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *generated]}
        return wrapped

    return decorate


def data_name(data: str) -> str:
    """What a folder is called after the data in it: the name of a data set, or of the folder or table at a path."""
    path = Path(data).expanduser()
    if ":" in data and not path.exists():  # attributes of one's choice, as in celeba:Smiling/Male
        return re.sub(r"[:/\\]", "-", data)
    place = path.resolve() if path.name in ("", "..") else path
    return (place.name if place.is_dir() else place.stem) or "data"


@functools.cache
def _kinds() -> dict[str, Any]:
    """The types of the fields; to read them takes as long as all the rest of an option."""
    return get_type_hints(RunConfig)


@functools.cache
def _parameter(name: str, panel: str) -> inspect.Parameter:
    """The option of a field, made once for all commands: they take it as it is."""
    kind = _kinds()[name]
    text = field_help()[name]
    flag = FLAGS.get(name) or "--" + name.replace("_", "-")
    if name == "options":
        annotation: Any = list[str] | None
        option = typer.Option("-o", "--option", help=text, rich_help_panel=panel, metavar="NAME=VALUE")
    else:
        plain = next((part for part in get_args(kind) if part is not type(None)), kind)
        annotation = bool | None if plain is bool else str | None  # RunConfig names all wrong values at once
        default = next(f.default for f in fields(RunConfig) if f.name == name)
        if default is not None:
            text += f" [default: {str(default).lower() if plain is bool else default}]"
        flags = f"{flag}/--no-{flag.removeprefix('--')}" if plain is bool else flag
        parts = [part for part in get_args(kind) or (kind,) if part is not type(None)]
        kinds = [name for part in parts for name in get_args(part) or (part.__name__,)]
        metavar = None if plain is bool else f"<{kinds[0]}>" if len(kinds) == 1 else "<value>"  # narrow: the text tells
        option = typer.Option(flags, help=text, rich_help_panel=panel, show_default=False, metavar=metavar)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def _own_options(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ConfigError([f"--option {name!r}: expected NAME=VALUE, e.g. -o order=sum" for name in wrong])
    return {name.strip(): value.strip() for name, _, value in pairs}
