"""What a search tries: the ranges of a method's own, and others that the user names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from ipg.config import ConfigError, RunConfig, setting_meant
from ipg.methods import method_class
from ipg.methods.options import option_defaults, parse_options
from ipg.methods.space import Choice, LogUniform, Range, Uniform, Whole, ZeroOr

__all__ = ["COMMON", "configure", "describe", "ends", "gather_space", "told_of", "warn_of_pace"]

COMMON: Mapping[str, Range] = {
    "learning_rate": LogUniform(1e-5, 1e-2),
    "epochs": Whole(5, 30),
    "batch": Choice((32, 64, 128, 256)),
    "weight_decay": LogUniform(1e-6, 1e-2),
    "pair_batch": Choice((32, 64, 128)),
    "every": Choice((1, 2, 4, 8)),
}
"""Ranges of settings that belong to no method, for who names a setting without its range."""

SETTLED = ("data", "data_path", "device", "engine", "method", "options", "resident", "seed", "selection", "shard")
"""Settings that make another search or another machine, not another trial."""

_READERS: tuple[Callable[[str], Any], ...] = (int, float)


def gather_space(base: RunConfig, vary: Sequence[str] = (), given: Sequence[str] = ()) -> dict[str, Range]:
    """The ranges of the search for settings over `base`; all mistakes are named at once.

    Args:
        base: the configuration that the trials change.
        vary: further settings, or other ranges: `NAME`, `NAME=A,B,C`, `NAME=LOW:HIGH` or `NAME=LOW:HIGH:log`.
        given: settings that the user has fixed; the method's own ranges of these are left out.
    """
    own = method_class(base.method).space
    space = {name: known for name, known in own.items() if name not in given}
    problems: list[str] = []
    for text in vary:
        try:
            name, found = _parse(text, base)
            if name in given:
                raise ValueError("it is given, too: leave out one of the two")
            _check(base, name, found)
        except ValueError as error:
            problems.append(f"--vary {text}: {error}")
        else:
            space[name] = found
    if problems:
        raise ConfigError(problems)
    if "alpha" in own and space.get("alpha") is own["alpha"]:
        space["alpha"] = _paced(own["alpha"], base, space)
    if not space:
        raise ConfigError(
            [f"there is nothing to search for with method {base.method!r}: name a setting, e.g. --vary learning_rate"]
        )
    return space


def warn_of_pace(base: RunConfig, space: Mapping[str, Range]) -> None:
    """Warn once, in place of trial by trial, where every * alpha is not below 1 in some trials.

    That a range of alpha ends where it is 1 is no matter: as good as no trial has that end.
    """
    if "alpha" not in method_class(base.method).space:
        return
    alphas, paces = (ends(space[name]) if name in space else [getattr(base, name)] for name in ("alpha", "every"))
    alpha, every = max(alphas), max([pace for pace in paces if pace != "auto"], default=1)
    tried = "alpha" not in space or isinstance(space["alpha"], Choice)
    if every > 1 and (every * alpha > 1 or (tried and every * alpha == 1)):
        warnings.warn(
            f"trials with alpha up to {alpha:g} and every up to {every} are not guaranteed to lower the corrective "
            f"loss where every * alpha is not below 1. Lower one of them.",
            stacklevel=2,
        )


def configure(base: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`base` with other values of settings, of the run's or of the method's own."""
    own = option_defaults(method_class(base.method))
    options = {name: value for name, value in settings.items() if name in own}
    others = {name: value for name, value in settings.items() if name not in own}
    config = RunConfig.from_mapping(others, base=base).with_changes(options={**base.options, **options})
    parse_options(method_class(base.method), config.options)
    return config


def describe(range_: Range) -> str:
    """A range in a few words."""
    match range_:
        case Choice(values):
            return "one of " + ", ".join(map(str, values))
        case LogUniform(low, high):
            return f"{low:g} to {high:g}, logarithmic"
        case ZeroOr(low, high):
            return f"0, or {low:g} to {high:g}"
        case Whole(low, high):
            return f"{low} to {high}, whole"
    return f"{range_.low:g} to {range_.high:g}"


def told_of(method: str) -> str:
    """What a search looks at unless it is told otherwise, and how much wider with `--every 1`."""
    if not method_class(method).space:  # one of a user's own, say
        return "nothing of its own: name settings, e.g. --vary learning_rate"
    usual, widest = gather_space(RunConfig(method=method)), gather_space(RunConfig(method=method, every=1))
    return "; ".join(
        f"{name} {describe(range_)}" + (f" ({describe(widest[name])} with --every 1)" if widest[name] != range_ else "")
        for name, range_ in usual.items()
    )


def _paced(alpha: Range, base: RunConfig, space: Mapping[str, Range]) -> Range:
    """The method's own range of alpha, so bounded that every * alpha stays below 1 where `every` is fixed above 1.

    From 1 on the corrective loss is not guaranteed to fall. With every 1, the paper's, the range is the paper's.
    """
    if not isinstance(alpha, Uniform) or not isinstance(base.every, int) or base.every == 1 or "every" in space:
        return alpha
    high = min(alpha.high, 1 / base.every)
    return Uniform(min(alpha.low, high / 5), high)


def ends(range_: Range) -> list[Any]:
    """The values of a choice, or the ends of a range."""
    return list(range_.values) if isinstance(range_, Choice) else [range_.low, range_.high]


def _parse(text: str, base: RunConfig) -> tuple[str, Range]:
    """The name and the range that `--vary` gives."""
    name, equals, values = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    known = {field.name for field in fields(RunConfig)} - set(SETTLED) | set(option_defaults(method_class(base.method)))
    if name not in known:
        hint = setting_meant(name, known) or "it has to be a setting of the run or an option of the method"
        raise ValueError(f"{name!r} is nothing that trials can differ in; {hint}")
    if equals:
        return name, _range(values)
    own = {**COMMON, **method_class(base.method).space}
    if name not in own:
        raise ValueError(f"its range is not known: give one, e.g. {name}=0:1, {name}=1e-4:1:log or {name}=1,2,4")
    return name, own[name]


def _range(text: str) -> Range:
    """`A,B,C`, `LOW:HIGH` or `LOW:HIGH:log`; of whole numbers where both ends are."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) == 1:
        return Choice(tuple(map(_value, filter(None, map(str.strip, text.split(","))))))
    ends = [_value(part) for part in parts[:2]]
    if len(parts) > 3 or parts[2:] not in ([], ["log"]) or any(isinstance(end, str | bool) for end in ends):
        raise ValueError("expected LOW:HIGH, LOW:HIGH:log or values with commas between them")
    if len(parts) == 3:
        return LogUniform(*map(float, ends))
    return Whole(*ends) if all(isinstance(end, int) for end in ends) else Uniform(*map(float, ends))


def _value(text: str) -> Any:
    for read in _READERS:
        with suppress(ValueError):
            return read(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _check(base: RunConfig, name: str, range_: Range) -> None:
    """ValueError where the setting cannot have the values at the ends of its range."""
    for value in ends(range_):
        configure(base, {name: value})
