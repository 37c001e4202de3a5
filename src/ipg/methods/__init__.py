"""Training methods by name, one a file."""

from __future__ import annotations

from ipg.methods.base import Method, Setup, parse_options
from ipg.methods.continuous import Continuous
from ipg.methods.erm import Erm
from ipg.methods.ipg import Ipg
from ipg.methods.joint import Joint
from ipg.methods.oracle import Oracle

__all__ = ["METHODS", "Method", "Setup", "method_class", "parse_options"]

METHODS: dict[str, type[Method]] = {
    "erm": Erm,
    "oracle": Oracle,
    "ipg": Ipg,
    "joint": Joint,
    "continuous": Continuous,
}


def method_class(name: str) -> type[Method]:
    """The method of that name; a ValueError lists those there are."""
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]
