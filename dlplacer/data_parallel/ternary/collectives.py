"""Collectives under the name that the installed PyTorch has for them."""

from collections.abc import Callable

import torch.distributed as dist

# all_gather_into_tensor was renamed in PyTorch 2.13, whose old name warns.
gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""``gather(output, input, group=..., async_op=...)``: the tensors of all ranks, one behind the other."""
