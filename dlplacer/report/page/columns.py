"""The data of plans on a page: columns of numbers and one table of texts, small and quick to read."""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from dlplacer.check import live_tensors, resident_bytes
from dlplacer.core.op import PHASES
from dlplacer.core.plan import Plan, Transfer
from dlplacer.report.critical_path import PathPart, ScheduleArcs, critical_path
from dlplacer.report.link_use import link_uses
from dlplacer.report.module_blocks import blocks_of

# Control, format, surrogate, private use, line separators: invisible, or (bidi) able to reorder their neighbours.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """The text with invisible and direction-changing characters replaced by their codes: ``[U+202E]``."""
    if text.isascii() and text.isprintable():
        return text
    hidden = {character for character in text if unicodedata.category(character) in _HIDDEN}
    return "".join(f"[U+{ord(character):04X}]" if character in hidden else character for character in text)


Texts: TypeAlias = dict[str, int]
"""Text → the position by which columns refer to it; position 0 is the empty text."""


def text_of(texts: Texts, text: str | None) -> int:
    """The position of a text in the table; a new text is added."""
    return texts.setdefault(visible(text or ""), len(texts))


_DIGITS = 9


class PageClock:
    """Converts times up to `span_s` into integers of at most nine digits: a billionth of the step is invisible.

    `unit_s` is the unit in seconds, a power of ten.
    """

    def __init__(self, span_s: float) -> None:
        self.unit_s = float(f"1e{math.floor(math.log10(span_s)) + 1 - _DIGITS if span_s > 0 else -_DIGITS}")

    def of(self, time_s: float) -> int:
        """The time in units of `unit_s`, rounded."""
        return round(time_s / self.unit_s)

    def all_of(self, times_s: Iterable[float]) -> list[int]:
        """`of` for each time."""
        return [round(time_s / self.unit_s) for time_s in times_s]


WHAT = ("output", "copy", "workspace", "relayed")


def memory_columns(plan: Plan, clock: PageClock) -> dict[str, Any]:
    """Resident bytes per device, and columns of temporary tensors: device, op, kind, start, duration, bytes.

    Starts are rounded up. Ends, minus the time tolerance, are rounded down. So a tensor that frees
    memory for another one still ends first, and no memory level exceeds the level in `check`.
    """
    event = {entry.op: position for position, entry in enumerate(plan.ops)}
    rows = []
    for position, device in enumerate(plan.topology.devices):
        for live in live_tensors(plan, device.id):
            until_s = live.end_s - min(plan.tolerance_s, (live.end_s - live.start_s) / 2)
            start, end = math.ceil(live.start_s / clock.unit_s), math.floor(until_s / clock.unit_s)
            rows.append((position, event[live.op], WHAT.index(live.what), start, max(0, end - start), live.bytes))
    resident = [resident_bytes(plan, device.id) for device in plan.topology.devices]
    return {"resident": resident, **_columns(rows, "device", "op", "what", "start", "time", "bytes")}


def _columns(rows: Sequence[tuple[Any, ...]], *names: str) -> dict[str, list[Any]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)) if rows else ([] for _ in names), strict=True))


_PHASES = (None, *PHASES)


def graph_columns(plan: Plan, texts: Texts) -> dict[str, Any]:
    """Columns for the ops of a plan's graph, in file order, and for its edges.

    Strings are positions in the table of texts, except in `id`; `block` is the module block that a picture can colour.
    """
    graph = plan.graph
    blocks = blocks_of(plan)
    edges = [(graph.index[edge.source], graph.index[edge.target], edge.bytes) for edge in graph.edges]
    return {
        "id": [visible(op.id) for op in graph.ops],
        "kind": [text_of(texts, op.kind) for op in graph.ops],
        "module": [text_of(texts, op.module) for op in graph.ops],
        "block": [text_of(texts, blocks[op.id]) for op in graph.ops],
        "phase": [_PHASES.index(op.phase) for op in graph.ops],
        "dtype": [text_of(texts, ", ".join({spec.dtype: 0 for spec in op.outputs}) or op.dtype) for op in graph.ops],
        # In the usual notation: ``32×64×8×8, 32``.
        "shapes": [
            text_of(texts, ", ".join("×".join(map(str, spec.shape)) or "scalar" for spec in op.outputs))
            for op in graph.ops
        ],
        "outputBytes": [op.output_bytes for op in graph.ops],
        "keptBytes": [op.weight_bytes + op.gradient_bytes + op.state_bytes for op in graph.ops],
        "workspaceBytes": [op.workspace_bytes for op in graph.ops],
        "flops": [round(op.flops) for op in graph.ops],
        "edges": [*_columns(edges, "source", "target", "bytes").values()],
    }


