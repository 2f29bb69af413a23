"""Graphs, topologies and plans as tables to go on working with: pandas DataFrames, a row per op, link or transfer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from dlplacer.core.graph import OpGraph
    from dlplacer.core.op import Op
    from dlplacer.core.plan import Plan
    from dlplacer.core.topology import Topology

_AMOUNTS = ("flops", "bytes_accessed")
_FOOTPRINT = ("weight_bytes", "gradient_bytes", "state_bytes", "output_bytes", "workspace_bytes", "footprint_bytes")
_EDGE = ("source", "target", "output", "bytes", "tensor")
_LINK = ("source", "target", "bytes_per_s", "latency_s", "duplex", "count")
_SCHEDULED = ("op", "device", "start_s", "end_s", "time_s", "kind", "phase", "module")
_TRANSFER = ("tensor", "source", "from_device", "to_device", "bytes", "start_s", "end_s", "time_s", "route")


def ops(graph: "OpGraph") -> "pandas.DataFrame":
    """A row per op of a graph, in its order."""
    import pandas

    return pandas.DataFrame([_op_row(op) for op in graph.ops])


def edges(graph: "OpGraph") -> "pandas.DataFrame":
    """A row per edge of a graph."""
    import pandas

    return pandas.DataFrame([[getattr(edge, name) for name in _EDGE] for edge in graph.edges], columns=list(_EDGE))


def devices(topology: "Topology") -> "pandas.DataFrame":
    """A row per device of a machine: type, memory and rates."""
    import pandas

    rows = [
        {
            "device": device.id,
            "type": device.type,
            "memory_bytes": device.memory_bytes,
            "flops_per_s": rates.get("float32") if isinstance(rates := device.flops_per_s, Mapping) else rates,
            "memory_bytes_per_s": device.memory_bytes_per_s,
        }
        for device in topology.devices
    ]
    return pandas.DataFrame(rows)


def links(topology: "Topology") -> "pandas.DataFrame":
    """A row per link of a machine."""
    import pandas

    return pandas.DataFrame([[getattr(link, name) for name in _LINK] for link in topology.links], columns=list(_LINK))


def schedule(plan: "Plan") -> "pandas.DataFrame":
    """A row per op of a plan, by start."""
    import pandas

    rows = []
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, entry.end_s)):
        op = plan.graph.op(entry.op)
        times = (entry.start_s, entry.end_s, entry.end_s - entry.start_s)
        rows.append((entry.op, entry.device, *times, op.kind, op.phase, op.module))
    return pandas.DataFrame(rows, columns=list(_SCHEDULED))


def transfers(plan: "Plan") -> "pandas.DataFrame":
    """A row per transfer of a plan, by start; the route is the names of the nodes that it passes."""
    import pandas

    rows = []
    for entry in sorted(plan.transfers, key=lambda entry: (entry.start_s, entry.end_s)):
        hops = [hop for segment in entry.segments for hop in segment.route]
        route = " → ".join([hops[0][0], *(end for _, end in hops)])
        ends = (plan.placement.get(entry.source), entry.target)
        times = (entry.start_s, entry.end_s, entry.end_s - entry.start_s)
        rows.append((entry.tensor, entry.source, *ends, entry.bytes, *times, route))
    return pandas.DataFrame(rows, columns=list(_TRANSFER))


def device_use(plan: "Plan") -> "pandas.DataFrame":
    """A row per device of a plan's machine: what it does in the step, and its memory."""
    import pandas

    busy_s = dict.fromkeys(plan.topology.device_index, 0.0)
    for entry in plan.ops:
        busy_s[entry.device] += entry.end_s - entry.start_s
    rows = [
        {
            "device": device.id,
            "type": device.type,
            "ops": len(plan.order[device.id]),
            "busy_s": busy_s[device.id],
            "idle_s": max(0.0, plan.makespan_s - busy_s[device.id]),
            "peak_bytes": plan.memory[device.id].peak_bytes if device.id in plan.memory else None,
            "capacity_bytes": device.memory_bytes,
        }
        for device in plan.topology.devices
    ]
    return pandas.DataFrame(rows)


def _op_row(op: "Op") -> dict[str, Any]:
    times = op.time_s if isinstance(op.time_s, Mapping) else {"": op.time_s}
    return {
        "op": op.id,
        **{name: getattr(op, name) for name in ("kind", "phase", "module")},
        **{f"time_s[{kind}]" if kind else "time_s": time_s for kind, time_s in times.items()},
        **{name: getattr(op, name) for name in (*_AMOUNTS, *_FOOTPRINT)},
        "colocate": op.colocate,
    }
