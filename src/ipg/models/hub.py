"""The hub of Hugging Face, which timm, transformers and diffusers fetch from."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["fetched", "is_unanswered"]

WAITS = (0.0, 1.0, 2.0)
"""Seconds before each look for the hub, as long as there is no copy."""
UNREACHED = ("ConnectError", "ConnectTimeout", "ConnectionError")
"""What the libraries beneath the hub's client call it that no connection was made."""
Made = TypeVar("Made")


def fetched(load: Callable[[], Made], *, asks: bool = True) -> Made:
    """What `load` makes of the hub's files, or of copies on this machine where the hub cannot be reached.

    The hub's client has no setting for how often it tries: of a file that has no copy here seven times, over half a
    minute. So it is told to go by copies alone where no connection can be made, which is tried three times over three
    seconds. A hub that is reached, and slow, is left to the client. What that logs of attempts that fail is left out.

    Args:
        load: what a library does that asks the hub; called again where there was no copy.
        asks: whether it does; a folder is read without.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants") if asks else None
    for look, wait in enumerate(WAITS if asks and not constants.HF_HUB_OFFLINE else (), start=1):
        time.sleep(wait)
        if _is_reached(constants):
            break
        try:
            with _quiet("huggingface_hub"), _quiet("diffusers"), _offline(constants):
                return load()
        except Exception as error:
            if look == len(WAITS) or not is_unanswered(error):
                raise
    with _quiet("huggingface_hub"):
        return load()


def is_unanswered(error: BaseException) -> bool:
    """Whether an error, or its cause, is that the hub does not answer and no copy is on this machine."""
    if _is_one_of(error, ("LocalEntryNotFoundError", *UNREACHED)):
        return True
    return error.__cause__ is not None and is_unanswered(error.__cause__)


def _is_reached(constants: Any) -> bool:
    """Whether a connection to the hub is made; what comes of it does not matter."""
    utils: Any = importlib.import_module("huggingface_hub.utils")
    try:
        utils.get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of one library or another, by the version of the client
        return not _is_one_of(error, UNREACHED)
    return True


def _is_one_of(error: BaseException, names: Sequence[str]) -> bool:
    """By the names of classes, since what they are imported from differs."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


@contextmanager
def _offline(constants: Any) -> Iterator[None]:
    """As with `HF_HUB_OFFLINE=1`, which is read from the environment once."""
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep a library from telling of every attempt that fails: what comes of them is said once, at the end."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
