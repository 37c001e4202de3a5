"""The first signal asks, the second insists."""

from __future__ import annotations

import signal
import threading

import pytest

from ipg.training.interrupt import StopRequest, stop_on_signals

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
