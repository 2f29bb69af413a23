"""From a plan of a coarse graph back to the ops that its graph was made from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.planning.coarsen.contract import members_of
from dlplacer.problem.simulate import in_order, replay_plan

_FLOPS_PER_BYTE = 10
"""FLOPs that take about as long as moving a byte: between 5 (a CPU core) and 20 (a V100 in float32)."""


def expanded_order(coarse: OpGraph, order: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Device → the original ops in execution order: every coarse op in place of its origin, in the origin's order."""
    return {
        device: [member for name in names for member in members_of(coarse.op(name))] for device, names in order.items()
    }


def expanded_plan(plan: Plan, fine: OpGraph) -> Plan:
    """The plan of a coarse graph as a plan of the graph that it was made from: same devices, same order.

    Transfers start as soon as the op that makes the tensor has run, so the plan may be faster than the coarse one. An
    op without a time gets its share of the coarse op's time, by FLOPs and bytes; an equal one where none has any.

    Raises
    ------
    MismatchError
        If the coarse graph was not made from these ops.
    """
    origins = [member for op in plan.graph.ops for member in members_of(op)]
    if sorted(origins) != sorted(fine.index):
        odd = sorted(set(origins) ^ fine.index.keys()) or sorted(origins)
        raise MismatchError(f"the plan was not made from this graph; op {odd[0]!r} is only in one of them, or twice")
    timed = _with_shares(plan, fine)
    scheduled = tuple(
        replace(entry, op=member) for entry in in_order(plan) for member in members_of(plan.graph.op(entry.op))
    )
    moved = replace(plan, graph=timed, ops=scheduled, transfers=(), memory={})
    return replay_plan(moved, timed, plan.topology)


def _with_shares(plan: Plan, fine: OpGraph) -> OpGraph:
    """The fine graph with a time for every op on all device types for which the coarse one has times."""
    types = {device.type for device in plan.topology.devices}
    timed: dict[str, Op] = {}
    for coarse in plan.graph.ops:
        members = [fine.op(name) for name in members_of(coarse)]
        weights = [member.bytes_accessed + member.flops / _FLOPS_PER_BYTE for member in members]
        if not any(weights):
            # Nothing tells the members apart, and what the coarse op takes must not be lost.
            weights = [1.0] * len(members)
        whole = sum(weights)
        for member, weight in zip(members, weights, strict=True):
            shares = {kind: time_s * weight / whole for kind in types if (time_s := coarse.time_on(kind)) is not None}
            own = {kind: time_s for kind in types if (time_s := member.time_on(kind)) is not None}
            timed[member.id] = replace(member, time_s={**shares, **own})
    return replace(fine, ops=tuple(timed[op.id] for op in fine.ops))
