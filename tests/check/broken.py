"""Ways to break a right plan, and the right plans that are broken."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from check import plans
from check.plans import sent

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import DeviceMemory, Plan
from dlplacer.core.topology import Link


@dataclass(frozen=True)
class Broken:
    """A plan that breaks one rule: the rule, and the name that is reported.

    `also` names what cannot be right any more once this rule is broken.
    """

    rule: Callable[[Plan], Any]
    plan: Plan
    name: str
    also: tuple[str, ...] = ()


def over(plan: Plan, *segments: tuple[str, float, float]) -> Plan:
    """The plan with its only transfer over other segments, to the same device."""
    (transfer,) = plan.transfers
    new = sent(transfer.tensor, transfer.source, transfer.bytes, *segments)
    return replace(plan, transfers=(replace(new, target=transfer.target),))


def reporting(plan: Plan, device: str, capacity_bytes: int | None, peak_bytes: int) -> Plan:
    """The plan with another memory entry."""
    return replace(plan, memory={**plan.memory, device: DeviceMemory(capacity_bytes, peak_bytes)})


def smaller(plan: Plan, memory_bytes: int) -> Plan:
    """The plan with another capacity of device a, in the topology and in its report."""
    devices = tuple(replace(d, memory_bytes=memory_bytes) if d.id == "a" else d for d in plan.topology.devices)
    smaller_plan = replace(plan, topology=replace(plan.topology, devices=devices))
    return reporting(smaller_plan, "a", memory_bytes, plan.memory["a"].peak_bytes)


def alone(*ops: tuple[str, float, float]) -> Plan:
    """Ops without edges on one device, in the order given."""
    graph = OpGraph(tuple(Op(name, "test", end_s - start_s) for name, start_s, end_s in ops))
    scheduled = [(name, "a", start_s, end_s) for name, start_s, end_s in ops]
    return plans.plan(graph, plans.machine(), plans.PAPER, scheduled)


def circle() -> Plan:
    """Ops of no time: a runs p, then q; b runs r, then s. But p reads s, and r reads q."""
    graph = OpGraph(tuple(Op(name, "test", 0) for name in "pqrs"), (Edge("s", "p", 0), Edge("q", "r", 0)))
    order = [(name, device, 0.0, 0.0) for name, device in ("pa", "qa", "rb", "sb")]
    transfers = [sent("s:0->p", "s", 0, ("ba", 0, 0)), sent("q:0->r", "q", 0, ("ab", 0, 0))]
    return plans.plan(graph, plans.machine(Link("a", "b", 1)), plans.PAPER, order, transfers)


SINGLE, CROSSING, ROUTED, RELAYED = plans.single(), plans.crossing(), plans.routed(), plans.relayed()
SHARED, CONTENDED, TRAINED, ALIVE = plans.shared("device"), plans.contended(), plans.trained(), plans.alive()
SERIAL, HOPS = plans.shared("edge", "link"), plans.hop_by_hop("store-and-forward")
TOGETHER = plans.hop_by_hop("cut-through")


def approximately(*levels: tuple[float, int]) -> list[Any]:
    return [(pytest.approx(time_s, abs=1e-6), level) for time_s, level in levels]
