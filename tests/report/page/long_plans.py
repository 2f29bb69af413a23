"""Plans of any length for the page: a made-up model, scheduled op by op on all its devices."""

import random
from collections.abc import Mapping
from itertools import pairwise

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.options import Options
from dlplacer.core.plan import DeviceMemory, Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Topology

_KINDS = ("aten.convolution", "aten.relu", "aten.add", "aten.mm", "aten.cat", "aten._softmax", "aten.mul")
_LAYER = 20


def long_plan(count: int, devices: int = 8, seed: int = 0) -> Plan:
    """A plan of `count` ops: layers of 20 whose ops read two of the layer before, forward, then backward.

    An op starts when its inputs are there and its device is free; a tensor goes to a device once, over a link of their
    own, one after another.
    """
    draw = random.Random(seed)
    ops, edges = [], []
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
    names = [f"gpu{number}" for number in range(devices)]
    links = [Link(one, other, 5e10) for position, one in enumerate(names) for other in names[position + 1 :]]
    topology = Topology(
        tuple(Device(name, "V100", 16 << 30) for name in names), links=tuple(links), name=f"{devices} GPUs"
    )
    return _scheduled(OpGraph(tuple(ops), tuple(edges), name=f"{count} ops"), topology, draw)


def _scheduled(graph: OpGraph, topology: Topology, draw: random.Random) -> Plan:
    names = [device.id for device in topology.devices]
    free = dict.fromkeys(names, 0.0)
    link_free = {hop: 0.0 for link in topology.links for hop in pairwise((link.source, link.target, link.source))}
    entries: dict[str, ScheduledOp] = {}
    arrived: dict[tuple[str, str], Transfer] = {}
    for op in graph.ops:
        device = draw.choice(names)
        ready = free[device]
        for edge in graph.edges_into[op.id]:
            producer = entries[edge.source]
            if producer.device != device and (edge.tensor, device) not in arrived:
                hop = (producer.device, device)
                begin = max(producer.end_s, link_free[hop])
                end = begin + edge.bytes / topology.link_between[hop].total_bytes_per_s
                link_free[hop] = end
                segment = TransferSegment((hop,), begin, end)
                arrived[edge.tensor, device] = Transfer(edge.tensor, edge.source, device, edge.bytes, (segment,))
            here = producer.device == device
            ready = max(ready, producer.end_s if here else arrived[edge.tensor, device].end_s)
        end = ready + (op.time_on("V100") or 0.0)
        entries[op.id] = ScheduledOp(op.id, device, ready, end)
        free[device] = end
    makespan_s = max(free.values())
    return Plan(
        graph=graph,
        topology=topology,
        options=Options(step="joint"),
        status="feasible",
        makespan_s=makespan_s,
        lower_bound_s=0.9 * makespan_s,
        gap=0.1,
        rounding_s=0.0,
        method="made up",
        solve_s=0.0,
        ops=tuple(sorted(entries.values(), key=lambda entry: (entry.start_s, entry.end_s))),
        transfers=tuple(arrived.values()),
        memory={name: DeviceMemory(16 << 30, 0) for name in names},
    )


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
