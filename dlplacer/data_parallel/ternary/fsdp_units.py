"""The units of fully_shard, and where their gradients stand in what they reduce; FSDP2's inside is read only here."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


@dataclass(frozen=True)
class ShardedUnit:
    """One call of fully_shard.

    Attributes
    ----------
    parameters
        (parameter, elements of one rank's shard with its padding), in the order in which a reduce-scatter has them for
        each receiving rank.
    """

    module: FSDPModule
    parameters: tuple[tuple[nn.Parameter, int], ...]

    @property
    def shard_numel(self) -> int:
        """Elements that each rank receives if all parameters have a gradient."""
        return sum(numel for _, numel in self.parameters)


def sharded_units(model: nn.Module) -> Iterator[ShardedUnit]:
    """The units of a model that have parameters."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                shards = [(one.sharded_param, _shard_numel(one.padded_sharded_param_size)) for one in group.fsdp_params]
                yield ShardedUnit(module, tuple(shards))


def _shard_numel(size: torch.Size) -> int:
    return size.numel()
