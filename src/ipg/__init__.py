"""Invariance Pair Guidance: train image classifiers that do not lean on a shortcut.

`import ipg` is cheap: the names below, and torch with them, are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipg.guidance import CollapseError as CollapseError
    from ipg.guidance import Guidance as Guidance
    from ipg.guidance import NonFiniteError as NonFiniteError
    from ipg.guidance import Pairs as Pairs
    from ipg.notebook import Run as Run
    from ipg.notebook import fit as fit
    from ipg.pairs.manifest import load_pairs as load_pairs
    from ipg.pairs.pairset import PairSampler as PairSampler
    from ipg.pairs.pairset import PairSet as PairSet
    from ipg.rationale import rationale as rationale

__all__ = [
    "CollapseError", "Guidance", "NonFiniteError", "PairSampler", "PairSet", "Pairs", "Run", "fit", "load_pairs",
    "rationale",
]  # fmt: skip

__version__: str

_HOME = {
    "CollapseError": "ipg.guidance",
    "Guidance": "ipg.guidance",
    "NonFiniteError": "ipg.guidance",
    "Pairs": "ipg.guidance",
    "PairSampler": "ipg.pairs.pairset",
    "PairSet": "ipg.pairs.pairset",
    "Run": "ipg.notebook",
    "fit": "ipg.notebook",
    "load_pairs": "ipg.pairs.manifest",
    "rationale": "ipg.rationale",
}
"""The module each public name lives in."""


def _load(name: str) -> object:
    if name == "__version__":
        value: object = _version()
    elif name in _HOME:
        module = import_module(_HOME[name])
        # `ipg.rationale` is function and module in one: the import system binds the module, and it can be called
        value = module if module.__name__ == f"ipg.{name}" else getattr(module, name)
    else:
        raise AttributeError(f"module 'ipg' has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # or type checkers would take any name for one that is there
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("invariance-pair-guidance")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0+source"
