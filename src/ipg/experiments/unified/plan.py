"""Who competes on a data set, and the configurations that each is given: its defaults first, the others at random.

What is drawn depends on the seed, the method, the number of the draw and the name of the setting alone: a contender or
a setting that joins changes nothing of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipg.config import ConfigError, RunConfig, earlier, read_toml
from ipg.methods import method_class
from ipg.methods.options import option_defaults
from ipg.methods.space import Choice, LogUniform, Range, Whole, ZeroOr
from ipg.seeds import derive_seed

__all__ = ["Contender", "Protocol", "ceiling_of", "configurations", "draw", "load_protocol", "sets_apart", "space_of"]

DATA = Path(__file__).with_name("protocol.toml")
"""The lists of contenders and what they share."""
MOST_DRAWS = 500
"""Draws after which a method has no other configuration to offer."""


@dataclass(frozen=True)
class Contender:
    """A method, with the settings that make it this contender."""

    method: str
    config: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """From which to draw settings, in place of the method's own ranges or beside them; with none in a list the
    method's own range is left out."""

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings that make it this contender, and options, on one level."""
        plain = {name: value for name, value in self.config.items() if name != "options"}
        return {**plain, **self.config.get("options", {})}

    @property
    def title(self) -> str:
        """The contender in words."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.fixed.items())])


@dataclass(frozen=True)
class Protocol:
    """What is compared on a data set, and on which terms."""

    dataset: str
    configurations: int
    """How many each contender is given."""
    seed: int
    """Of the draws, and of the runs that are chosen from."""
    rule: str
    """What decides: accuracy on the split `search`, or a selection rule on validation images."""
    seeds: int
    """Of the runs on the test split."""
    about: str
    base: Mapping[str, Any]
    """What all contenders share."""
    contenders: Sequence[Contender]
    ceiling: float | None = None
    """What decides cannot be above this by honest means: a configuration that is comes last."""
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """From which to draw settings of every contender that neither fixes them nor has ranges of its own for them."""

    @property
    def tuning(self) -> str:
        """The study that is chosen from."""
        return f"{self.dataset}_unified_tuning"

    @property
    def frozen(self) -> str:
        """The study of what was chosen."""
        return f"{self.dataset}_unified"

    @property
    def split(self) -> str:
        """The split that decides."""
        return "search" if self.rule == "search" else "validation"


def load_protocol(dataset: str) -> Protocol:
    """The protocol of a data set; ConfigError where there is none."""
    content = read_toml(DATA, "protocol")
    shared = {name: content.pop(name) for name in ("configurations", "seed")}
    if dataset not in content:
        raise ConfigError([f"the unified protocol does not know {dataset!r}: expected one of {', '.join(content)}"])
    own = content[dataset]
    contenders = tuple(Contender(**values) for values in own.pop("contenders"))
    return Protocol(dataset=dataset, contenders=contenders, **shared, **own)


def ceiling_of(study: str) -> float | None:
    """What decides in a study that settings are chosen from cannot be above this by honest means; None of others."""
    protocol = _chosen_in(study)
    return None if protocol is None else protocol.ceiling


def sets_apart(study: str) -> dict[str, tuple[str, ...]]:
    """The settings by which contenders of one method differ, in a study that settings are chosen from; none in others.

    Only methods that compete more than once have any.
    """
    protocol = _chosen_in(study)
    contenders = () if protocol is None else protocol.contenders
    times = Counter(contender.method for contender in contenders)
    found: dict[str, dict[str, Any]] = {method: {} for method, count in times.items() if count > 1}
    for contender in contenders:
        if contender.method in found:
            found[contender.method] |= contender.fixed
    return {method: tuple(names) for method, names in found.items()}


def _chosen_in(study: str) -> Protocol | None:
    """The protocol whose settings are chosen in a study."""
    content = read_toml(DATA, "protocol")
    known = (load_protocol(name) for name, own in content.items() if isinstance(own, dict))
    return next((protocol for protocol in known if protocol.tuning == study), None)


def configurations(protocol: Protocol, contender: Contender) -> list[dict[str, Any]]:
    """The settings over the base of each configuration; fewer than the protocol's number where the space is smaller.

    Each states every setting of the contender's space, also where it is the default: so rows tell them apart.
    """
    space = space_of(protocol, contender)
    found = [_defaults(protocol, contender)]
    for number in range(MOST_DRAWS):
        if len(found) == protocol.configurations or not space:
            break
        drawn = {name: draw(known, protocol.seed, contender.method, number, name) for name, known in space.items()}
        if drawn not in found and _is_stable(protocol, contender, drawn):
            found.append(drawn)
    return [_arranged(contender, settings) for settings in found]


def space_of(protocol: Protocol, contender: Contender) -> dict[str, Range]:
    """Where a contender's settings are drawn from: its own values, its method's ranges, the protocol's values."""
    shared = {name: values for name, values in protocol.values.items() if name not in contender.config}
    space = {name: Choice(tuple(values)) for name, values in shared.items()}
    own = {name: Choice(tuple(values)) for name, values in contender.values.items() if values}
    left_out = contender.values.keys() - own.keys()
    ranges = {name: known for name, known in method_class(contender.method).space.items() if name not in left_out}
    return {**space, **ranges, **own}


def draw(range_: Range, seed: int, *purpose: str | int) -> Any:
    """A value of a range, to three digits; the same for a seed and a purpose on every machine."""
    share = _share(seed, *purpose)
    match range_:
        case Choice(values):
            return values[int(share * len(values))]
        case LogUniform(low, high):
            return _rounded(low * (high / low) ** share)
        case Whole(low, high):
            return int(_rounded(low + int(share * (high - low + 1))))
        case ZeroOr(low, high):
            return _rounded(low + (high - low) * share) if _share(seed, *purpose, "above 0") >= 0.5 else 0.0
    return _rounded(range_.low + (range_.high - range_.low) * share)


def _defaults(protocol: Protocol, contender: Contender) -> dict[str, Any]:
    """What the settings of the contender's space are when nothing is said of them."""
    method = method_class(contender.method)
    plain = {name: value for name, value in contender.config.items() if name != "options"}
    given = {**protocol.base, **plain}
    config = RunConfig.from_mapping({**earlier(given), **given})
    known = {**vars(config), **option_defaults(method), **contender.config.get("options", {})}
    return {name: known[name] for name in space_of(protocol, contender)}


def _is_stable(protocol: Protocol, contender: Contender, drawn: Mapping[str, Any]) -> bool:
    """Whether task steps between two corrections do not outweigh the correction, where alpha is drawn."""
    if "alpha" not in drawn:
        return True
    config = RunConfig.from_mapping({**protocol.base, **contender.config, "alpha": drawn["alpha"]})
    return config.every == "auto" or config.every * config.alpha < 1


def _arranged(contender: Contender, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The contender's own settings and these, options apart, as a study file has them."""
    own = option_defaults(method_class(contender.method))
    options = {**contender.config.get("options", {}), **{n: v for n, v in settings.items() if n in own}}
    plain = {**contender.config, **{name: value for name, value in settings.items() if name not in own}}
    return {**plain, **({"options": options} if options else {})}


def _share(seed: int, *purpose: str | int) -> float:
    """A number from 0 to 1, without 1."""
    return (derive_seed(seed, "unified", *purpose) >> 10) / 2**53


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
