"""Other machines: faster links, one more device, more memory."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.what_if.change import Change

ALL_LINKS = "all links twice as fast"

_LINKS = 3
"""Links that are looked at one by one, those first that are busy longest."""

_MORE_MEMORY = 1.25


def faster_links(plan: Plan) -> Iterator[Change]:
    """The busiest links with twice their rate, then all of them; nothing where nothing is sent."""
    links = plan.topology.link_between
    by_ends = {frozenset((link.source, link.target)): link for link in plan.topology.links}
    used: dict[frozenset[str], float] = defaultdict(float)
    for transfer in plan.transfers:
        for segment in transfer.segments:
            for hop in segment.route:
                used[frozenset(hop)] += transfer.bytes / links[hop].total_bytes_per_s
    busiest = sorted(used, key=lambda ends: -used[ends])
    for ends in busiest[:_LINKS]:
        link = by_ends[ends]
        text = f"link {link.source} – {link.target} twice as fast"
        yield Change("link", text, partial(_with_faster, plan, frozenset([ends])))
    if len(busiest) > 1:
        yield Change("link", ALL_LINKS, partial(_with_faster, plan, frozenset(by_ends)))


def more_devices(plan: Plan) -> Iterator[Change]:
    """For every type of device one more, joined as the one of that type with most links is."""
    for kind in plan.topology.device_types:
        model = _best_joined(plan.topology, kind)
        if any(model.id in (link.source, link.target) for link in plan.topology.links) or not plan.graph.edges:
            text = f"one more {kind}, joined as {model.id} is"
            yield Change("device", text, partial(_with_device, plan, model))


def more_memory(plan: Plan) -> Iterator[Change]:
    """A quarter more memory on every device that has a limit; nothing where all ops fit on each device together."""
    most = sum(op.footprint_bytes for op in plan.graph.ops) + 2 * sum(edge.bytes for edge in plan.graph.edges)
    if any(device.memory_bytes is not None and device.memory_bytes < most for device in plan.topology.devices):
        yield Change("memory", "25 % more memory on every device", partial(_with_memory, plan))


def _with_faster(plan: Plan, chosen: frozenset[frozenset[str]]) -> tuple[OpGraph, Topology]:
    links = tuple(
        replace(link, bytes_per_s=2 * link.bytes_per_s) if frozenset((link.source, link.target)) in chosen else link
        for link in plan.topology.links
    )
    return plan.graph, replace(plan.topology, links=links)


def _with_device(plan: Plan, model: Device) -> tuple[OpGraph, Topology]:
    name, number = f"{model.id}+1", 1
    taken = {node.id for node in plan.topology.nodes}
    while name in taken:
        number += 1
        name = f"{model.id}+{number}"
    own = [link for link in plan.topology.links if model.id in (link.source, link.target)]
    copies = [replace(link, source=name) if link.source == model.id else replace(link, target=name) for link in own]
    # Where devices are joined to each other and not by routers, the new one is joined to its model too.
    peers = [link for link in own if {link.source, link.target} <= set(plan.topology.device_index)]
    if peers:
        copies.append(replace(max(peers, key=lambda link: link.total_bytes_per_s), source=model.id, target=name))
    devices = (*plan.topology.devices, replace(model, id=name))
    topology = replace(plan.topology, devices=devices, links=(*plan.topology.links, *copies))
    return with_times(plan.graph, topology), topology


def _with_memory(plan: Plan) -> tuple[OpGraph, Topology]:
    devices = tuple(
        device if device.memory_bytes is None else replace(device, memory_bytes=int(_MORE_MEMORY * device.memory_bytes))
        for device in plan.topology.devices
    )
    return plan.graph, replace(plan.topology, devices=devices)


def _best_joined(topology: Topology, kind: str) -> Device:
    def links(device: Device) -> float:
        return sum(link.total_bytes_per_s for link in topology.links if device.id in (link.source, link.target))

    return max((device for device in topology.devices if device.type == kind), key=links)
