"""Sequences of collectives for one bucket after another, beside the backward pass."""

import queue
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.futures import Future


class OrderedThread:
    """One thread that does what it is given, in that order: the same order of collectives on every rank.

    A bucket that takes several collectives cannot wait for the first in its callback: gloo runs callbacks on the
    threads that serve its collectives, and in which order they come is not the same on all ranks.

    Attributes
    ----------
    group
        The same ranks once more, as collectives of two threads over one group would meet in another order on other
        ranks. Every rank makes its thread at the same place in its program.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        ranks = dist.get_process_group_ranks(group)
        made = dist.new_group(ranks, backend=dist.get_backend(group), use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        self.group = made
        self._started: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="ternary gradients", daemon=True).start()

    def submit(self, task: Callable[[], torch.Tensor]) -> Future[torch.Tensor]:
        """What the task will return, or raise."""
        start: Future[None] = Future()
        # Not by set_exception, which hands the exception on as a result: the reducer would fail to cast it to a tensor.
        result: Future[torch.Tensor] = start.then(lambda _: task())
        self._started.put(start)
        return result

    def _work(self) -> None:
        while True:
            self._started.get().set_result(None)  # The task is its callback, which runs here.
