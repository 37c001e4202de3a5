"""What is reproduced: every table and figure of the paper as data, one TOML file each in `reproductions/`.

    title = "Number of pairs"
    paper = "tab:pair-sensitivity"      # its label in the paper
    claim = "…"                         # what the paper says of it
    holds = "in part"                   # whether that holds by our rows, by hand: yes, in part, no or open
    short = "…"                         # the same in a sentence
    seen = ["…", "…"]                   # what our rows say of it, by hand, and why it does not hold where it does not
    metrics = ["average"]               # what is compared; drawn is what keeps epochs, else the first
    figure = "boxes"                    # boxes, costs, grid or none
    alone = true                        # its rows are its own: those of other studies do not count, as where times are
                                        # compared, which have to be measured side by side
    [[arm]]
    name = "{pairs} pairs"              # braces: what `vary` varies
    paper = "IPG, {pairs} pairs"        # the cell of the paper's table, where it has one
    datasets = ["colored_mnist"]
    protocol = "paper"                  # settings by data set: reproduce.toml
    method = "ipg"
    config = { … }                      # over those
    vary = { pairs = [40, 124] }        # every combination is a cell
    folder = "pairs-{pairs}"            # where pairs of photographs are, as here where not given
    network = "resnet50"                # the paper's network in place of MobileNetV2
    needs = "…"                         # what nobody has by default; the network's weights where not given
    study = { name = "…", dataset = "…" }   # in place of config and vary: the arm of a study, whose rows count; with
                                        # config = { … } the one of several that has these settings; with
                                        # datasets = [ … ] in place of dataset the mean over them, seed by seed
    [[quoted]]                          # rows of the paper that are not run
    paper = "NCM"
    needs = "frozen CLIP features"
    [quick]                             # the small version, over what reproduce.toml says of all
    keep = ["selection"]                # settings in which arms keep their own, since they are named for them

Arms become trials as those of a study do. A file with another `kind` is run by the module that knows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ipg.config import AUTO, ConfigError, RunConfig, earlier, read_toml
from ipg.experiments.arms import Figure, published, run_of
from ipg.experiments.study import Network, Study, Trial, arm_trials, find_study, only
from ipg.methods import method_class
from ipg.methods.options import option_defaults
from ipg.words import did_you_mean, listed

__all__ = [
    "Cell", "Reproduction", "chosen", "chosen_datasets", "load_reproduction", "names", "shared", "title_of",
    "with_network",
]  # fmt: skip

FOLDER = Path(__file__).with_name("reproductions")
HOLDS = ("yes", "in part", "no", "open")
"""What may be said of a claim; *open*: not to be judged yet."""
SEEDS = 10
_published = cache(published)
_KEYS = (
    "title", "paper", "claim", "holds", "short", "seen", "kind", "metrics", "figure", "axes", "notes", "seeds", "alone",
    "arm", "quoted", "quick", "settings",
)  # fmt: skip
_ARM_KEYS = (
    "name", "paper", "datasets", "protocol", "method", "config", "vary", "folder", "seeds", "network", "needs", "quick",
    "study",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One configuration on one data set, and what stands in the paper for it."""

    name: str
    dataset: str
    """As in the paper's table; a small version runs on other data."""
    protocol: str
    """Whose settings; `quoted` where nothing is run."""
    varied: Mapping[str, Any]
    trials: tuple[Trial, ...]
    """A seed each, or as many as it has data sets; none of a cell that is quoted alone."""
    figures: Mapping[str, Figure]
    """The paper's figures by metric."""
    needs: str | None = None
    """What a cell needs that nobody has by default."""

    @property
    def by_the_paper(self) -> bool:
        """Whether the trials have the paper's settings on its data set and its network: no subset, no smaller one."""
        networks = shared()["networks"]
        return self.protocol == "paper" and all(
            trial.dataset in networks and trial.config.model == networks[trial.dataset] for trial in self.trials
        )

    @property
    def keeps(self) -> frozenset[str]:
        """By which rules an epoch is kept that need not be the last."""
        return frozenset(trial.config.selection for trial in self.trials) - {"last"}


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper, or one of ours beside them."""

    name: str
    title: str
    paper: str | None
    claim: str
    holds: str | None
    """Whether that holds by our rows, one of `HOLDS`; None where there is nothing to hold, and of small versions."""
    short: str
    """The same in a sentence."""
    seen: tuple[str, ...]
    """What our rows say of it, one thing after the other; empty where there is nothing to say yet."""
    kind: str
    metrics: tuple[str, ...]
    figure: str | None
    axes: tuple[str, ...]
    """What a grid varies down and across."""
    notes: str
    cells: tuple[Cell, ...]
    settings: Mapping[str, Any]
    """Of kinds that are no trials."""
    quick: bool
    """Whether this is the small version; what is small anyway has none."""
    alone: bool = False
    """Whether rows of other studies do not count."""

    @property
    def row_kind(self) -> str | None:
        """What its rows say that they are of; None of training as usual."""
        return "dynamics" if self.kind == "dynamics" else None

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, each run once."""
        found: dict[Hashable, Trial] = {}
        for cell in self.cells:
            for trial in cell.trials:
                found.setdefault(run_of(trial), trial)
        return tuple(found.values())


