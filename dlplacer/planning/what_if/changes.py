"""Changes of a plan's graph or machine that might shorten its step."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.coarsen.granularity import FINEST, GRANULARITIES, coarsen

ALL_LINKS = "all links twice as fast"
RELAXING = ("link", "device", "memory", "op")
"""Kinds of change under which the plan as it is remains possible, and no longer."""

_BUSIEST, _LONGEST = 3, 10
"""Links and ops that are changed one by one: those that are busy longest."""

_MORE_MEMORY = 1.25


@dataclass(frozen=True)
class Change:
    """One thing that is different.

    Attributes
    ----------
    kind
        ``link``, ``device``, ``memory``, ``op``, ``granularity``.
    text
        The change in words.
    made
        The graph and the machine with the change; made on demand, because there are many changes.
    """

    kind: str
    text: str
    made: Callable[[], tuple[OpGraph, Topology]] = field(repr=False)


def changes(plan: Plan) -> Iterator[Change]:
    """All changes of a plan, in the order in which they are looked at: a budget that is too small leaves out the last.

    The busiest links twice as fast, then all of them; one more device of each type; a quarter more memory; other
    granularities; each of the longest ops in half its time.
    """
    yield from _faster_links(plan)
    for kind in plan.topology.device_types:
        model = _best_joined(plan.topology, kind)
        if any(model.id in (link.source, link.target) for link in plan.topology.links) or not plan.graph.edges:
            yield Change("device", f"one more {kind}, joined as {model.id} is", partial(_with_device, plan, model))
    most = sum(op.footprint_bytes for op in plan.graph.ops) + 2 * sum(edge.bytes for edge in plan.graph.edges)
    if any(device.memory_bytes is not None and device.memory_bytes < most for device in plan.topology.devices):
        yield Change("memory", "25 % more memory on every device", partial(_with_memory, plan))
    # A coarse graph has no other granularities, as its ops are gone.
    if "granularity" not in (plan.graph.capture or {}) and any(op.module for op in plan.graph.ops):
        for name in GRANULARITIES:
            if name != FINEST:
                yield Change("granularity", f"granularity {name}", partial(_with_granularity, plan, name))
    entries = sorted(plan.ops, key=lambda entry: entry.start_s - entry.end_s)[:_LONGEST]
    for op in (plan.graph.op(entry.op) for entry in entries if entry.end_s > entry.start_s):
        where = f" of {op.module}" if op.module else ""
        yield Change("op", f"op {op.id}{where} twice as fast", partial(_with_faster_op, plan, op))


def _faster_links(plan: Plan) -> Iterator[Change]:
    links = plan.topology.link_between
    by_ends = {frozenset((link.source, link.target)): link for link in plan.topology.links}
    used: Counter[frozenset[str]] = Counter()
    for transfer in plan.transfers:
        for segment in transfer.segments:
            for hop in segment.route:
                used[frozenset(hop)] += transfer.bytes / links[hop].total_bytes_per_s  # type: ignore[assignment]
    for ends, _ in used.most_common(_BUSIEST):
        text = f"link {by_ends[ends].source} – {by_ends[ends].target} twice as fast"
        yield Change("link", text, partial(_with_faster_links, plan, {ends}))
    if len(used) > 1:
        yield Change("link", ALL_LINKS, partial(_with_faster_links, plan, set(by_ends)))


def _with_faster_links(plan: Plan, chosen: set[frozenset[str]]) -> tuple[OpGraph, Topology]:
    links = tuple(
        replace(link, bytes_per_s=2 * link.bytes_per_s) if frozenset((link.source, link.target)) in chosen else link
        for link in plan.topology.links
    )
    return plan.graph, replace(plan.topology, links=links)


def _with_device(plan: Plan, model: Device) -> tuple[OpGraph, Topology]:
    taken, number = {node.id for node in plan.topology.nodes}, 1
    while (name := f"{model.id}+{number}") in taken:
        number += 1
    own = [link for link in plan.topology.links if model.id in (link.source, link.target)]
    copies = [replace(link, source=name) if link.source == model.id else replace(link, target=name) for link in own]
    # Where devices are joined to each other and not by routers, the new one is joined to its model too.
    peers = [link for link in own if {link.source, link.target} <= set(plan.topology.device_index)]
    if peers:
        copies.append(replace(max(peers, key=lambda link: link.total_bytes_per_s), source=model.id, target=name))
    devices = (*plan.topology.devices, replace(model, id=name))
    topology = replace(plan.topology, devices=devices, links=(*plan.topology.links, *copies))
    return with_times(plan.graph, topology), topology


def _best_joined(topology: Topology, kind: str) -> Device:
    """The device of a type whose links carry most."""

    def rate(device: Device) -> float:
        return sum(link.total_bytes_per_s for link in topology.links if device.id in (link.source, link.target))

    return max((device for device in topology.devices if device.type == kind), key=rate)


def _with_memory(plan: Plan) -> tuple[OpGraph, Topology]:
    devices = tuple(
        device if device.memory_bytes is None else replace(device, memory_bytes=int(_MORE_MEMORY * device.memory_bytes))
        for device in plan.topology.devices
    )
    return plan.graph, replace(plan.topology, devices=devices)


def _with_granularity(plan: Plan, granularity: str) -> tuple[OpGraph, Topology]:
    return coarsen(plan.graph, granularity), plan.topology


def _with_faster_op(plan: Plan, op: Op) -> tuple[OpGraph, Topology]:
    ops = tuple(replace(other, time_s=_half(other.time_s)) if other is op else other for other in plan.graph.ops)
    return replace(plan.graph, ops=ops), plan.topology


def _half(time_s: float | Mapping[str, float] | None) -> float | Mapping[str, float] | None:
    if isinstance(time_s, Mapping):
        return {kind: value / 2 for kind, value in time_s.items()}
    return None if time_s is None else time_s / 2