def schedule_columns(
    plan: Plan, name: str, graph: int, clock: PageClock, texts: Texts, is_run: bool = False
) -> dict[str, Any]:
    """All data that the page shows for one schedule.

    Times are in units of `clock.unit_s`. Ops are in `Plan.ops` order and refer to the columns of the graph; events are
    numbered ops first, then transfers. The step of a run, predicted or measured, has no bound, no slack and no critical
    path: its devices also spend time on handing over tensors, which no event represents.
    """
    arcs = ScheduleArcs(plan)
    device = plan.topology.device_index
    parts = () if is_run else critical_path(plan, arcs)
    path = {id(part.step) for part in parts}
    # The time for issues and hand-overs between steps of the path is no slack of these steps.
    slack_s = (0.0 if id(entry) in path else arcs.slack_s[event] for event, entry in enumerate(plan.ops))
    return {
        "name": visible(name),
        "graph": graph,
        "end": clock.of(plan.makespan_s),
        "bound": 0 if is_run or not plan.objective.is_makespan else clock.of(plan.lower_bound_s),
        "devices": {
            "name": [visible(each.id) for each in plan.topology.devices],
            "type": [visible(each.type) for each in plan.topology.devices],
            "capacity": [each.memory_bytes for each in plan.topology.devices],
            "peak": [plan.memory[name].peak_bytes if name in plan.memory else None for name in device],
        },
        "ops": {
            "op": [plan.graph.index[entry.op] for entry in plan.ops],
            "device": [device[entry.device] for entry in plan.ops],
            "start": clock.all_of(entry.start_s for entry in plan.ops),
            "time": clock.all_of(entry.end_s - entry.start_s for entry in plan.ops),
            "slack": [] if is_run else clock.all_of(slack_s),
            "critical": [event for event, entry in enumerate(plan.ops) if id(entry) in path],
            **_waits(arcs, range(len(plan.ops))),
        },
        "transfers": _transfers(plan, arcs, clock, texts, parts, is_run),
        "links": _links(plan, clock),
        # The live tensors of a recorded step are not known.
        "memory": memory_columns(plan, clock)
        if plan.method != "measured" and any(op.footprint_bytes for op in plan.graph.ops)
        else {},
    }


def _waits(arcs: ScheduleArcs, events: range) -> dict[str, list[int]]:
    """[event] → the event that ended last before it, and the reason for the wait, or -1; a transfer is one event."""
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
    waits = _waits(arcs, range(len(arcs.spans)))
    slack = clock.all_of(min(arcs.slack_s[first:end]) for first, end in pairwise(arcs.first_segment))
    return {
        "tensor": [text_of(texts, transfer.tensor) for transfer in sent],
        "source": [arcs.op_event[transfer.source] for transfer in sent],
        "target": [plan.topology.device_index[transfer.target] for transfer in sent],
        "bytes": [transfer.bytes for transfer in sent],
        "start": clock.all_of(transfer.start_s for transfer in sent),
        "time": clock.all_of(transfer.end_s - transfer.start_s for transfer in sent),
        "slack": [] if is_run else slack,
        "route": [text_of(texts, " → ".join(transfer.nodes)) for transfer in sent],
        **_on_path(plan, clock, parts),
        "serves": _served(plan),
        **{name: [column[first] for first in firsts] for name, column in waits.items()},
    }


def _on_path(plan: Plan, clock: PageClock, parts: Sequence[PathPart]) -> dict[str, list[int]]:
    """The transfers on the critical path, and the interval that the path spends on each."""
    number = {id(transfer): position for position, transfer in enumerate(plan.transfers)}
    sent = [part for part in parts if isinstance(part.step, Transfer)]
    return {
        "critical": [number[id(part.step)] for part in sent],
        "criticalFrom": clock.all_of(part.begin_s for part in sent),
        "criticalUntil": clock.all_of(part.end_s for part in sent),
    }


def _served(plan: Plan) -> list[list[int]]:
    """Edges between devices, and the transfer that serves each; several transfers of a tensor serve edges in turn."""
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


def _links(plan: Plan, clock: PageClock) -> dict[str, Any]:
    """The used link directions, and their uses: direction, transfer, start and duration."""
    used = link_uses(plan)
    number = {id(transfer): position for position, transfer in enumerate(plan.transfers)}
    rows = [
        (direction, number[id(use.transfer)], clock.of(use.start_s), clock.of(use.end_s - use.start_s))
        for direction, uses in enumerate(used.values())
        for use in uses
    ]
    return {
        "from": [visible(source) for source, _ in used],
        "to": [visible(target) for _, target in used],
        "bytesPerS": [plan.topology.link_between[hop].total_bytes_per_s for hop in used],
        "uses": _columns(rows, "link", "transfer", "start", "time"),
    }
