"""Collectives under their names in the installed PyTorch, a thread that orders them, and their errors."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.futures import Future

from dlplacer.core.errors import DlplacerError, RunError

# all_gather_into_tensor and reduce_scatter_tensor were renamed in PyTorch 2.13, where the old names warn.
gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""``gather(output, input, group=..., async_op=...)``: the concatenated tensors of all ranks."""

reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""``reduce_scatter(output, input, op=..., group=...)``: this rank's part of the sum or the mean."""


class OrderedThread:
    """One thread that runs its tasks in order, so that every rank has the same order of collectives.

    A bucket that takes several collectives cannot wait for the first in its callback, because gloo runs callbacks on
    the threads that serve its collectives.

    Attributes
    ----------
    group
        Another group of the same ranks, because collectives of two threads over one group could have different orders
        on different ranks. Every rank must create its thread at the same place in its program.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        ranks = dist.get_process_group_ranks(group)
        made = dist.new_group(ranks, backend=dist.get_backend(group), use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        self.group = made
        self._started: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="ternary gradients", daemon=True).start()

    def submit(self, task: Callable[[], torch.Tensor]) -> Future[torch.Tensor]:
        """A future with the task's result or its error."""
        start: Future[None] = Future()
        # Not with set_exception, which passes the exception on as a result that the reducer fails to cast to a tensor.
        result: Future[torch.Tensor] = start.then(lambda _: task())
        self._started.put(start)
        return result

    def _work(self) -> None:
        while True:
            self._started.get().set_result(None)  # The task is its callback, which runs here.


@contextmanager
def naming_the_peers(group: dist.ProcessGroup, what: str) -> Iterator[None]:
    """Turn an error of the library into a RunError that names the exchange and its peers."""
    try:
        yield
    except DlplacerError:
        raise
    except RuntimeError as error:
        ranks = dist.get_process_group_ranks(group)
        own = ranks[group.rank()]
        others = ", ".join(str(rank) for rank in ranks if rank != own)
        raise RunError(
            f"rank {own}: {what} with rank {others} failed; one of them has ended, or runs something else: {error}"
        ) from error
