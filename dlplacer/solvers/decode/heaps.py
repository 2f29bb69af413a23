"""Heaps of pairs in machine code, several in one table."""

from dlplacer.solvers.decode.arrays import Ints

FIRST, SECOND = 0, 1
"""Columns of a row: what it is sorted by first, and then."""


def push(heaps: Ints, heap: int, count: int, first: int, second: int) -> None:
    """Add to a heap of so many rows, the least first."""
    row = count
    while row > 0:
        above = (row - 1) >> 1
        if heaps[heap, above, 0] < first or (heaps[heap, above, 0] == first and heaps[heap, above, 1] < second):
            break
        heaps[heap, row, 0], heaps[heap, row, 1] = heaps[heap, above, 0], heaps[heap, above, 1]
        row = above
    heaps[heap, row, 0], heaps[heap, row, 1] = first, second


def pop(heaps: Ints, heap: int, count: int) -> None:
    """Take the first row out of a heap of so many."""
    last, row, below = count - 1, 0, 1
    first, second = heaps[heap, last, 0], heaps[heap, last, 1]
    while below < last:
        right = below + 1
        if right < last and (
            heaps[heap, right, 0] < heaps[heap, below, 0]
            or (heaps[heap, right, 0] == heaps[heap, below, 0] and heaps[heap, right, 1] < heaps[heap, below, 1])
        ):
            below = right
        if first < heaps[heap, below, 0] or (first == heaps[heap, below, 0] and second < heaps[heap, below, 1]):
            break
        heaps[heap, row, 0], heaps[heap, row, 1] = heaps[heap, below, 0], heaps[heap, below, 1]
        row, below = below, 2 * below + 1
    heaps[heap, row, 0], heaps[heap, row, 1] = first, second
