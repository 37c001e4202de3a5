"""Fetching from the hub: how long it is waited for, and what is said of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub import constants, utils
from huggingface_hub.utils import LocalEntryNotFoundError

from ipg.models import hub
from ipg.models.hub import _is_reached, fetched, is_unanswered


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is waited, in place of waiting."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the hub is reached, look by look."""
    given: list[bool] = []
    monkeypatch.setattr(hub, "_is_reached", lambda constants: given.pop(0))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return given


def is_offline() -> bool:
    return bool(constants.HF_HUB_OFFLINE)


def missing() -> None:
    raise OSError("We couldn't connect.") from LocalEntryNotFoundError("no copy")


def test_a_hub_that_is_reached_is_left_to_its_client(reached: list[bool], waits: list[float]) -> None:
    reached += [True]
    assert not fetched(is_offline)
    reached += [True]
    with pytest.raises(OSError, match="couldn't connect"):
        fetched(missing)
    assert (reached, sum(waits)) == ([], 0)


def test_without_a_hub_a_copy_is_taken_at_once(reached: list[bool], waits: list[float]) -> None:
    reached += [False]
    assert fetched(is_offline)
    assert (sum(waits), is_offline()) == (0, False)


def test_without_hub_and_copy_it_is_given_up_soon(reached: list[bool], waits: list[float]) -> None:
    reached += [False] * 3
    with pytest.raises(OSError, match="couldn't connect") as caught:
        fetched(missing)
    assert is_unanswered(caught.value)
    assert (reached, waits, is_offline()) == ([], [0, 1, 2], False)


def test_a_network_that_comes_back(reached: list[bool], waits: list[float]) -> None:
    reached += [False, True]

    def load() -> str:
        if is_offline():
            missing()
        return "made"

    assert fetched(load) == "made"
    assert waits == [0, 1]


def test_another_error_is_not_waited_for(reached: list[bool], waits: list[float]) -> None:
    reached += [False]
    with pytest.raises(ZeroDivisionError):
        fetched(lambda: 1 / 0)
    assert (sum(waits), is_offline()) == (0, False)


@pytest.mark.usefixtures("waits", "reached")
def test_nobody_looks_for_the_hub_where_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched(lambda: "a folder", asks=False) == "a folder"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="couldn't connect"):
        fetched(missing)
    assert is_offline()


def test_its_log_is_quiet_meanwhile(reached: list[bool]) -> None:
    log = logging.getLogger("huggingface_hub.utils")
    for known in (True, False):
        reached += [known]
        assert not fetched(lambda: log.isEnabledFor(logging.ERROR))
    assert log.isEnabledFor(logging.ERROR)


def raising(error: Exception) -> Callable[..., Any]:
    def head(*_: object, **__: object) -> Any:
        raise error

    return head


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ConnectError", False), ("ConnectTimeout", False), ("ReadTimeout", True), ("RemoteProtocolError", True)],
)
def test_slow_is_not_unreached(name: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    error = type(name, (Exception,), {})("no luck")
    session = type("Session", (), {"head": staticmethod(raising(error))})
    monkeypatch.setattr(utils, "get_session", lambda: session)
    assert _is_reached(constants) is expected


def test_an_address_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not _is_reached(constants)
