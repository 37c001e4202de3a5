import threading
import time

import pytest

from ipg.data import parallel
from ipg.data.parallel import in_order


def test_results_come_in_the_order_of_the_items() -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0)
        return item * item

    assert list(in_order(slow_first, range(100))) == [item * item for item in range(100)]


def test_it_does_not_run_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    begun: list[int] = []
    results = in_order(begun.append, range(1000))
    next(results)
    assert len(begun) <= 1 + 2 * parallel.AHEAD + 2
    results.close()
    assert threading.active_count() == 1 or len(begun) < 100


def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // item, [1, 0, 1]))
