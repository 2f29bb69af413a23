"""The same cores as processes of their own, which do not take turns at one interpreter."""

from dataclasses import replace

from dlplacer.core.topology import Link, Topology
from dlplacer.problem.dispatch import dispatch_of


def as_processes(topology: Topology) -> Topology | None:
    """The machine with a process for every core that takes turns at one with others; None if it cannot be.

    As threads of one process cores hand a tensor over without a copy and wait for each other's turns. As processes they
    have no turns, and hand over through memory that they share: that takes `Link.process_latency_s`, and
    `Link.process_bytes_per_s` for the copy. Links that do not say so cannot be used in that way, and then the machine
    cannot.

    Each of both cores is busy for half of such a latency, which is their `Device.dispatch_s` on that machine; the link
    takes the other half, so that a chain of hand-overs takes what it was measured to take. A word in shared memory is
    seen within a microsecond: the rest is writing, looking, and beginning an op behind that.
    """
    dispatch = dispatch_of(topology)
    cores = {
        device.id
        for here, device in enumerate(topology.devices)
        if not device.asynchronous and dispatch.takes_turns(here)
    }
    if not cores:
        return None
    links = []
    for link in topology.links:
        if cores.isdisjoint((link.source, link.target)):
            links.append(link)
            continue
        if link.process_latency_s is None or link.process_bytes_per_s is None:
            return None
        links.append(_between_processes(link, link.process_latency_s / 2, link.process_bytes_per_s))
    devices = tuple(
        replace(one, process="", dispatch_s=_busy_s(topology, one.id)) if one.id in cores else one
        for one in topology.devices
    )
    return replace(topology, devices=devices, links=tuple(links), source=f"{topology.source}; a process for every core")


def _busy_s(topology: Topology, device: str) -> float | None:
    """How long a core is busy with a tensor that it hands over, by the slowest of its links; None for 0.

    Through a router a hand-over takes two links, each with half of the latency.
    """
    routers = {router.id for router in topology.routers}
    found = [
        (link.process_latency_s or 0.0) * (1.0 if {link.source, link.target} & routers else 0.5)
        for link in topology.links
        if device in (link.source, link.target)
    ]
    return max(found, default=0.0) or None


def _between_processes(link: Link, latency_s: float, bytes_per_s: float) -> Link:
    return replace(link, latency_s=latency_s, bytes_per_s=bytes_per_s, process_latency_s=None, process_bytes_per_s=None)


def are_processes(topology: Topology) -> bool:
    """Whether several cores of a machine are processes of their own."""
    cores = [device for device in topology.devices if not device.asynchronous]
    return len(cores) > 1 and not any(device.process for device in cores)
