"""A run that is given up wakes who waits for a tensor of another device."""

import threading
from typing import Any

import pytest

from dlplacer.runtime.devices.worker import Reply
from dlplacer.runtime.executor.run import AbortedError, ProgramRun, StepInputs, StepState


def test_a_run_that_is_given_up_ends_all_who_wait() -> None:
    cells = {("x", str(number)): Reply[Any]() for number in range(4)}
    run = ProgramRun(StepState(StepInputs({}, 0), {}), cells)
    ended: list[str] = []

    def wait(cell: Reply[Any]) -> None:
        with pytest.raises(AbortedError):
            cell.result()
        ended.append("ended")

    threads = [threading.Thread(target=wait, args=(cell,)) for cell in cells.values()]
    for thread in threads:
        thread.start()
    run.give_up()
    for thread in threads:
        thread.join(10)
    assert ended == ["ended"] * 4
