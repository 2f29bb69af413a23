"""A cell hands one tensor from thread to thread, and wakes who waits when a run is given up."""

import threading

import pytest
import torch

from dlplacer.runtime.executor.run import AbortedError, Cell, ProgramRun, StepInputs, StepState


def test_a_value_is_taken_whenever_it_comes() -> None:
    for delay_s in (0.0, 0.01):
        cell, value = Cell(), torch.ones(2)
        sender = threading.Timer(delay_s, cell.put, [value])
        sender.start()
        assert cell.take() is value
        sender.join()


def test_a_run_that_is_given_up_ends_all_who_wait() -> None:
    cells = {("x", str(number)): Cell() for number in range(4)}
    run = ProgramRun(StepState(StepInputs({}, 0), {}), cells)
    ended: list[str] = []

    def wait(cell: Cell) -> None:
        with pytest.raises(AbortedError):
            cell.take()
        ended.append("ended")

    threads = [threading.Thread(target=wait, args=(cell,)) for cell in cells.values()]
    for thread in threads:
        thread.start()
    run.give_up()
    for thread in threads:
        thread.join(10)
    assert ended == ["ended"] * 4
