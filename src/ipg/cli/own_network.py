"""Runs whose network code of the user's makes: it is run because the user names it, never because a folder does."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ipg.classifier import Classifier, open_run
from ipg.models import load_model
from ipg.training.folder import FolderError, RunFolder

__all__ = ["check_needed", "made_by", "named_by", "open_with", "refuse_own_code"]

OWN_CODE = "python:"


def named_by(run: Path) -> str | None:
    """The function that made the network of a run, as `python:…`; None where no code of the user's did."""
    try:
        name = RunFolder(run).recorded().origin.get("network")
    except (FolderError, OSError):
        return None  # who opens it says what is wrong with it
    return name if isinstance(name, str) and name.startswith(OWN_CODE) else None


def refuse_own_code(run: Path) -> None:
    """ValueError where code of the user's made the network of a run; it names the option that has it run."""
    if (name := named_by(run)) is None:
        return
    remedy = f"to have it run, add --network {shlex.quote(name)}"
    raise ValueError(f"the network of {run} is made by your code, which is not run because a folder says so; {remedy}")


def check_needed(network: str | None, runs: Sequence[Path]) -> None:
    """ValueError where `network` is no function, or none of the runs needs one."""
    if network is None:
        return
    _check_form(network)
    if not any(map(named_by, runs)):
        which = str(runs[0]) if len(runs) == 1 else "each of the runs"
        raise ValueError(f"{which} knows how to make its network; leave --network {network} out")


def made_by(network: str | None, run: Path) -> nn.Module | None:
    """The network of a run that code of the user's made, as `network` makes it; None of all other runs."""
    if named_by(run) is None:
        return None
    if network is None:
        refuse_own_code(run)
    return load_model(str(network))


def _check_form(network: str) -> None:
    if not network.startswith(OWN_CODE):
        raise ValueError(f"--network {network}: expected python:FILE:FUNCTION, or python:package.module:function")


def open_with(run: Path, network: str | None, *, device: str = "auto") -> Classifier:
    """The network of a finished run; made by the function `network`, as `python:…`, where code of the user's made it.

    Raises:
        ValueError: the function is missing, not needed, or makes another network.
        FolderError: it is no run, not finished or damaged.
    """
    if network is None:
        refuse_own_code(run)
        return open_run(run, device=device)
    _check_form(network)
    if named_by(run) is None:
        open_run(run, device=device)  # or it says what is wrong with the run
        raise ValueError(f"{run} knows how to make its network; leave --network {network} out")
    return open_run(run, network=network, device=device)
