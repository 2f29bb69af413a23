"""Tables of graphs, machines and plans, and of the objects that ``--json`` prints."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.table import Table, column_of
from dlplacer.core.topology import Topology

_WORK = ("flops", "bytes_accessed", "weight_bytes", "gradient_bytes", "state_bytes", "output_bytes")
_DEVICE = (
    *("device", "type", "memory_bytes|memory|bytes|unlimited", "flops_per_s|float32|flops_per_s"),
    "memory_bytes_per_s|memory rate|bytes_per_s",
)
_ISSUE = ("dispatch_s|dispatch|seconds", "process||text|own")
_LINK = ("source|link", "target|to", "bytes_per_s|rate|bytes_per_s", "latency_s|latency|seconds", "duplex", "count")
_SCHEDULED = ("op", "device", "start_s", "end_s", "time_s", "kind", "phase", "module")
_TRANSFER = ("tensor", "source", "from_device", "to_device", "bytes", "start_s", "end_s", "time_s", "route")
_USE = (
    *("device", "type", "ops", "busy_s|busy|seconds", "idle_s|idle|seconds", "peak_bytes|peak memory|bytes"),
    *("capacity_bytes|capacity|bytes|unlimited", "received_bytes|received|bytes"),
)


def ops(graph: OpGraph) -> Table:
    """A row per op of a graph, in the graph's order."""
    records = []
    for op in graph.ops:
        times = op.time_s if isinstance(op.time_s, Mapping) else {"": op.time_s}
        record: dict[str, Any] = {"op": op.id, "kind": op.kind, "phase": op.phase, "module": op.module}
        record |= {f"time_s[{kind}]" if kind else "time_s": time_s for kind, time_s in times.items()}
        record |= {name: getattr(op, name) for name in (*_WORK, "workspace_bytes", "footprint_bytes", "colocate")}
        records.append(record)
    return Table.of(records)


def devices(topology: Topology) -> Table:
    """A row per device of a machine: type, memory and rates, and the issue cost if any device has one."""
    issued = any(device.dispatch_s for device in topology.devices)
    rows = []
    for device in topology.devices:
        rates = device.flops_per_s
        flops = rates.get("float32") if isinstance(rates, Mapping) else rates
        row = (device.id, device.type, device.memory_bytes, flops, device.memory_bytes_per_s)
        rows.append((*row, device.dispatch_s or 0.0, device.process or None) if issued else row)
    return Table.described(rows, *_DEVICE, *(_ISSUE if issued else ()), title=topology.name)


def links(topology: Topology) -> Table:
    """A row per link of a machine; if any was timed, also how far the timed copies are off the fitted line."""
    timed = any("measured" in link.meta or "refused" in link.meta for link in topology.links)
    rows = []
    for link in topology.links:
        row = (link.source, link.target, link.bytes_per_s, link.latency_s, link.duplex, link.count)
        fit = link.meta.get("measured", {}).get("residual", "refused: assumed" if "refused" in link.meta else "assumed")
        rows.append((*row, fit if isinstance(fit, str) else f"{100 * float(fit):.0f} %") if timed else row)
    return Table.described(rows, *_LINK, *(["fit|copies off by"] if timed else []))


def schedule(plan: Plan) -> Table:
    """A row per op of a plan, by start."""
    rows = []
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, entry.end_s)):
        op = plan.graph.op(entry.op)
        times = (entry.start_s, entry.end_s, entry.end_s - entry.start_s)
        rows.append((entry.op, entry.device, *times, op.kind, op.phase, op.module))
    return Table.described(rows, *_SCHEDULED)


def transfers(plan: Plan) -> Table:
    """A row per transfer of a plan, by start; the route lists the names of its nodes."""
    rows = []
    for entry in sorted(plan.transfers, key=lambda entry: (entry.start_s, entry.end_s)):
        ends = (plan.placement.get(entry.source), entry.target)
        times = (entry.start_s, entry.end_s, entry.end_s - entry.start_s)
        rows.append((entry.tensor, entry.source, *ends, entry.bytes, *times, " → ".join(entry.nodes)))
    return Table.described(rows, *_TRANSFER)


def device_use(plan: Plan) -> Table:
    """A row per device of a plan's machine: its times in the step, its memory, and the bytes it receives."""
    counts, received = Counter(plan.placement.values()), Counter[str]()
    for sent in plan.transfers:
        received[sent.target] += sent.bytes
    rows = []
    for device in plan.topology.devices:
        name, memory = device.id, plan.memory.get(device.id)
        busy_s = plan.busy_s[name]
        times = (busy_s, max(0.0, plan.makespan_s - busy_s))
        peak = None if memory is None else memory.peak_bytes
        rows.append((name, device.type, counts[name], *times, peak, device.memory_bytes, received[name]))
    return Table.described(rows, *_USE)


def figures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(Name, text) of each single value in an object that ``--json`` prints, nested objects included."""
    found = []
    for name, value in record.items():
        column, is_series = column_of(name), isinstance(value, (list, tuple))
        if isinstance(value, Mapping) and not any(isinstance(entry, (Mapping, list)) for entry in value.values()):
            inner = value.items() if column.format == "any" else ()
            found += [(f"{column.head} {one}", text) for one, text in figures(dict(inner))]
            found += [(f"{column.head} {one}", column.cell(entry)) for one, entry in value.items() if not inner]
        elif is_series and column.format != "any":
            found.append((column.head, ", ".join(map(column.cell, value))))
        elif value not in (None, "", [], ()) and not isinstance(value[0] if is_series else value, (Mapping, list)):
            found.append((column.head, column.cell(value)))
    return found


def tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """A table for each list of records and each dict of records in an object that ``--json`` prints."""
    for name, value in record.items():
        title = name.replace("_", " ")
        if isinstance(value, Mapping) and value and all(isinstance(entry, Mapping) for entry in value.values()):
            yield Table.of([{title: key, **entry} for key, entry in value.items()], title=title)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
            yield Table.of(value, title=title)
