"""A Ctrl-C while one waits for another thread leaves that thread able to answer, and the next question."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

import pytest
from runtime.signal_injection import interrupted_at, places

from dlplacer.runtime.devices.worker import InterruptibleFuture, Worker

WAITING = r"/(devices/interruptible_future|concurrent/futures/_base|threading)\.py$"


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


def test_an_answer_that_does_not_come_is_waited_for_until_the_limit() -> None:
    answer = InterruptibleFuture[int]()
    with pytest.raises(TimeoutError):
        answer.result(0.01)
    threading.Timer(0.01, answer.set_result, [3]).start()
    assert answer.result(5) == answer.result() == 3


def test_only_the_first_answer_counts_also_while_the_lock_of_the_future_is_taken() -> None:
    """A second one must not even ask for the lock: who was interrupted behind the first may have left it taken."""
    answer = InterruptibleFuture[int]()
    answer.set_exception(OSError("first"))
    assert isinstance(answer, Future)
    with answer._condition, pytest.raises(InvalidStateError):
        threaded(lambda: answer.set_result(3))
    with pytest.raises(OSError, match="first"):
        answer.result()


def threaded(work: Callable[[], object]) -> None:
    """Run it in another thread, and raise here what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits for the lock"
    if raised:
        raise raised[0]
