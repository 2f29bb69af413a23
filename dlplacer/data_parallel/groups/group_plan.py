"""Which parameters travel together, as settings of torch: DDP's bucket caps, and FSDP2's units with their prefetch."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.groups.bucket_caps import PlannedBuckets
from dlplacer.data_parallel.groups.ddp_buckets import DdpBucket, caps_mb

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ShardingUnit:
    """Modules whose sharded parameters are gathered in one message.

    Attributes
    ----------
    modules
        Their paths in the order in which they are called; "" is the whole model.
    parameters
        All parameters that the unit gathers.
    """

    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class GroupPlan:
    """Groups for both ways of data parallelism, and how long their exchanges are predicted to take.

    Attributes
    ----------
    planned
        DDP's caps and buckets.
    backward_s
        Seconds of the backward pass alone.
    units
        FSDP2's units in the order in which the forward pass gathers them.
    gathered_s
        Seconds of the forward pass with its gathers.
    unused
        Parameters that get no gradient.
    unheld
        Parameters that are used outside the module, which therefore cannot be sharded.
    """

    planned: PlannedBuckets
    backward_s: float
    units: tuple[ShardingUnit, ...] = ()
    gathered_s: float = 0.0
    unused: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()

    @property
    def buckets(self) -> tuple[DdpBucket, ...]:
        """What DDP sends, message by message, once it has rebuilt its buckets after the first step."""
        return self.planned.buckets

    @property
    def backward_with_exchange_s(self) -> float:
        """Seconds from the start of the backward pass until all gradients are averaged."""
        return max(self.backward_s, self.planned.exchanged_s)

    def ddp_kwargs(self) -> dict[str, Any]:
        """Arguments of `DistributedDataParallel` that make it build the planned buckets.

        They hold from the second step on, when DDP has seen in which order gradients get ready. Where some parameters
        get no gradient, ``static_graph`` is among them, and they hold from the third.

        Raises
        ------
        InputError
            If this version of torch takes one cap only.
        """
        from torch.nn.parallel import DistributedDataParallel

        if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
            import torch

            raise InputError(
                f"DistributedDataParallel of torch {torch.__version__} takes one cap for all buckets; use torch 2.13 "
                "or newer for planned buckets"
            )
        kwargs: dict[str, Any] = {"bucket_cap_mb_list": caps_mb(self.planned.caps_bytes)}
        # With find_unused_parameters DDP never rebuilds its buckets; a static graph is searched once, then rebuilt.
        return kwargs | {"static_graph": True} if self.unused else kwargs

    def fully_shard(self, model: "nn.Module", *, prefetch: int = 1, **options: Any) -> "nn.Module":
        """Shard a model by FSDP2 in the planned units, with explicit orders of prefetch; returns the model.

        Parameters
        ----------
        prefetch
            Units gathered ahead, in the forward and in the backward pass; as many more are in memory.
        options
            Passed to `torch.distributed.fsdp.fully_shard`: ``mesh``, ``mp_policy``, ``reshard_after_forward`` and so
            on.

        Raises
        ------
        InputError
            If the plan has no units, a parameter is used outside the module, or the model lacks a module of the plan.
        """
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self._require_units(model, prefetch)
        modules = dict(model.named_modules())
        # Bottom-up, as a module takes what no module inside it has taken: it is called before those are.
        for unit in reversed(self.units):
            fully_shard([modules[path] for path in unit.modules], **options)
        if not isinstance(model, FSDPModule):
            fully_shard(model, **options)
        leaders = [modules[unit.modules[0]] for unit in self.units]
        for number, leader in enumerate(leaders):
            assert isinstance(leader, FSDPModule)
            leader.set_modules_to_forward_prefetch(_sharded(leaders[number + 1 : number + 1 + prefetch]))
            leader.set_modules_to_backward_prefetch(_sharded(leaders[max(0, number - prefetch) : number][::-1]))
        return model

    def _require_units(self, model: "nn.Module", prefetch: int) -> None:
        if prefetch < 0:
            raise InputError(f"prefetch is {prefetch}; it must be at least 0")
        if self.unheld:
            raise InputError(
                f"parameter {self.unheld[0]!r} is used outside the module that is to be sharded, as by the loss; FSDP "
                "gathers parameters within calls of the module: move that use into its forward, or use ddp_kwargs()"
            )
        if not self.units:
            raise InputError("this plan has no units to shard; make it from a job, not from a graph")
        known = {path for path, _ in model.named_modules()}
        for path in (path for unit in self.units for path in unit.modules):
            if path not in known:
                raise InputError(
                    f"the plan shards module {path!r}, which this model does not have; plan for this model"
                )

    def to_dict(self) -> Mapping[str, Any]:
        """As JSON: messages in the order sent, sizes in bytes, times in seconds."""
        return {
            "bucket_cap_mb_list": caps_mb(self.planned.caps_bytes),
            "buckets": [{"parameters": list(each.names), "bytes": each.bytes} for each in self.buckets],
            "backward_s": self.backward_s,
            "backward_with_exchange_s": self.backward_with_exchange_s,
            "units": [{"modules": list(each.modules), "bytes": each.bytes} for each in self.units],
            "gathered_s": self.gathered_s,
            "unused": list(self.unused),
        }


def _sharded(modules: "Sequence[nn.Module]") -> list[Any]:
    """Units for torch's setters, which are typed by its own mixin."""
    return list(modules)
