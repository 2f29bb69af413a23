"""A plan as a Chrome trace: the JSON that ui.perfetto.dev and chrome://tracing open."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dlplacer.check import live_bytes
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.report.critical_path import critical_path
from dlplacer.report.link_use import LinkUse, link_uses

_COMPUTE = "compute"

TraceEvent = dict[str, Any]
"""One event of the Trace Event Format, ready for JSON."""

Thread = tuple[str, str]
"""A node of the topology and the name of one of its threads."""


def chrome_trace(plan: Plan) -> dict[str, Any]:
    """The plan in the Trace Event Format, ready for JSON: times and durations in microseconds.

    Each device and each forwarding router is a process. A device has a thread ``compute``; each outgoing link direction
    is a thread, or several if transfers overlap on it (``contention: none``). Ops that take no time are left out.
    ``args.critical`` marks the critical path; counters hold the live memory of each device.
    """
    rows = _rows(plan)
    threads = _threads(plan, rows)
    events = [*_names(threads), *_slices(plan, rows, threads)]
    for device in plan.topology.devices:
        pid, tid = threads[device.id, _COMPUTE]
        for time_ns, level in {_ns(time_s): level for time_s, level in live_bytes(plan, device.id)}.items():
            place = {"pid": pid, "tid": tid, "ts": _us(time_ns)}
            events.append({"ph": "C", "name": "memory", **place, "args": {"bytes": level}})
    names = ("status", "method", "makespan_s", plan.objective.figure, "lower_bound_s", "gap")
    told = {"graph": plan.graph.name, "topology": plan.topology.name, "options": plan.options.to_dict()}
    told |= {name: getattr(plan, name) for name in names}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": told}


def _rows(plan: Plan) -> list[tuple[Thread, LinkUse]]:
    """Each link use with the first free thread of its direction, because slices of one thread must not overlap."""
    placed = []
    for (source, target), uses in link_uses(plan).items():
        free_ns: list[int] = []
        for use in uses:
            row = next((row for row, end_ns in enumerate(free_ns) if end_ns <= _ns(use.start_s)), len(free_ns))
            free_ns[row : row + 1] = [_ns(use.end_s)]
            placed.append(((source, f"to {target}" + (f" ({row + 1})" if row else "")), use))
    return placed


def _threads(plan: Plan, rows: list[tuple[Thread, LinkUse]]) -> Mapping[Thread, tuple[int, int]]:
    """Thread → (pid, tid). No id is 0, which Perfetto reserves for the idle process, and no tid is used twice."""
    names = [(device.id, _COMPUTE) for device in plan.topology.devices] + [thread for thread, _ in rows]
    order = {node.id: position for position, node in enumerate(plan.topology.nodes, start=1)}
    distinct = sorted(dict.fromkeys(names), key=lambda thread: order[thread[0]])
    return {thread: (order[thread[0]], len(order) + position) for position, thread in enumerate(distinct, start=1)}


def _names(threads: Mapping[Thread, tuple[int, int]]) -> Iterator[TraceEvent]:
    for node, pid in dict.fromkeys((node, pid) for (node, _), (pid, _) in threads.items()):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": node}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for (_, name), (pid, tid) in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slices(
    plan: Plan, rows: list[tuple[Thread, LinkUse]], threads: Mapping[Thread, tuple[int, int]]
) -> Iterator[TraceEvent]:
    critical = {part.step for part in critical_path(plan)}
    for entry in plan.ops:
        if _takes_time(entry):
            op = plan.graph.op(entry.op)
            args = {"kind": op.kind, "module": op.module, "phase": op.phase, "bytes": op.output_bytes}
            head = {"name": op.id, "cat": op.phase or "op", **_span(threads[entry.device, _COMPUTE], entry)}
            yield {**head, "args": {**args, "critical": entry in critical}}
    for thread, use in rows:
        if _takes_time(use):
            sent = use.transfer
            args = {"source": sent.source, "target": sent.target, "bytes": sent.bytes, "critical": sent in critical}
            yield {"name": sent.tensor, "cat": "transfer", **_span(threads[thread], use), "args": args}


def _takes_time(span: ScheduledOp | LinkUse) -> bool:
    return _ns(span.end_s) > _ns(span.start_s)


def _span(where: tuple[int, int], span: ScheduledOp | LinkUse) -> TraceEvent:
    start_ns, end_ns = _ns(span.start_s), _ns(span.end_s)
    return {"ph": "X", "ts": _us(start_ns), "dur": _us(end_ns - start_ns), "pid": where[0], "tid": where[1]}


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _us(time_ns: int) -> float:
    """Microseconds that Perfetto, which multiplies by 1000 and truncates, reads as this many nanoseconds.

    Otherwise neighbouring slices would overlap by 1 ns and be drawn as nested.
    """
    value = time_ns / 1000
    return value if int(value * 1000) == time_ns else math.nextafter(value, math.inf)
