"""Groups of parameters as settings for torch: DDP's bucket caps, and FSDP2's units with their prefetch."""

import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.captured_chain import ParameterUses, gradients_of, serial_clock, unit_chain
from dlplacer.data_parallel.groups.ddp_buckets import DdpBucket, PlannedBuckets, caps_mb, plan_buckets
from dlplacer.data_parallel.groups.layer_chain import best_groups, makespan_s
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.links import MachineCosts, Wiring
from dlplacer.machines.costs.roofline_times import with_times

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ShardingUnit:
    """Modules whose sharded parameters are gathered in one message.

    `modules`: Paths of the modules in the order of their calls; the path "" is the whole model.
    """

    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class GroupPlan:
    """Groups for DDP and FSDP2, with the predicted times of their exchanges.

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
        Parameters without a gradient.
    unheld
        Parameters that cannot be sharded because they are used outside the module.
    """

    planned: PlannedBuckets
    backward_s: float
    units: tuple[ShardingUnit, ...] = ()
    gathered_s: float = 0.0
    unused: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()

    @property
    def buckets(self) -> tuple[DdpBucket, ...]:
        """The messages of DDP after it has rebuilt its buckets."""
        return self.planned.buckets

    def ddp_kwargs(self) -> dict[str, Any]:
        """Arguments of `DistributedDataParallel` that make it build the planned buckets.

        DDP uses the buckets from the second step on, when it knows the order in which gradients become ready. If some
        parameters get no gradient, the arguments include ``static_graph``, and DDP uses the buckets from the third on.

        Raises
        ------
        InputError
            If this version of torch takes only one cap.
        """
        from torch.nn.parallel import DistributedDataParallel

        if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
            import torch

            raise InputError(
                f"DistributedDataParallel of torch {torch.__version__} takes one cap for all buckets; use torch 2.13 "
                "or newer for planned buckets"
            )
        kwargs: dict[str, Any] = {"bucket_cap_mb_list": caps_mb(self.planned.caps_bytes)}
        # With find_unused_parameters DDP never rebuilds its buckets; with a static graph it searches once and rebuilds.
        return kwargs | {"static_graph": True} if self.unused else kwargs

    def fully_shard(self, model: "nn.Module", *, prefetch: int = 1, **options: Any) -> "nn.Module":
        """Shard a model with FSDP2 in the planned units, with explicit prefetch, and return the model.

        Parameters
        ----------
        prefetch
            Number of units gathered ahead in each pass; memory must hold as many more units.
        options
            Options of `torch.distributed.fsdp.fully_shard`: ``mesh``, ``mp_policy``, ``reshard_after_forward``, ….

        Raises
        ------
        InputError
            If the plan has no units, a parameter is used outside the module, or the model lacks a module of the plan.
        """
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self._require_units(model, prefetch)
        modules = dict(model.named_modules())
        # Bottom-up, because a module takes the parameters that no module inside it has taken.
        for unit in reversed(self.units):
            fully_shard([modules[path] for path in unit.modules], **options)
        if not isinstance(model, FSDPModule):
            fully_shard(model, **options)
        leaders: list[Any] = [modules[unit.modules[0]] for unit in self.units]
        for number, leader in enumerate(leaders):
            leader.set_modules_to_forward_prefetch(leaders[number + 1 : number + 1 + prefetch])
            leader.set_modules_to_backward_prefetch(leaders[max(0, number - prefetch) : number][::-1])
        return model

    def _require_units(self, model: "nn.Module", prefetch: int) -> None:
        if prefetch < 0:
            raise InputError(f"prefetch is {prefetch}; it must be at least 0")
        if self.unheld:
            raise InputError(
                f"parameter {self.unheld[0]!r} is used outside the module to shard, such as by the loss; FSDP "
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


class TrainingJob(Protocol):
    """A training step that can be captured, such as a `dlplacer.Job`."""

    def capture(self) -> OpGraph:
        """The dataflow graph of a step."""

    def parameter_uses(self) -> ParameterUses:
        """The modules that use the parameters of the step, and the order in which their gradients are finished."""


def plan_groups(
    job: TrainingJob, topology: Topology, *, graph: OpGraph | None = None, cap_bytes: int | None = None
) -> GroupPlan:
    """Message groups of least makespan for data parallelism over all devices of a machine.

    ``DDP(model, **plan.ddp_kwargs())`` sends gradients in these groups; ``plan.fully_shard(model, mesh=mesh)`` gathers
    parameters and scatters gradients in these groups.

    Parameters
    ----------
    graph
        The job's graph with measured times from ``dlplacer profile``; None captures the job and uses roofline times.
    cap_bytes
        Most bytes of a group; a larger parameter or module is sent alone.

    Raises
    ------
    InputError
        If the machine has one device, the graph is of another job, or an op has no time on the machine's devices.
    CaptureError
        If the job cannot be captured, or does not train.

    Examples
    --------
    >>> import dlplacer as dp
    >>> from dlplacer.data_parallel import plan_groups
    >>> from dlplacer.models import mlp
    >>> plan = plan_groups(mlp(width=1024), dp.load_topology("pcie-4gpu"))
    >>> [bucket.names[0] for bucket in plan.buckets]
    ['last.bias']
    """
    uses = job.parameter_uses()
    timed = with_times(job.capture() if graph is None else graph, topology)
    lines = exchange_lines(topology, sum(op.weight_bytes for op in timed.ops))
    device_type = topology.devices[0].type
    clock_s = serial_clock(timed, device_type, "backward")
    gradients = gradients_of(timed, uses, clock_s)
    units, gathered_s = plan_units(timed, device_type, uses, lines["all-gather"], lines["reduce-scatter"], cap_bytes)
    parameters = (op.id for op in timed.ops if op.kind == "parameter")
    return GroupPlan(
        plan_buckets(gradients, lines["all-reduce"], cap_bytes),
        max(end_s for _, end_s in clock_s.values()),
        units,
        gathered_s,
        uses.unused,
        tuple(name for name in parameters if name not in uses.holders),
    )


def exchange_lines(topology: Topology, total_bytes: int) -> dict[str, AlphaBeta]:
    """Collective → its cost among all devices of a machine, linear in the bytes of the whole vector.

    Each collective uses the fastest algorithm for `total_bytes`, which is usually also the fastest for a group.
    """
    if len(topology.devices) < 2:
        raise InputError(
            f"topology {topology.name!r} has one device, which exchanges nothing; give one with two or more"
        )
    costs = MachineCosts(Wiring(topology), (tuple(device.id for device in topology.devices),))
    return dict(costs.collectives(total_bytes))


def plan_units(
    graph: OpGraph, device_type: str, uses: ParameterUses, gather: AlphaBeta, scatter: AlphaBeta, cap_bytes: int | None
) -> tuple[tuple[ShardingUnit, ...], float]:
    """Units for both passes, and seconds of the forward pass with the gathers of the units.

    FSDP2 uses the same units in both passes. Of the best units for each pass, those with the smaller total time of both
    passes are chosen. In the backward pass a unit is gathered again, and its gradients are scattered.
    """
    if not uses.holders:
        return (), 0.0
    forward = unit_chain(graph, device_type, uses, gather, "forward")
    backward = unit_chain(graph, device_type, uses, gather + scatter, "backward")
    parameters = uses.held

    def both_s(cuts: tuple[int, ...]) -> float:
        return makespan_s(forward, cuts) + makespan_s(backward, cuts, "backward")

    cuts = min((best_groups(forward, cap_bytes), best_groups(backward, cap_bytes)), key=both_s)
    units = tuple(
        _unit(forward.names[before:last], parameters, forward.bytes[before:last])
        for before, last in pairwise((0, *cuts))
    )
    return units, makespan_s(forward, cuts)


def _unit(paths: tuple[str, ...], parameters: dict[str, list[str]], sizes: tuple[int, ...]) -> ShardingUnit:
    """The unit of these modules; a module inside another one of the unit is not listed."""

    def inside(path: str) -> bool:
        return any(path != other and f"{path}.".startswith(f"{other}." if other else "") for other in paths)

    outer = tuple(path for path in paths if not inside(path))
    return ShardingUnit(outer, tuple(name for path in paths for name in parameters[path]), sum(sizes))
