"""Graph × topology × options as integer tables, over which the solvers iterate.

Names become positions here; durations and delays become ticks (`dlplacer.problem.ticks`), rounded down.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.problem.routes import RoutesByPair, any_relays, least_delay_routes, lines_of, matrices
from dlplacer.problem.ticks import choose_tick, exact, ticks

_MOST_S = sys.float_info.max

MOST_BYTES = 2**60
"""Limit on bytes, because CP-SAT and compiled code add them in 64 bits; an EiB is more than any machine has."""


def _require_countable_bytes(graph: OpGraph) -> None:
    """Raise InputError if a step could ever hold `MOST_BYTES`."""
    kept = sum(op.footprint_bytes for op in graph.ops)
    if kept + 2 * sum(edge.bytes for edge in graph.edges) < MOST_BYTES:
        return
    op = max(graph.ops, key=lambda op: op.footprint_bytes)
    tensor = max((edge.bytes for edge in graph.edges), default=0)
    raise InputError(
        f"op {op.id!r} takes {format_bytes(op.footprint_bytes)}, the largest tensor {format_bytes(tensor)}; ops and "
        f"tensors must take less than {format_bytes(MOST_BYTES)} in all; check their bytes"
    )


def _require_finite_span(graph: OpGraph, topology: Topology) -> None:
    """Raise InputError if slowest op times, all tensors over every link and all issues add up to no finite time."""
    kinds, moved_bytes = topology.device_types, sum(float(edge.bytes) for edge in graph.edges)
    op_s = [max(op.time_on(kind) or 0.0 for kind in kinds) for op in graph.ops]
    count = len(graph.edges)
    link_s = [moved_bytes / link.total_bytes_per_s + count * link.latency_s for link in topology.links if count]
    issue_s = [len(graph.ops) * (device.dispatch_s or 0.0) for device in topology.devices]
    if sum(op_s) + sum(link_s) + sum(issue_s) < _MOST_S:
        return
    most_s = max(op_s)
    slowest = graph.ops[op_s.index(most_s)].id
    raise InputError(
        f"op {slowest!r} takes {most_s:.3g} s, all tensors over one link {max(link_s, default=0.0):.3g} s, and issues "
        f"on one device {max(issue_s):.3g} s; ops, links and issues must take less than {_MOST_S:.3g} s in all; check "
        "'time_s', rates, latencies, 'bytes' and 'dispatch_s'"
    )


_UNLIMITED = 2**62
"""More ticks than any time has: routes that are not the shortest may exceed the horizon."""


@dataclass(frozen=True, slots=True)
class Arc:
    """An edge between op positions; `size` is the position of its bytes in `Problem.sizes_bytes`."""

    source: int
    target: int
    size: int


@dataclass(frozen=True, repr=False)
class Problem:
    """The integer problem of one solve.

    Attributes
    ----------
    tick_s
        Length of a tick in seconds.
    exact
        True if all durations and delays are whole ticks; otherwise they are rounded down.
    horizon
        Ticks in which all ops and all transfers, at their slowest, run one after another: no optimal plan is longer.
    reached_s, most
        Seconds of a makespan that an optimal plan likely attains, or None; and twice this makespan in ticks, which caps
        durations and delays. Bounds are valid for any `reached_s`; plans' times in seconds are not capped.
    duration
        [op][device] → ticks, or None if the op may not run there.
    sizes_bytes
        Distinct sizes of the edges' tensors, ascending.
    delay
        [size][source device][target device] → ticks of eq. 11, or of cut-through, by the route of least delay; 0 on the
        same device, None if no route exists. If links are contended or a copy may wait on a relay, the delay of each
        route segment is rounded down by itself. Without contention and with spare memory, these delays describe
        transfers fully; `dlplacer.problem.route_table` covers the other cases.
    routes
        [size] → (source device, target device) → route of least delay, all by name.
    footprint_bytes
        [op] → bytes held all step: M(k) of eq. 13, or under ``memory: live`` weight, gradient and state.
    resident_bytes, output_bytes, workspace_bytes
        [op] → weight, gradient and state; output; workspace.
    capacity_bytes
        [device] → Mem(n) of eq. 13; None if it is unlimited, or at least `MOST_BYTES`.
    groups
        Colocation groups of two or more ops, as op positions.
    """

    graph: OpGraph
    topology: Topology
    options: Options
    tick_s: Fraction
    exact: bool
    horizon: int
    reached_s: float | None
    most: int
    duration: tuple[tuple[int | None, ...], ...]
    arcs: tuple[Arc, ...]
    sizes_bytes: tuple[int, ...]
    delay: tuple[tuple[tuple[int | None, ...], ...], ...]
    routes: tuple[RoutesByPair, ...]
    footprint_bytes: tuple[int, ...]
    resident_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    capacity_bytes: tuple[int | None, ...]
    groups: tuple[tuple[int, ...], ...]

    def __repr__(self) -> str:
        ticks = "exact" if self.exact else "rounded"
        return f"<Problem: {self.graph!r} on {self.topology!r}, {ticks} ticks of {format_seconds(float(self.tick_s))}>"

    @property
    def op_count(self) -> int:
        """Number of ops."""
        return len(self.duration)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return len(self.capacity_bytes)

    @cached_property
    def arcs_into(self) -> tuple[tuple[Arc, ...], ...]:
        """[op] → the arcs that end at it."""
        return self._grouped(lambda arc: arc.target)

    @cached_property
    def arcs_from(self) -> tuple[tuple[Arc, ...], ...]:
        """[op] → the arcs that start at it."""
        return self._grouped(lambda arc: arc.source)

    def _grouped(self, op_of: Callable[[Arc], int]) -> tuple[tuple[Arc, ...], ...]:
        found: list[list[Arc]] = [[] for _ in range(self.op_count)]
        for arc in self.arcs:
            found[op_of(arc)].append(arc)
        return tuple(map(tuple, found))

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """Key → result computed from the problem, stored here for all callers."""
        return {}

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """Op positions, every op after its inputs; ops behind the barrier come last."""
        order = (self.graph.index[name] for name in self.graph.topological_order)
        return tuple(sorted(order, key=self.behind_barrier.__contains__))

    @cached_property
    def behind_barrier(self) -> frozenset[int]:
        """Ops that start after the end of all other ops: backward and optimizer ops under ``step: autograd``."""
        if self.options.step == "joint":
            return frozenset()
        return frozenset(op for op, node in enumerate(self.graph.ops) if node.phase in ("backward", "optimizer"))

    @cached_property
    def allowed(self) -> tuple[tuple[int, ...], ...]:
        """[op] → devices that may run it."""
        return tuple(tuple(device for device, here in enumerate(row) if here is not None) for row in self.duration)

    @cached_property
    def group_of(self) -> tuple[int | None, ...]:
        """[op] → position of its colocation group in `groups`, or None."""
        owner: list[int | None] = [None] * self.op_count
        for number, members in enumerate(self.groups):
            for member in members:
                owner[member] = number
        return tuple(owner)


def build_problem(graph: OpGraph, topology: Topology, options: Options, reached_s: float | None = None) -> Problem:
    """The integer problem; times are capped at twice `reached_s`, a makespan that an optimal plan likely attains.

    Raises InputError if a pin or an op's `devices` fit no device, an op lacks a time on an allowed device, a forward op
    reads an op behind the barrier, or all times or bytes add up to more than can be counted.
    """
    _require_known_names(graph, topology)
    _require_finite_span(graph, topology)
    _require_countable_bytes(graph)
    if options.step == "autograd":
        _require_acyclic(graph)
    pins = [graph.constraints.pins.get(op.id) for op in graph.ops]
    durations = [_durations(op, pin, topology) for op, pin in zip(graph.ops, pins, strict=True)]
    sizes = tuple(sorted({edge.bytes for edge in graph.edges}))
    tables = least_delay_routes(topology, sizes, options.delay)
    routes = tuple(tables[size] for size in sizes)
    lines = lines_of(topology, routes, options.delay)
    parted = [line.seconds(size) for line, size in zip(lines, sizes, strict=True)]
    # If copies may wait on a relay or links are contended, route segments have times of their own.
    by_segment = options.contention == "link" or (options.memory == "live" and any_relays(topology, routes))
    delays = [tuple(sum(parts, Fraction(0)) for parts in rows) for rows in parted]
    limit_s = 2 * exact(reached_s) if reached_s else None
    if limit_s is not None:
        durations = [{kind: min(value, limit_s) for kind, value in times.items()} for times in durations]
        delays = [tuple(min(value, limit_s) for value in row) for row in delays]
    rounded = [
        tuple(parts if by_segment and sum(parts) == value else (value,) for parts, value in zip(*each, strict=True))
        for each in zip(parted, delays, strict=True)
    ]
    edges = Counter(edge.bytes for edge in graph.edges)
    longest = (edges[size] * max(values, default=Fraction(0)) for size, values in zip(sizes, delays, strict=True))
    horizon_s = sum(chain((max(times.values()) for times in durations), longest), Fraction(0))
    values = list({*chain(*(times.values() for times in durations), *delays)})
    if by_segment:
        values += {*_link_times(topology, sizes)}
    # Times cut off at the limit need no finer ticks.
    values = [value for value in values if limit_s is None or value < limit_s]
    tick_s = choose_tick(values, horizon_s)
    resident = tuple(op.weight_bytes + op.gradient_bytes + op.state_bytes for op in graph.ops)
    size_position = {size: position for position, size in enumerate(sizes)}
    return Problem(
        graph=graph,
        topology=topology,
        options=options,
        tick_s=tick_s,
        exact=all((value / tick_s).denominator == 1 for value in values),
        horizon=max(1, math.ceil(horizon_s / tick_s)),
        reached_s=reached_s,
        most=_UNLIMITED if limit_s is None else math.ceil(limit_s / tick_s),
        duration=tuple(
            tuple(ticks(times[each.type], tick_s) if _may_run(op, pin, each) else None for each in topology.devices)
            for op, pin, times in zip(graph.ops, pins, durations, strict=True)
        ),
        arcs=tuple(
            Arc(graph.index[edge.source], graph.index[edge.target], size_position[edge.bytes]) for edge in graph.edges
        ),
        sizes_bytes=sizes,
        delay=matrices(lines, rounded, tick_s),
        routes=routes,
        footprint_bytes=resident if options.memory == "live" else tuple(op.footprint_bytes for op in graph.ops),
        resident_bytes=resident,
        output_bytes=tuple(op.output_bytes for op in graph.ops),
        workspace_bytes=tuple(op.workspace_bytes for op in graph.ops),
        capacity_bytes=tuple(
            device.memory_bytes if (device.memory_bytes or 0) < MOST_BYTES else None for device in topology.devices
        ),
        groups=tuple(tuple(graph.index[name] for name in group) for group in graph.colocation_groups),
    )


def _require_acyclic(graph: OpGraph) -> None:
    later = {op.id for op in graph.ops if op.phase in ("backward", "optimizer")}
    for edge in graph.edges:
        if edge.source in later and edge.target not in later:
            raise InputError(
                f"forward op {edge.target!r} reads {edge.source!r}, which runs behind the barrier at the loss; use "
                "--step joint or change the op's 'phase'"
            )


def _require_known_names(graph: OpGraph, topology: Topology) -> None:
    known = {name for device in topology.devices for name in (device.id, device.type)}
    for op in graph.ops:
        if op.devices is not None and not known.intersection(op.devices):
            raise InputError(
                f"op {op.id!r} may run on {', '.join(op.devices) or 'nothing'}; the topology has devices and types "
                f"{', '.join(sorted(known))}; change the op's 'devices'"
            )
    for name, pin in graph.constraints.pins.items():
        op = graph.op(name)
        if not any(_may_run(op, pin, device) for device in topology.devices):
            limits = "" if op.devices is None else f", and the op itself may run on {', '.join(op.devices)}"
            raise InputError(
                f"op {name!r} is pinned to {pin!r}; the topology has devices and types "
                f"{', '.join(sorted(known))}{limits}; change the pin"
            )


def _durations(op: Op, pin: str | None, topology: Topology) -> dict[str, Fraction]:
    """Type of the devices that may run an op → its time there."""
    found: dict[str, Fraction] = {}
    for device in topology.devices:
        if device.type not in found and _may_run(op, pin, device):
            time_s = op.time_on(device.type)
            if time_s is None:
                raise InputError(
                    f"op {op.id!r} has no time for device {device.id!r} of type {device.type!r}; add it to 'time_s', "
                    "give the device rates for the roofline, or profile the model there"
                )
            found[device.type] = exact(time_s)
    return found


def _may_run(op: Op, pin: str | None, device: Device) -> bool:
    names = device.id, device.type
    return (pin is None or pin in names) and (op.devices is None or any(name in op.devices for name in names))


def _link_times(topology: Topology, sizes: Sequence[int]) -> Iterator[Fraction]:
    """The distinct summands of the times of all routes: a large machine has few kinds of links."""
    yield from {exact(link.latency_s) for link in topology.links}
    for bytes_per_s in {exact(link.bytes_per_s) * link.count for link in topology.links}:
        yield from (size / bytes_per_s for size in sizes)
