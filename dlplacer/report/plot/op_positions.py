"""Positions of a plan's ops in a picture of its graph.

The forward pass runs from left to right, branches one above the other; the backward pass runs back below it, every op
under the forward op of its module, and the optimizer below that.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from dlplacer.core.op import PHASES, Op
from dlplacer.core.plan import Plan
from dlplacer.report.module_blocks import computes

_BAND_GAP = 1.6
_CROWDED = 0.3
_CROWD = 3

Readers = Mapping[str, Sequence[str]]
"""Op → the ops whose tensors it reads."""


@dataclass(frozen=True)
class OpPositions:
    """Column and row of each shown op, above 0 forward, below 0 backward and optimizer; and (producer, consumer) pairs.

    Ops that are not shown are passed through by edges.
    """

    x: Mapping[str, float]
    y: Mapping[str, float]
    edges: tuple[tuple[str, str], ...]


@dataclass
class _Places:
    """Column and row of ops, spread where several would stand in one place."""

    x: dict[str, float] = field(default_factory=dict)
    row: dict[str, float] = field(default_factory=dict)
    crowd: Counter[tuple[int, int]] = field(default_factory=Counter)

    def put(self, op_id: str, column: float, row: float) -> None:
        others = self.crowd[round(column), round(row)]
        self.crowd[round(column), round(row)] += 1
        self.x[op_id] = column + _CROWDED * (others // _CROWD)
        self.row[op_id] = row + _CROWDED * (others % _CROWD)


def lay_out(plan: Plan) -> OpPositions:
    """A layered layout of the ops that compute and take time, or of all ops if none does."""
    shown = [op_id for op_id in plan.graph.topological_order if _takes_time(plan, op_id)]
    shown = shown or list(plan.graph.topological_order)
    sources = _sources(plan, set(shown))
    x: dict[str, float] = {}
    y: dict[str, float] = {}
    forward = _forward(plan, _of_phase(plan, shown, (None, "forward")), sources)
    below = -_BAND_GAP / 2
    bands = [forward, *(_mirrored(plan, _of_phase(plan, shown, (phase,)), sources, forward) for phase in PHASES[1:])]
    for places in bands:
        x |= places.x
        if places is forward:
            y |= {op_id: _BAND_GAP / 2 + row for op_id, row in places.row.items()}
        elif places.row:
            y |= {op_id: below - row for op_id, row in places.row.items()}
            below -= max(places.row.values()) + _BAND_GAP
    return OpPositions(x, y, tuple((source, op_id) for op_id in shown for source in sources[op_id]))


def _takes_time(plan: Plan, op_id: str) -> bool:
    entry = plan.scheduled[op_id]
    return entry.end_s > entry.start_s and computes(plan.graph.op(op_id))


def _of_phase(plan: Plan, shown: Iterable[str], phases: tuple[str | None, ...]) -> list[str]:
    return [op_id for op_id in shown if plan.graph.op(op_id).phase in phases]


def _sources(plan: Plan, shown: set[str]) -> Readers:
    """Op → the shown ops that it reads, directly or through ops that are not shown."""
    sources: dict[str, list[str]] = {}
    for op_id in plan.graph.topological_order:
        found: dict[str, None] = {}
        for edge in plan.graph.edges_into[op_id]:
            found.update(dict.fromkeys([edge.source] if edge.source in shown else sources[edge.source]))
        sources[op_id] = list(found)
    return sources


def _forward(plan: Plan, ops: Sequence[str], sources: Readers) -> _Places:
    """Columns by depth; rows so that a chain keeps its row and each branch gets another."""
    within = _within(ops, sources)
    column = _depths(within)
    linked = {*(op_id for op_id in ops if within[op_id]), *(source for found in within.values() for source in found)}
    places = _Places()
    rows = _rows([op_id for op_id in ops if op_id in linked], within, column)
    for op_id, row in rows.items():
        places.put(op_id, column[op_id], row)
    homes = _homes(plan, places)
    for op_id in ops:
        if op_id not in linked:
            home = _home(plan.graph.op(op_id), homes)
            columns, beside = [places.x[other.id] for other in home], [places.row[other.id] for other in home]
            places.put(op_id, fmean(columns or [0]), min(beside, default=0))
    return places


def _within(ops: Sequence[str], sources: Readers) -> Readers:
    inside = set(ops)
    return {op_id: [source for source in sources[op_id] if source in inside] for op_id in ops}


def _depths(within: Readers) -> dict[str, int]:
    """Op → length of the longest path to it; an op that reads none comes just before its first reader."""
    depth: dict[str, int] = {}
    first_reader: dict[str, int] = {}
    for op_id, sources in within.items():
        depth[op_id] = max((depth[source] + 1 for source in sources), default=0)
        for source in sources:
            first_reader[source] = min(first_reader.get(source, depth[op_id]), depth[op_id])
    return {op_id: depth[op_id] if within[op_id] else first_reader.get(op_id, 1) - 1 for op_id in within}


def _rows(ops: Sequence[str], within: Readers, column: Mapping[str, int]) -> dict[str, int]:
    """Op → row: that of an op it reads if no other op holds it, else the lowest free one."""
    last_reader: dict[str, int] = {}
    for op_id in ops:
        for source in within[op_id]:
            last_reader[source] = max(last_reader.get(source, 0), column[op_id])
    held_until: dict[int, int] = defaultdict(lambda: -1)
    row: dict[str, int] = {}
    for op_id in sorted(ops, key=lambda op_id: column[op_id]):
        here = column[op_id]
        inherited = [row[source] for source in within[op_id] if source in row and held_until[row[source]] <= here]
        free = (number for number in range(len(ops)) if held_until[number] < here)
        row[op_id] = min(inherited) if inherited else next(free)
        held_until[row[op_id]] = last_reader.get(op_id, here)
    return row


def _mirrored(plan: Plan, ops: Sequence[str], sources: Readers, forward: _Places) -> _Places:
    """Every op under the forward op of its module; an op without module just after, that is left of, its producers."""
    homes = _homes(plan, forward)
    home_of = {op_id: _home(plan.graph.op(op_id), homes) for op_id in ops}
    if not any(home_of.values()):
        return _reversed(ops, sources, forward)
    places = _Places()
    for op_id in ops:
        home = [other.id for other in home_of[op_id]]
        read = [source for source in sources[op_id] if source in places.x]
        if home:
            places.put(op_id, fmean(forward.x[other] for other in home), forward.row[home[0]] // 1)
        elif read:
            places.put(
                op_id, min(places.x[source] for source in read) - 1, min(places.row[source] for source in read) // 1
            )
        else:
            places.put(op_id, max((forward.x.get(source, 0) for source in sources[op_id]), default=0), 0)
    return places


def _reversed(ops: Sequence[str], sources: Readers, forward: _Places) -> _Places:
    """Columns from right to left by depth, as wide as the forward pass."""
    within = _within(ops, sources)
    depth = _depths(within)
    width = max(forward.x.values(), default=max(depth.values(), default=0))
    scale = width / max(1, *depth.values()) if depth else 0.0
    places = _Places()
    for op_id, row in _rows(ops, within, depth).items():
        places.put(op_id, width - scale * depth[op_id], row)
    return places


def _homes(plan: Plan, places: _Places) -> Mapping[str, list[Op]]:
    """Path of a module or of one around it → the placed ops in it."""
    homes: dict[str, list[Op]] = defaultdict(list)
    for op_id in places.x:
        op = plan.graph.op(op_id)
        path = op.module
        while path:
            homes[path].append(op)
            path = path.rpartition(".")[0]
    return homes


def _home(op: Op, homes: Mapping[str, list[Op]]) -> list[Op]:
    """The ops of the same module, or of the nearest around it: those whose kind this one undoes, if there are any."""
    path = op.module
    while path and path not in homes:
        path = path.rpartition(".")[0]
    found = homes.get(path, []) if path else []
    exact = [other for other in found if other.module == path] or found
    return [other for other in exact if op.kind.startswith(other.kind)] or exact
