"""The same cores as processes of their own, which do not take turns at one interpreter."""

from dataclasses import replace

from dlplacer.core.topology import Link, Topology
from dlplacer.problem.dispatch import dispatch_of


def as_processes(topology: Topology) -> Topology | None:
    """The machine with a process for every core that takes turns at one with others; None if it cannot be.

    As threads of one process cores hand a tensor over without a copy and wait for each other's turns. As processes they
    have no turns, and hand over through memory that they share: their links take `Link.process_latency_s`, and
    `Link.process_bytes_per_s` for the copy. Links that do not say so cannot be used in that way, and then the machine
    cannot.
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
        links.append(_between_processes(link, link.process_latency_s, link.process_bytes_per_s))
    devices = tuple(replace(one, process="", dispatch_s=None) if one.id in cores else one for one in topology.devices)
    return replace(topology, devices=devices, links=tuple(links), source=f"{topology.source}; a process for every core")


def _between_processes(link: Link, latency_s: float, bytes_per_s: float) -> Link:
    return replace(link, latency_s=latency_s, bytes_per_s=bytes_per_s, process_latency_s=None, process_bytes_per_s=None)


def are_processes(topology: Topology) -> bool:
    """Whether several cores of a machine are processes of their own."""
    cores = [device for device in topology.devices if not device.asynchronous]
    return len(cores) > 1 and not any(device.process for device in cores)
