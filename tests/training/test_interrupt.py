"""The first signal asks, the second insists."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from ipg.training.interrupt import StopRequest, late_request, stop_on_signals

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_request(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with stop_on_signals() as request:
        assert not request.made
        signal.raise_signal(number)
        assert request.made
    assert [signal.getsignal(one) for one in SIGNALS] == before


@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_interrupts(second: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with stop_on_signals() as request:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
        assert request.made
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_a_request_that_ends_nothing_is_kept_for_what_comes_after() -> None:
    with late_request() as whole:
        with late_request() as late:
            with stop_on_signals():
                pass
            assert not late.made
            with stop_on_signals():
                signal.raise_signal(signal.SIGTERM)
            assert late.made
        assert whole.made
        with late_request() as later, stop_on_signals():
            pass
        assert not later.made


def test_a_request_is_kept_when_the_run_breaks_off_for_another_reason() -> None:
    with late_request() as late:
        with suppress(ValueError), stop_on_signals():
            signal.raise_signal(signal.SIGINT)
            raise ValueError
        assert late.made


def test_a_request_is_kept_in_its_own_thread() -> None:
    seen: list[bool] = []

    def work() -> None:
        with late_request() as late:
            ready.set()
            done.wait(60)
            seen.append(late.made)

    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    with late_request() as here, stop_on_signals():
        signal.raise_signal(signal.SIGINT)
    done.set()
    thread.join()
    assert here.made
    assert seen == [False]


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    seen: list[object] = []

    def work() -> None:
        with stop_on_signals() as request:
            seen.extend([request.made, [signal.getsignal(one) for one in SIGNALS] == before])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]


def test_a_request_is_not_made_by_itself() -> None:
    assert not StopRequest().made
