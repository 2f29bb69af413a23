"""Collectives under the name that the installed PyTorch has for them, and what is said when one fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from dlplacer.core.errors import DlplacerError, RunError

# all_gather_into_tensor and reduce_scatter_tensor were renamed in PyTorch 2.13, where the old names warn.
gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""``gather(output, input, group=..., async_op=...)``: the tensors of all ranks, one behind the other."""

reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""``reduce_scatter(output, input, op=..., group=...)``: this rank's part of what is added up."""


@contextmanager
def naming_the_peers(group: dist.ProcessGroup, what: str) -> Iterator[None]:
    """Say of an error of the library which exchange has failed, and with whom.

    Raises
    ------
    RunError
        Instead of what the library raises.
    """
    try:
        yield
    except DlplacerError:
        raise
    except RuntimeError as error:
        ranks = dist.get_process_group_ranks(group)
        own = ranks[group.rank()]
        others = ", ".join(str(rank) for rank in ranks if rank != own)
        raise RunError(
            f"rank {own}: {what} with rank {others} failed; one of them has ended, or does something else: {error}"
        ) from error
