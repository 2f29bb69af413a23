"""Kernels as Python and in machine code."""

import numpy as np

from dlplacer.solvers.decode import kernel as heaps
from dlplacer.solvers.decode import machine_code
from dlplacer.solvers.decode.kernel import FIRST, Ints, pop, push
from dlplacer.solvers.decode.machine_code import ask
from dlplacer.solvers.instance.time_limit import ends_when, within


def sort(heap: Ints, values: Ints, found: Ints) -> int:
    """Sort by a heap, as kernels do."""
    for count in range(values.shape[0]):
        ask()
        push(heap, 0, count, values[count], count)
    for count in range(values.shape[0]):
        found[count] = heap[0, 0, FIRST]
        pop(heap, 0, values.shape[0] - count)
    return int(found[0])


sort.__module__ = heaps.__name__


def _sorted(fast: bool) -> list[int]:
    values = np.random.default_rng(0).integers(0, 1000, 200)
    found = np.zeros(200, np.int64)
    least = machine_code.run(sort, fast, np.zeros((1, 200, 2), np.int64), values, found)
    assert least == found[0]
    assert sorted(values.tolist()) == found.tolist()
    return found.tolist()  # type: ignore[no-any-return]


def test_a_kernel_and_what_it_calls_find_the_same_in_machine_code() -> None:
    assert _sorted(fast=True) == _sorted(fast=False)


def test_only_python_hears_that_time_is_up() -> None:
    assert within(lambda: False, lambda: _sorted(fast=False))
    asked = []
    with ends_when(lambda: bool(asked.append(0))):
        _sorted(fast=False)
        assert len(asked) == 200
        _sorted(fast=True)
    assert len(asked) == 200
