"""Ctrl-C ends a search with its best plan, wherever it strikes."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from benchmarks.families import FAMILIES
from solvers.helpers import make_machine

from dlplacer.planning.place import place
from dlplacer.solvers.instance.schedule import Progress


@pytest.fixture(autouse=True)
def default_interrupt() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, whatever other tests' libraries have set."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("after_s", [0.0, 0.4, 1.0])
def test_an_interrupt_ends_the_search_with_the_best_plan(after_s: float) -> None:
    stop, pending = threading.Event(), list[threading.Timer]()

    def arm(progress: Progress) -> None:
        """Ctrl-C comes so many seconds after the first plan."""
        if progress.makespan_s is not None and not pending:
            pending.append(threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT)))
            pending[0].start()

    graph, machine = FAMILIES["layered"](200, 1), make_machine(2, rate=12e9, latency_s=8e-6)
    result = place(graph, machine, time_limit_s=600, workers=1, on_progress=arm, stop=stop)
    pending[0].join()
    assert stop.is_set()
    assert result.plan.solve_s < 300
    assert result.plan.lower_bound_s < result.plan.makespan_s
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
