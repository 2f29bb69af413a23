"""A schedule as columns: when and where every op runs and every tensor travels, what it waits for, what is alive."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dlplacer.core.plan import Plan, Transfer
from dlplacer.report.critical_path import PathPart, critical_parts
from dlplacer.report.link_use import link_uses
from dlplacer.report.page.columns.memory_columns import memory_columns
from dlplacer.report.page.columns.page_clock import PageClock
from dlplacer.report.page.columns.texts import Texts, visible
from dlplacer.report.schedule_arcs import ScheduleArcs


def schedule_columns(
    plan: Plan, name: str, graph: int, clock: PageClock, texts: Texts, is_run: bool = False
) -> dict[str, Any]:
    """Everything that the page shows of one schedule.

    Times are in the clock's unit. Ops are in `Plan.ops` order and refer to the columns of the graph; events are
    numbered ops first, then transfers.

    Parameters
    ----------
    is_run
        Whether it is a step of a run, predicted or measured. Its devices also spend time on handing over tensors, which
        no event represents: it has no bound, no slack and no critical path.
    """
    arcs = ScheduleArcs(plan)
    device = plan.topology.device_index
    parts = () if is_run else critical_parts(plan, arcs)
    path = {id(part.step) for part in parts}
    count = len(plan.ops)
    return {
        "name": visible(name),
        "graph": graph,
        "end": clock.of(plan.makespan_s),
        "bound": 0 if is_run else clock.of(plan.lower_bound_s),
        "devices": _devices(plan),
        "ops": {
            "op": [plan.graph.index[entry.op] for entry in plan.ops],
            "device": [device[entry.device] for entry in plan.ops],
            "start": clock.all_of(entry.start_s for entry in plan.ops),
            "time": clock.all_of(entry.end_s - entry.start_s for entry in plan.ops),
            # What issues and hand-overs leave between steps of the path is no slack of theirs.
            "slack": []
            if is_run
            else clock.all_of(
                0.0 if id(entry) in path else arcs.slack_s[event] for event, entry in enumerate(plan.ops)
            ),
            "critical": [event for event, entry in enumerate(plan.ops) if id(entry) in path],
            **_waits(arcs, range(count)),
        },
        "transfers": _transfers(plan, arcs, clock, texts, parts, is_run),
        "links": _links(plan, clock),
        "memory": memory_columns(plan, clock) if _knows_sizes(plan) else {},
    }


def _knows_sizes(plan: Plan) -> bool:
    """True if it is known what is alive: of a recorded step it is not."""
    return plan.method != "measured" and any(op.footprint_bytes for op in plan.graph.ops)


def _devices(plan: Plan) -> dict[str, Any]:
    devices = plan.topology.devices
    known = [plan.memory.get(device.id) for device in devices]
    return {
        "name": [visible(device.id) for device in devices],
        "type": [visible(device.type) for device in devices],
        "capacity": [device.memory_bytes for device in devices],
        "peak": [None if memory is None else memory.peak_bytes for memory in known],
    }


def _waits(arcs: ScheduleArcs, events: range) -> dict[str, list[int]]:
    """[event] → what ended last before it, a transfer being one event whatever its segments, and why it waited."""
    count = len(arcs.plan.ops)
    owner = list(range(count))
    for number in range(len(arcs.plan.transfers)):
        owner += [count + number] * (arcs.first_segment[number + 1] - arcs.first_segment[number])
    found = [arcs.latest_before[event] for event in events]
    return {
        "waited": [-1 if arc is None else owner[arc.before] for arc in found],
        "why": [-1 if arc is None else arc.why for arc in found],
    }


def _transfers(
    plan: Plan, arcs: ScheduleArcs, clock: PageClock, texts: Texts, parts: Sequence[PathPart], is_run: bool
) -> dict[str, Any]:
    sent = plan.transfers
    firsts = arcs.first_segment[:-1]
    lasts = [first - 1 for first in arcs.first_segment[1:]]
    waits = _waits(arcs, range(len(arcs.spans)))
    slack = clock.all_of(min(arcs.slack_s[first : last + 1]) for first, last in zip(firsts, lasts, strict=True))
    return {
        "tensor": [texts.of(transfer.tensor) for transfer in sent],
        "source": [arcs.op_event[transfer.source] for transfer in sent],
        "target": [plan.topology.device_index[transfer.target] for transfer in sent],
        "bytes": [transfer.bytes for transfer in sent],
        "start": clock.all_of(transfer.start_s for transfer in sent),
        "time": clock.all_of(transfer.end_s - transfer.start_s for transfer in sent),
        "slack": [] if is_run else slack,
        "route": [texts.of(_route(transfer.segments)) for transfer in sent],
        **_on_path(plan, clock, parts),
        "serves": _served(plan),
        **{name: [column[first] for first in firsts] for name, column in waits.items()},
    }


def _on_path(plan: Plan, clock: PageClock, parts: Sequence[PathPart]) -> dict[str, list[int]]:
    """Transfers of the critical path, and from when to when each is on it."""
    number = {id(transfer): position for position, transfer in enumerate(plan.transfers)}
    sent = [part for part in parts if isinstance(part.step, Transfer)]
    return {
        "critical": [number[id(part.step)] for part in sent],
        "criticalFrom": clock.all_of(part.begin_s for part in sent),
        "criticalUntil": clock.all_of(part.end_s for part in sent),
    }


def _served(plan: Plan) -> list[list[int]]:
    """Edges between devices, and the transfer that serves each; of several of one tensor each serves one, in turn."""
    arrivals: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, sent in enumerate(plan.transfers):
        arrivals[sent.tensor, sent.target].append(number)
    edges, transfers = [], []
    for position, edge in enumerate(plan.graph.edges):
        there = plan.placement[edge.target]
        if plan.placement[edge.source] != there and (found := arrivals[edge.tensor, there]):
            edges.append(position)
            transfers.append(found[0] if len(found) == 1 else found.pop(0))
    return [edges, transfers]


def _route(segments: tuple[Any, ...]) -> str:
    nodes = [segments[0].route[0][0], *(there for segment in segments for _, there in segment.route)]
    return " → ".join(nodes)


def _links(plan: Plan, clock: PageClock) -> dict[str, Any]:
    """Link directions that are used, and their uses: direction, transfer, start and time."""
    used = link_uses(plan)
    number = {id(transfer): position for position, transfer in enumerate(plan.transfers)}
    rows = [
        (direction, number[id(use.transfer)], clock.of(use.start_s), clock.of(use.end_s - use.start_s))
        for direction, uses in enumerate(used.values())
        for use in uses
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return {
        "from": [visible(source) for source, _ in used],
        "to": [visible(target) for _, target in used],
        "bytesPerS": [plan.topology.link_between[hop].total_bytes_per_s for hop in used],
        "uses": dict(zip(("link", "transfer", "start", "time"), columns, strict=True)),
    }
