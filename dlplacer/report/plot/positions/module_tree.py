"""A large graph collapsed along its module tree: blocks of modules in place of ops."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from dlplacer.core.plan import Plan
from dlplacer.report.plot.positions.op_blocks import short_names

_LARGEST_SHARE = 1 / 40
_SLICES = 40

Part = tuple[int, str, str]
"""What a block has of one phase on one device: (position of the block, phase, device)."""


@dataclass(frozen=True)
class CollapsedGraph:
    """The blocks of a plan's graph.

    Attributes
    ----------
    names
        The blocks in the order in which their forward ops follow each other.
    time_s
        Part → the time of its ops.
    moved_bytes
        (producing part, reading part) → what is sent from the device of one to that of the other, a tensor with several
        readers once for each.
    """

    names: tuple[str, ...]
    time_s: Mapping[Part, float]
    moved_bytes: Mapping[tuple[Part, Part], int]


def collapse(plan: Plan) -> CollapsedGraph:
    """The graph with every module that holds less than a fortieth of the ops as one block.

    Ops without module belong to the block of what they read; a graph without modules is cut into slices of its order.
    """
    block = _blocks(plan)
    names = _by_forward_order(plan, block)
    place = {name: position for position, name in enumerate(names)}
    time_s: dict[Part, float] = defaultdict(float)
    part: dict[str, Part] = {}
    for entry in plan.ops:
        part[entry.op] = (place[block[entry.op]], plan.graph.op(entry.op).phase or "forward", entry.device)
        time_s[part[entry.op]] += entry.end_s - entry.start_s
    moved: Counter[tuple[Part, Part]] = Counter()
    for edge in plan.graph.edges:
        source, target = part[edge.source], part[edge.target]
        if source[2] != target[2]:
            moved[source, target] += edge.bytes
    return CollapsedGraph(tuple(_shown_names(names)), time_s, moved)


def _by_forward_order(plan: Plan, block: Mapping[str, str]) -> list[str]:
    """The blocks by the middle of their forward ops that take time; those without such ops by all they have."""
    working: dict[str, list[int]] = defaultdict(list)
    every: dict[str, list[int]] = defaultdict(list)
    for position, op_id in enumerate(plan.graph.topological_order):
        entry = plan.scheduled[op_id]
        every[block[op_id]].append(position)
        if plan.graph.op(op_id).phase in (None, "forward") and entry.end_s > entry.start_s:
            working[block[op_id]].append(position)
    return sorted(every, key=lambda name: median(working.get(name) or every[name]))


def _shown_names(names: Iterable[str]) -> list[str]:
    listed = list(names)
    short = short_names(listed)
    return [short.get(name, "no module") for name in listed]


def _blocks(plan: Plan) -> dict[str, str]:
    """Op → its block: the path of a module, or a slice of the graph's order."""
    order = plan.graph.topological_order
    paths = {op.id: tuple(op.module.split(".")) for op in plan.graph.ops if op.module}
    if not paths:
        length = math.ceil(len(order) / _SLICES)
        begin = {op_id: position // length * length for position, op_id in enumerate(order)}
        return {op_id: f"op {first}–{min(first + length, len(order)) - 1}" for op_id, first in begin.items()}
    held = Counter(path[:length] for path in paths.values() for length in range(len(path) + 1))
    below = {path[:-1] for path in held if path}
    apart = {path for path, count in held.items() if count > _LARGEST_SHARE * len(paths) and path in below} | {()}
    found: dict[str, str] = {}
    for op_id in order:
        path = paths.get(op_id)
        if path is not None:
            found[op_id] = ".".join(next((path[:n] for n in range(len(path) + 1) if path[:n] not in apart), path))
            continue
        read = [found[edge.source] for edge in plan.graph.edges_into[op_id] if found[edge.source]]
        found[op_id] = read[-1] if read else ""
    for op_id in reversed(order):
        readers = [found[edge.target] for edge in plan.graph.edges_from[op_id] if found[edge.target]]
        found[op_id] = found[op_id] or (readers[0] if readers else "")
    return found
