"""A Ctrl-C while one waits for another thread leaves that thread able to answer, and the next question."""

import time
from collections.abc import Callable

import pytest
from runtime.signal_injection import interrupted_at, places

from dlplacer.runtime.devices.worker import Worker

WAITING = r"/(devices/worker|threading)\.py$"


def late() -> str:
    """An answer for which one has to wait."""
    time.sleep(2e-3)
    return "answer"


def by_device() -> Callable[[], str]:
    worker = Worker("device", lambda: None)
    return lambda: worker.submit(late).result()


@pytest.mark.timeout(60)
def test_a_ctrl_c_anywhere_leaves_the_other_thread_free() -> None:
    asked = by_device()
    found = places(asked, WAITING)
    struck = 0
    for number in found:
        try:
            interrupted_at(number, asked)
        except KeyboardInterrupt:
            struck += 1
        assert asked() == "answer"
    assert struck >= len(found) - 2 > 2


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    worker = Worker("device", lambda: None)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result()
    assert worker.submit(lambda: 3).result() == 3
