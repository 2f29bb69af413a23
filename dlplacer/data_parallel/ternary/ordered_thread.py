"""Sequences of collectives for one bucket after another, beside the backward pass."""

import queue
import threading
from collections.abc import Callable

import torch
from torch.futures import Future


class OrderedThread:
    """One thread that does what it is given, in that order: the same order of collectives on every rank.

    A bucket that takes several collectives cannot wait for the first in its callback: gloo runs callbacks on the
    threads that serve its collectives, and in which order they come is not the same on all ranks.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], torch.Tensor], Future[torch.Tensor]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="ternary gradients", daemon=True).start()

    def submit(self, task: Callable[[], torch.Tensor]) -> Future[torch.Tensor]:
        """What the task will return, or raise."""
        result: Future[torch.Tensor] = Future()
        self._tasks.put((task, result))
        return result

    def _work(self) -> None:
        while True:
            task, result = self._tasks.get()
            try:
                result.set_result(task())
            except Exception as error:
                # PyTorch prints exceptions that nobody has asked for yet; the backward pass will.
                result.set_exception(error)  # type: ignore[arg-type]
