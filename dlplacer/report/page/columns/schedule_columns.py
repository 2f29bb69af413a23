"""A schedule as columns: when and where every op runs and every tensor travels, what it waits for, what is alive."""

from typing import Any

from dlplacer.core.plan import Plan
from dlplacer.report.critical_path import critical_path
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
    path = set(map(id, () if is_run else critical_path(plan, arcs)))
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
            "slack": [] if is_run else clock.all_of(arcs.slack_s[:count]),
            "critical": [event for event, entry in enumerate(plan.ops) if id(entry) in path],
            **_waits(arcs, range(count)),
        },
        "transfers": _transfers(plan, arcs, clock, texts, path, is_run),
        "links": _links(plan, clock),
        "memory": memory_columns(plan, clock) if _knows_sizes(plan) else {},
    }


def _knows_sizes(plan: Plan) -> bool:
    """Whether it is known what is alive: of a recorded step it is not."""
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
    plan: Plan, arcs: ScheduleArcs, clock: PageClock, texts: Texts, path: set[int], is_run: bool
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
        "critical": [number for number, transfer in enumerate(sent) if id(transfer) in path],
        **{name: [column[first] for first in firsts] for name, column in waits.items()},
    }


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
