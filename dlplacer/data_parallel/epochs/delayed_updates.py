"""Delayed gradient updates: one device does what many data-parallel workers would (section 4.2 of the paper)."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from dlplacer.core.errors import InputError

Batch = TypeVar("Batch")


def delayed_updates(
    batches: Iterable[Batch], workers: int, backward: Callable[[Batch, float], object], update: Callable[[], object]
) -> int:
    """Do one epoch as `workers` workers would; returns the number of updates.

    N mini-batches go forward and backward before one update with their mean gradient, which is what N data-parallel
    workers would have applied together.

    Parameters
    ----------
    batches
        Mini-batches of one epoch, each as large as one worker's. Those that fill no round of all workers are left out.
    backward
        Called with each mini-batch and 1 ÷ workers: adds the gradient of the loss times that factor to what has been
        accumulated.
    update
        Called after every round: applies the accumulated gradient and clears it.

    Raises
    ------
    InputError
        If an epoch has fewer mini-batches than there are workers.
    """
    updates = 0
    for chosen in rounds(batches, workers):
        # The mean over the workers' gradients, as an all-reduce leaves it: each counts 1 ÷ workers.
        for each in chosen:
            backward(each, 1 / workers)
        update()
        updates += 1
    return updates


def rounds(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Lists of so many mini-batches, one after another; those that fill no list are left out.

    Raises
    ------
    InputError
        If there are too few for one list, or the size is below 1.
    """
    if size < 1:
        raise InputError(f"{size} workers; there must be at least 1")
    found, waiting = 0, []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == size:
            yield waiting
            found, waiting = found + 1, []
    if not found:
        raise InputError(
            f"{size} workers need as many mini-batches per epoch, and there are {len(waiting)}; use fewer workers, "
            "smaller mini-batches or more data"
        )
