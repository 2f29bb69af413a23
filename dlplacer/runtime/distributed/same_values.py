"""Processes that train one model must begin with the same values in it."""

import zlib
from collections.abc import Mapping

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from dlplacer.core.errors import InputError
from dlplacer.runtime.distributed.group import RankGroup


def require_same_values(group: RankGroup, module: nn.Module) -> None:
    """Return if all processes hold the same parameters, and those of a replica the same buffers.

    What has no data on a process is not compared; nor are buffers of different replicas, as batch norm has statistics
    of its own in each.

    Raises
    ------
    InputError
        On all processes: naming a tensor that differs.
    """
    if group.ranks.count == 1:
        return
    parameters = {name: checksum(tensor) for name, tensor in module.named_parameters()}
    buffers = {name: checksum(tensor) for name, tensor in module.named_buffers()}
    everyone = group.gathered([parameters, buffers])
    for rank in range(len(everyone)):
        for other in range(rank):
            same_replica = group.ranks.replica_of(rank) == group.ranks.replica_of(other)
            for part in range(2 if same_replica else 1):
                _compare(everyone[other][part], everyone[rank][part], other, rank)


def checksum(tensor: torch.Tensor) -> int | None:
    """A checksum of a tensor's elements, in their order; None without data."""
    if tensor.is_meta or isinstance(tensor, FakeTensor) or hasattr(tensor, "full_tensor"):
        return None
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data) if plain.numel() else 0


def _compare(mine: Mapping[str, int | None], theirs: Mapping[str, int | None], rank: int, other: int) -> None:
    for name, value in mine.items():
        found = theirs.get(name)
        if value is not None and found is not None and value != found:
            raise InputError(
                f"rank {rank} and rank {other} hold different values in {name!r}; give all ranks the same weights "
                "before the plan is applied: torch.manual_seed before the model is made, or one state dict for all"
            )