def names() -> list[str]:
    """All reproductions, in the order of the paper and then ours."""
    return list(_files())


def _files() -> dict[str, Path]:
    """Files by the name of the reproduction, which stands after its place in the order."""
    return {path.stem.partition("-")[2]: path for path in sorted(FOLDER.glob("*.toml"))}


@cache
def shared() -> Mapping[str, Any]:
    """`reproduce.toml`."""
    return read_toml(Path(__file__).with_name("reproduce.toml"), "settings of the reproductions")


def title_of(dataset: str) -> str:
    """The data set as the tables call it."""
    return str(shared()["titles"].get(dataset, dataset))


def load_reproduction(name: str, *, quick: bool = False) -> Reproduction:
    """The reproduction of that name, whole or in its small version; all mistakes of the file are told together."""
    files = _files()
    if name not in files:
        hint = did_you_mean(name, files)
        known = f"{hint} There" if hint else "there"
        raise ConfigError([f"there is nothing to reproduce called {name!r}; {known} are {', '.join(files)}"])
    return read_reproduction(files[name], name, quick=quick)


def read_reproduction(path: Path, name: str, *, quick: bool = False) -> Reproduction:
    """The reproduction in a file."""
    content = read_toml(path, "reproduction")
    problems = [f"unknown key {key!r}" for key in content if key not in _KEYS]
    problems += [f"lacks {key!r}" for key in ("title", "claim") if key not in content]
    holds, seen = content.get("holds"), content.get("seen", [])
    if holds is not None and holds not in HOLDS:
        problems.append(f"holds is {holds!r}; expected {listed(HOLDS, ' or ')}")
    if isinstance(seen, str):
        problems.append("seen is a text; expected a list of texts")
    if problems:
        raise ConfigError([f"{path.name}: {problem}" for problem in problems])
    cells: list[Cell] = []
    for number, arm in enumerate(content.get("arm", []), start=1):
        try:
            cells += _cells(name, content, arm, quick=quick)
        except ConfigError as error:
            problems += [f"{path.name}: arm {number}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    cells += [_quoted(content, row) for row in content.get("quoted", [])]
    order = list(dict.fromkeys(cell.dataset for cell in cells))
    cells.sort(key=lambda cell: order.index(cell.dataset))
    settings = content.get("settings", {})
    return Reproduction(
        name=name,
        title=content["title"],
        paper=content.get("paper"),
        claim=content["claim"],
        holds=None if quick else holds,
        short="" if quick else content.get("short", ""),
        seen=() if quick else tuple(seen),
        kind=content.get("kind", "trials"),
        metrics=tuple(content.get("metrics", ("average",))),
        figure=content.get("figure"),
        axes=tuple(content.get("axes", ())),
        notes=content.get("notes", ""),
        cells=tuple(cells),
        settings=settings | (content.get("quick", {}).get("settings", {}) if quick else {}),
        quick=quick and bool(content.get("arm") or content.get("quick")),
        alone=content.get("alone", False),
    )


def with_network(reproduction: Reproduction, network: Network) -> Reproduction:
    """The same by another pretrained network, wherever trials start from weights; its notes say so.

    Raises:
        ValueError: none do.
    """
    network.over(reproduction.trials, reproduction.name)
    cells = tuple(
        replace(cell, trials=network.over(cell.trials, reproduction.name))
        if any(trial.config.weights for trial in cell.trials)
        else cell
        for cell in reproduction.cells
    )
    named = "" if network.model is None else f"network `{network.model}`, "
    notes = f"Rows of photographs: {named}weights `{network.weights}`, in place of those that are named elsewhere."
    return replace(reproduction, cells=cells, notes=" ".join(filter(None, (reproduction.notes, notes))))


def chosen(
    reproduction: Reproduction, rules: Sequence[str], seeds: int | None, beside: Iterable[Trial] = ()
) -> tuple[Trial, ...]:
    """The trials that fit all rules, as `ipg study --only` has them, of the first `seeds` seeds of every cell.

    A rule may name what only trials `beside` these have, of other reproductions.

    Raises:
        ConfigError: no trial does.
    """
    known = {trial.key: trial for trial in (*beside, *reproduction.trials)}
    fitting = {trial.key for trial in only(Study(reproduction.name, tuple(known.values()), "test"), rules).trials}
    trials = tuple(trial for trial in reproduction.trials if trial.key in fitting)
    if rules and not trials:
        raise ConfigError([f"no trial of {reproduction.name} fits --only {' and '.join(rules)}"])
    if seeds is None:
        return trials
    first = {
        run_of(trial)
        for cell in reproduction.cells
        for trial in cell.trials
        if trial.seed in list(dict.fromkeys(other.seed for other in cell.trials))[:seeds]
    }
    left = tuple(trial for trial in trials if run_of(trial) in first)
    if not left:
        raise ConfigError([f"--seeds {seeds}: no trial is left that fits {' and '.join(rules)}"])
    return left


def chosen_datasets(datasets: Iterable[str], rules: Sequence[str]) -> list[str]:
    """The data sets that fit all rules `dataset=NAME[,NAME…]`, for what has data sets and no trials."""
    left = known = list(dict.fromkeys(datasets))
    for rule in rules:
        name, _, values = rule.partition("=")
        wanted = values.split(",")
        if name != "dataset" or not set(wanted) <= set(known):
            raise ConfigError([f"--only {rule}: expected dataset=NAME, one or several of {', '.join(known)}"])
        left = [dataset for dataset in left if dataset in wanted]
    return left


def _cells(name: str, content: Mapping[str, Any], arm: Mapping[str, Any], *, quick: bool) -> Iterator[Cell]:
    """The cells of an arm: every data set with every combination of what varies."""
    if unknown := [key for key in arm if key not in _ARM_KEYS]:
        raise ConfigError([f"unknown key {key!r}" for key in unknown])
    if quick and ("study" in arm or not arm.get("quick", True)):  # a study runs on its own data
        return
    if "study" in arm:
        yield _of_study(content, arm)
        return
    small = {**shared()["quick"], **content.get("quick", {})}
    vary: dict[str, list[Any]] = arm.get("vary", {})
    if quick:
        fewer: dict[str, list[Any]] = small.get("vary", {})
        vary = {key: [value for value in values if value in fewer.get(key, values)] for key, values in vary.items()}
    for dataset in arm["datasets"]:
        if quick and dataset not in small["data"]:
            continue
        for values in itertools.product(*vary.values()):
            varied = dict(zip(vary, values, strict=True))
            words = {key.rpartition(".")[2]: value for key, value in varied.items()}
            made = {"dataset": dataset, "method": arm["method"], "protocol": arm["protocol"]}
            made |= {"config": _config(dataset, arm, varied), "seeds": arm.get("seeds", content.get("seeds", SEEDS))}
            if quick:
                made |= {"dataset": small["data"][dataset], "seeds": small["seeds"]}
                made["config"] = _small(made["config"], content, varied)
            yield Cell(
                name=arm["name"].format(**words),
                dataset=dataset,
                protocol=arm["protocol"],
                varied=words,
                trials=tuple(arm_trials(name, {}, made)),
                figures=_figures(content, dataset, arm.get("paper", "").format(**words)),
                needs=_needs(arm),
            )


def _needs(arm: Mapping[str, Any]) -> str | None:
    """What an arm needs that nobody has by default: as it says, else the weights of the paper's network."""
    weights = shared()["files"][shared()["resnet50"]["weights"]] if "network" in arm else None
    needs: str | None = arm.get("needs", weights)
    return needs


def _of_study(content: Mapping[str, Any], arm: Mapping[str, Any]) -> Cell:
    """The cell of a study's arm on one data set, or of its arms on several."""
    source = arm["study"]
    wanted, on = source.get("config", {}), source.get("datasets") or [source["dataset"]]
    trials = [
        trial
        for trial in find_study(source["name"]).trials
        if trial.dataset in on
        and (trial.method, trial.protocol) == (arm["method"], arm["protocol"])
        and wanted.items() <= trial.config.flat().items()
    ]
    where = f"the study {source['name']} has {{}} {arm['method']} ({arm['protocol']}) on {' and '.join(on)}"
    if {trial.dataset for trial in trials} < set(on):
        raise ConfigError([where.format("no") + (f" with {wanted}" if wanted else "")])
    if len({(trial.dataset, trial.seed) for trial in trials}) < len(trials):
        raise ConfigError([where.format("several") + "; say by config = { … } which one is meant"])
    (dataset,) = arm["datasets"]
    figures = _figures(content, dataset, arm.get("paper", ""))
    return Cell(arm["name"], dataset, arm["protocol"], {}, tuple(trials), figures)


def _config(dataset: str, arm: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an arm on a data set: its protocol's, the arm's own, and what varies."""
    protocol, known = arm["protocol"], shared()["protocols"]
    base = known.get(protocol, known["paper"]).get(shared()["same"].get(dataset, dataset))
    if base is None:
        raise ConfigError([f"there are no settings {protocol!r} for {dataset!r}; reproduce.toml has none"])
    if protocol == "defaults":
        base = dict.fromkeys(earlier({}), AUTO) | {"restarts": RunConfig().restarts} | base  # as of `ipg train` today
    config = {**base, **(shared()["resnet50"] if arm.get("network") == "resnet50" else {}), **arm.get("config", {})}
    options = {key.removeprefix("options."): value for key, value in varied.items() if key.startswith("options.")}
    config |= {key: value for key, value in varied.items() if not key.startswith("options.")}
    config["options"] = option_defaults(method_class(arm["method"])) | config.get("options", {}) | options
    if "weights" in config and isinstance(config.get("pairs"), int):  # photographs: their pairs are files
        config["pairs"] = arm.get("folder", "pairs-{pairs}").format(pairs=config["pairs"])
    return config


def _small(config: Mapping[str, Any], content: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the small version: embedded images need no weights and no file of pairs; what varies stays."""
    own = content.get("quick", {})
    kept = {name: config[name] for name in own.get("keep", ()) if name in config}
    kept |= {name: value for name, value in varied.items() if not name.startswith("options.")}
    small = {**config, **shared()["quick"]["config"], **own.get("config", {}), **kept}
    small = {name: value for name, value in small.items() if name not in ("weights", "normalization")}
    if isinstance(small.get("pairs"), str):
        small["pairs"] = int(small["pairs"].rpartition("-")[2])
    return small


def _figures(content: Mapping[str, Any], dataset: str, approach: str) -> dict[str, Figure]:
    """The paper's figures of a cell by metric; those of CelebA stand beside our subset."""
    labels = content.get("paper", "").split(" and ")
    return {
        figure.metric: figure
        for figure in _published()
        if figure.table in labels
        and figure.approach == approach
        and figure.dataset in (dataset, dataset.removesuffix("_subset"), "any")
    }


def _quoted(content: Mapping[str, Any], row: Mapping[str, Any]) -> Cell:
    figures = _figures(content, row["dataset"], row["paper"])
    return Cell(row.get("name", row["paper"]), row["dataset"], "quoted", {}, (), figures, row["needs"])
