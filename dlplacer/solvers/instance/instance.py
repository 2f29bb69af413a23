"""A problem in the form that solvers iterate over: groups are blocks, parallel arcs are merged, time can be reversed.

Routes are fixed in advance (`dlplacer.problem.routes`): without contention, eq. 8, 9 and 11 reduce to a table of delays
per device pair, and solvers choose placement and order only. With contention the table is a relaxation, because no
transfer takes less. `Instance.traffic` has the transfers if links are contended or copies may exceed memory.

The barrier at the loss is a zero-time op, numbered after the problem's ops. Arcs without delays lead to it from the
last ops before it, and from it to the first ops behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from dlplacer.problem.live_memory import may_bind
from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import Traffic, build_traffic
from dlplacer.solvers.instance.time_limit import ask_time

FAR = 2**40
"""Delay between devices that no route joins: more than any horizon."""

Delay = tuple[tuple[int, ...], ...]
"""[source device][target device] → ticks; 0 on the diagonal, `FAR` if no route exists."""

Arcs = tuple[tuple[tuple[int, Delay], ...], ...]
"""[op] → (op at the other end, delay) of its arcs."""


@dataclass(frozen=True)
class Instance:
    """The ops to be placed and ordered, in ticks and positions.

    Attributes
    ----------
    duration
        [op][device] → ticks; meaningless if the device is not allowed.
    allowed
        [op] → devices that may run it and all ops of its block, ascending.
    successors, predecessors
        Arcs by source and by target; of parallel arcs the slowest is kept.
    order
        Ops in a topological order.
    block, members
        [op] → its block, [block] → its ops: a colocation group, or a single op.
    footprint, capacity
        [block] → bytes held all step, and [device] → bytes, None if unlimited.
    component
        [device] → number of its connected part of the machine.
    sources, sinks
        Zero-time ops: sources without inputs (parameters, inputs) start at 0 on any device; sinks have no readers.
    barrier, traffic
        The barrier's op; and routes and transfer requests, if links are contended or copies may exceed memory; else
        None. In parts and reverses of an instance both are None, so these are relaxations.
    """

    duration: tuple[tuple[int, ...], ...]
    allowed: tuple[tuple[int, ...], ...]
    successors: Arcs
    predecessors: Arcs
    order: tuple[int, ...]
    block: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    footprint: tuple[int, ...]
    capacity: tuple[int | None, ...]
    component: tuple[int, ...]
    sources: frozenset[int]
    sinks: frozenset[int]
    barrier: int | None = None
    traffic: Traffic | None = field(default=None, repr=False)

    @property
    def op_count(self) -> int:
        """Number of ops."""
        return len(self.block)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return len(self.capacity)

    @cached_property
    def shortest(self) -> tuple[int, ...]:
        """[op] → ticks on its fastest allowed device."""
        return tuple(min(ticks, default=0) for ticks in self._ticks)

    @cached_property
    def working_count(self) -> int:
        """Number of ops that take time on some device."""
        return sum(ticks > 0 for ticks in self.longest)

    @cached_property
    def longest(self) -> tuple[int, ...]:
        """[op] → ticks on its slowest allowed device."""
        return tuple(max(ticks, default=0) for ticks in self._ticks)

    @cached_property
    def mean_duration(self) -> tuple[float, ...]:
        """[op] → mean ticks over its allowed devices."""
        return tuple(sum(ticks) / max(1, len(ticks)) for ticks in self._ticks)

    @cached_property
    def _ticks(self) -> list[list[int]]:
        """[op] → ticks on each of its allowed devices."""
        return [[row[device] for device in devices] for row, devices in zip(self.duration, self.allowed, strict=True)]

    def __hash__(self) -> int:
        """A hash of some fields, computed once because instances are keys of the solvers' result tables."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.duration, self.allowed, self.order, self.block, self.footprint, self.capacity))

    @cached_property
    def uniform(self) -> bool:
        """True if every op takes the same time on all its devices."""
        return self.shortest == self.longest

    @cached_property
    def known(self) -> dict[Any, Any]:
        """Cached results, such as bounds, ranks and tables, which are slow to recompute on large instances."""
        return {}

    @cached_property
    def source_arcs(self) -> Arcs:
        """[op] → the arcs that reach it from `sources`."""
        return tuple(tuple(arc for arc in arcs if arc[0] in self.sources) for arcs in self.predecessors)

    @cached_property
    def memory_binds(self) -> bool:
        """True if some device is too small for all ops together."""
        total = sum(self.footprint)
        return any(capacity is not None and capacity < total for capacity in self.capacity)

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Blocks of each weakly connected part of the graph, which runs in one component of the machine."""
        from networkx.utils import UnionFind

        joined = UnionFind(range(len(self.members)))
        split = len(set(self.component)) > 1
        for op, arcs in enumerate(self.successors):
            for target, delay in arcs:
                if not split or any(FAR in row for row in delay):
                    joined.union(self.block[op], self.block[target])
        return tuple(sorted(tuple(sorted(part)) for part in joined.to_sets()))

    @cached_property
    def reversed(self) -> "Instance":
        """The same work in reversed time."""

        def turned(arcs: Arcs) -> Arcs:
            return tuple(tuple((end, transposed[delay]) for end, delay in row) for row in arcs)

        distinct = {delay for row in self.successors for _, delay in row}
        transposed = {delay: tuple(zip(*delay, strict=True)) for delay in distinct}
        return replace(
            self,
            successors=turned(self.predecessors),
            predecessors=turned(self.successors),
            order=self.order[::-1],
            sources=self.sinks,
            sinks=self.sources,
            barrier=None,
            traffic=None,
        )

    def restricted(self, ops: Sequence[int]) -> "Instance":
        """The instance of some ops, given in topological order, and the arcs among them.

        Blocks keep their whole footprint; `sources` and `sinks` stay those of the whole.
        """
        position = {op: number for number, op in enumerate(ops)}
        blocks = list(dict.fromkeys(self.block[op] for op in ops))
        number = {block: count for count, block in enumerate(blocks)}

        def kept(arcs: Arcs) -> Arcs:
            return tuple(tuple((position[end], delay) for end, delay in arcs[op] if end in position) for op in ops)

        return replace(
            self,
            duration=tuple(self.duration[op] for op in ops),
            allowed=tuple(self.allowed[op] for op in ops),
            successors=kept(self.successors),
            predecessors=kept(self.predecessors),
            order=tuple(range(len(ops))),
            block=tuple(number[self.block[op]] for op in ops),
            members=tuple(tuple(position[op] for op in self.members[block] if op in position) for block in blocks),
            footprint=tuple(self.footprint[block] for block in blocks),
            sources=frozenset(position[op] for op in ops if op in self.sources),
            sinks=frozenset(position[op] for op in ops if op in self.sinks),
            barrier=None,
            traffic=None,
        )

    def limited(self, block_devices: Mapping[int, tuple[int, ...]]) -> "Instance":
        """The same instance with some blocks allowed on fewer devices."""
        allowed = list(self.allowed)
        for block, devices in block_devices.items():
            for op in self.members[block]:
                allowed[op] = tuple(device for device in allowed[op] if device in devices)
        return replace(self, allowed=tuple(allowed))


def build_instance(problem: Problem) -> Instance:
    """The instance of a problem, computed once."""
    if Instance not in problem.derived:
        problem.derived[Instance] = _build(problem)
    return problem.derived[Instance]  # type: ignore[no-any-return]


def _build(problem: Problem) -> Instance:
    groups = enumerate(problem.group_of)
    members = list(dict.fromkeys((op,) if number is None else problem.groups[number] for op, number in groups))
    block = [0] * problem.op_count
    for number, ops in enumerate(members):
        for op in ops:
            block[op] = number
    device_sets = [set(devices) for devices in problem.allowed]
    common = [tuple(sorted(set.intersection(*(device_sets[op] for op in ops)))) for ops in members]
    allowed = [common[number] for number in block]
    successors = _arcs(problem)
    duration = [tuple(ticks or 0 for ticks in row) for row in problem.duration]
    order = list(problem.topological)
    footprint = [sum(problem.footprint_bytes[op] for op in ops) for ops in members]
    barrier = None
    if 0 < len(problem.behind_barrier) < problem.op_count:
        barrier = problem.op_count
        _add_barrier(problem, successors)
        block.append(len(members))
        members.append((barrier,))
        allowed.append(tuple(range(problem.device_count)))
        duration.append((0,) * problem.device_count)
        order.insert(problem.op_count - len(problem.behind_barrier), barrier)
        footprint.append(0)
    predecessors: list[list[tuple[int, Delay]]] = [[] for _ in block]
    for op, arcs in enumerate(successors):
        for target, delay in arcs:
            predecessors[target].append((op, delay))
    instant = {op for op, row in enumerate(duration) if not any(row)}
    return Instance(
        duration=tuple(duration),
        allowed=tuple(allowed),
        successors=tuple(map(tuple, successors)),
        predecessors=tuple(map(tuple, predecessors)),
        order=tuple(order),
        block=tuple(block),
        members=tuple(members),
        footprint=tuple(footprint),
        capacity=problem.capacity_bytes,
        component=_components(problem),
        sources=frozenset(op for op in instant if not predecessors[op]),
        sinks=frozenset(op for op in instant if not successors[op]),
        barrier=barrier,
        traffic=build_traffic(problem) if problem.options.contention == "link" or may_bind(problem) else None,
    )


def _arcs(problem: Problem) -> list[list[tuple[int, Delay]]]:
    """[op] → its readers with delays; of parallel arcs the slowest."""
    pairs = problem.device_count * (problem.device_count - 1)
    tables = [
        cast("Delay", table)
        if len(routes) == pairs
        else tuple(tuple(FAR if ticks is None else ticks for ticks in row) for row in table)
        for table, routes in zip(problem.delay, problem.routes, strict=True)
    ]
    largest: dict[tuple[int, int], int] = {}
    for arc in problem.arcs:
        ends = arc.source, arc.target
        largest[ends] = max(largest.get(ends, 0), arc.size)
    successors: list[list[tuple[int, Delay]]] = [[] for _ in range(problem.op_count)]
    for (source, target), size in largest.items():
        successors[source].append((target, tables[size]))
    return successors


def _add_barrier(problem: Problem, successors: list[list[tuple[int, Delay]]]) -> None:
    """Add arcs from the last ops before the barrier to it, and from it to the first ops behind it."""
    behind, barrier = problem.behind_barrier, problem.op_count
    nothing: Delay = ((0,) * problem.device_count,) * problem.device_count
    for op in range(problem.op_count):
        if op not in behind and all(target in behind for target, _ in successors[op]):
            successors[op].append((barrier, nothing))
    first = behind.difference(arc.target for arc in problem.arcs if arc.source in behind)
    successors.append([(op, nothing) for op in sorted(first)])


def _components(problem: Problem) -> tuple[int, ...]:
    if not problem.delay:
        return (0,) * problem.device_count
    return tuple(next(other for other, ticks in enumerate(row) if ticks is not None) for row in problem.delay[0])


def interchangeable(instance: Instance) -> list[tuple[int, ...]]:
    """Classes of two or more devices, any two of which can be swapped.

    A swap keeps makespans if every op takes the same time on both devices or is allowed on neither, the capacities
    agree, and every delay to, from and between them is kept; with traffic, also every link. One member of a class can
    represent all: swapping a with b, b with c, and a with b again swaps a with c.
    """
    tables = {_pattern(delay) for delay in {delay for arcs in instance.successors for _, delay in arcs}}
    classes: list[list[int]] = []
    for device in range(instance.device_count):
        home = next((members for members in classes if _swappable(instance, tables, members[0], device)), None)
        classes.append([device]) if home is None else home.append(device)
    return [tuple(members) for members in classes if len(members) > 1]


def _swappable(instance: Instance, tables: set[Delay], a: int, b: int) -> bool:
    if instance.capacity[a] != instance.capacity[b] or instance.component[a] != instance.component[b]:
        return False
    for row, devices in zip(instance.duration, instance.allowed, strict=True):
        if (a in devices) != (b in devices) or (a in devices and row[a] != row[b]):
            return False
    if instance.traffic is not None and not instance.traffic.routes.swappable(a, b):
        return False
    others = [device for device in range(instance.device_count) if device not in (a, b)]
    return all(
        delay[a][b] == delay[b][a] and all(delay[a][c] == delay[b][c] and delay[c][a] == delay[c][b] for c in others)
        for delay in tables
    )


def _pattern(delay: Delay) -> Delay:
    """The table with equal delays replaced by equal numbers; tensors of many sizes share few such patterns."""
    ask_time()
    numbers: dict[int, int] = {}
    return tuple(tuple(numbers.setdefault(ticks, len(numbers)) for ticks in row) for row in delay)
