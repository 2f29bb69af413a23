"""Collectives under the name that the installed PyTorch has for them."""

from collections.abc import Callable

import torch.distributed as dist

# all_gather_into_tensor and reduce_scatter_tensor were renamed in PyTorch 2.13, where the old names warn.
gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""``gather(output, input, group=..., async_op=...)``: the tensors of all ranks, one behind the other."""

reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""``reduce_scatter(output, input, op=..., group=...)``: this rank's part of what is added up."""
