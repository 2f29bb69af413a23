"""A job × a machine → which parameters travel together."""

from typing import Protocol

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.bucket_caps import plan_buckets
from dlplacer.data_parallel.groups.captured_chain import gradient_times, serial_clock
from dlplacer.data_parallel.groups.ddp_buckets import Gradient
from dlplacer.data_parallel.groups.group_plan import GroupPlan
from dlplacer.data_parallel.groups.parameter_uses import ParameterUses
from dlplacer.data_parallel.groups.sharding_units import plan_units
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.machines.costs.roofline_times import with_times


class TrainingJob(Protocol):
    """A training step that can be looked at, as `dlplacer.Job` is."""

    def capture(self) -> OpGraph:
        """The dataflow graph of a step."""

    def parameter_uses(self) -> ParameterUses:
        """Where a step uses its parameters, and when their gradients are finished."""


def plan_groups(
    job: TrainingJob, topology: Topology, *, graph: OpGraph | None = None, cap_bytes: int | None = None
) -> GroupPlan:
    """Message groups of least makespan for data parallelism over all devices of a machine.

    ``DDP(model, **plan.ddp_kwargs())`` sends gradients in these groups, ``plan.fully_shard(model, mesh=mesh)`` gathers
    and scatters parameters in them.

    Parameters
    ----------
    graph
        The job's graph with measured times, as ``dlplacer profile`` writes it; None captures the job and takes the
        roofline's times.
    cap_bytes
        Most bytes of a group; a parameter, or a module, above it travels alone.

    Raises
    ------
    InputError
        If the machine has one device, or the graph is not that of the job or has no times on the machine's devices.
    CaptureError
        If the job cannot be captured, or is none of training.

    Examples
    --------
    >>> import dlplacer as dp
    >>> from dlplacer.data_parallel import plan_groups
    >>> from dlplacer.models import mlp
    >>> plan = plan_groups(mlp(width=1024), dp.load_topology("pcie-4gpu"))
    >>> [bucket.names[0] for bucket in plan.buckets]
    ['last.bias']
    """
    timed = with_times(job.capture() if graph is None else graph, topology)
    lines = exchange_lines(topology, sum(op.weight_bytes for op in timed.ops))
    device_type = topology.devices[0].type
    uses = job.parameter_uses()
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
    """Collective → its seconds over the bytes of the whole vector, among all devices of a machine.

    Each has the algorithm that is the fastest for the total, which hardly differs from that for a group.

    Raises
    ------
    InputError
        If there is one device.
    """
    if len(topology.devices) < 2:
        raise InputError(
            f"topology {topology.name!r} has one device, which exchanges nothing; give one with two or more"
        )
    costs = MachineCosts(Wiring(topology), (tuple(device.id for device in topology.devices),))
    return dict(costs.collectives(total_bytes))


def gradients_of(graph: OpGraph, uses: ParameterUses, clock_s: dict[str, tuple[float, float]]) -> tuple[Gradient, ...]:
    """The gradients of a step in the order in which DDP finds them ready; those of unused parameters come last."""
    finished_s = gradient_times(graph, clock_s)
    end_s = max(end for _, end in clock_s.values())
    found = []
    for name in (*uses.gradient_order, *uses.unused):
        if name not in graph.index:
            raise InputError(
                f"graph {graph.name!r} has no parameter {name!r}, which the job trains; give the graph of this job"
            )
        op = graph.op(name)
        found.append(Gradient(name, op.weight_bytes, op.outputs[0].dtype, finished_s.get(name, end_s)))
    return tuple(found)
