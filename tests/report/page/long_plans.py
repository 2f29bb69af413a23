"""Plans of any length for the page: a made-up model, scheduled op by op on all its devices."""

import random
from collections.abc import Mapping
from dataclasses import replace

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place

_KINDS = ("aten.convolution", "aten.relu", "aten.add", "aten.mm", "aten.cat", "aten._softmax", "aten.mul")
_LAYER = 20


def long_plan(count: int, devices: int = 8, seed: int = 0) -> Plan:
    """A plan of `count` ops: layers of 20 whose ops read two of the layer before, forward, then backward.

    Every op has a random device of its own; a tensor goes to a device once, over a link between the two.
    """
    draw = random.Random(seed)
    ops, edges, names = [], [], [f"gpu{number}" for number in range(devices)]
    for number in range(count):
        layer = number // _LAYER
        forward = 2 * number < count
        depth = layer if forward else count // _LAYER - layer
        module = f"model.blocks.{depth // 10}.layer{depth % 10}.branch{number % 4}"
        size = draw.randrange(1, 64) << 16
        ops.append(
            Op(
                f"{'forward' if forward else 'backward'}_{number}",
                draw.choice(_KINDS),
                draw.choice((2e-6, 5e-6, 2e-5, 1.5e-4)) * draw.uniform(0.8, 1.2),
                flops=draw.randrange(10**9),
                dtype="float32",
                outputs=(TensorSpec((32, size >> 7), "float32", size),),
                weight_bytes=size // 8 if number % 5 == 0 else 0,
                output_bytes=size,
                phase="forward" if forward else "backward",
                module=module,
            )
        )
        before = range(max(0, (layer - 1) * _LAYER), layer * _LAYER)
        for source in sorted(draw.sample(before, 2)) if before else ():
            edges.append(Edge(ops[source].id, ops[number].id, ops[source].output_bytes, tensor=f"{ops[source].id}.0"))
    links = [Link(one, other, 5e10) for position, one in enumerate(names) for other in names[position + 1 :]]
    machine = Topology(tuple(Device(name, "V100", 16 << 30) for name in names), (), tuple(links), f"{devices} GPUs")
    graph = OpGraph(tuple(ops), tuple(edges), name=f"{count} ops")
    held = replace(graph, ops=tuple(replace(op, devices=(draw.choice(names),)) for op in ops))
    return replace(place(held, machine, Options(step="joint", routing="shortest"), method="list").plan, graph=graph)


def replayed(plan: Plan, longer_s: Mapping[str, float]) -> float:
    """The makespan of a plan of `long_plan` if some ops take longer: all orders stay, everything starts when it can."""
    free = dict.fromkeys(plan.topology.device_index, 0.0)
    link_free: dict[tuple[str, str], float] = {}
    ends: dict[str, float] = {}
    arrived: dict[tuple[str, str], float] = {}
    events: list[ScheduledOp | Transfer] = sorted([*plan.ops, *plan.transfers], key=lambda event: event.start_s)
    for event in events:
        if isinstance(event, Transfer):
            hop = event.segments[0].route[0]
            begin = max(ends[event.source], link_free.get(hop, 0.0))
            link_free[hop] = arrived[event.tensor, event.target] = begin + event.end_s - event.start_s
            continue
        ready = free[event.device]
        for edge in plan.graph.edges_into[event.op]:
            here = plan.placement[edge.source] == event.device
            ready = max(ready, ends[edge.source] if here else arrived[edge.tensor, event.device])
        free[event.device] = ends[event.op] = ready + event.end_s - event.start_s + longer_s.get(event.op, 0.0)
    return max(ends.values())
