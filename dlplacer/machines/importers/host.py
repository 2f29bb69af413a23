"""The cores of this host as devices, joined within and between NUMA nodes."""

import os
from itertools import combinations
from pathlib import Path

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.costs.device_table import CORE, DEVICE_TABLE, TURN
from dlplacer.machines.importers.rates import SOCKET_LATENCY_S
from dlplacer.machines.usable_cores import usable_cores

_AT_ONCE_BYTES_PER_S = 1e15
"""Cores of one process share memory: a tensor goes over as a pointer, and no byte is copied."""
_HANDOVER_S = 30e-6
"""Waking the thread of another core; `topology detect --measure` measures it."""


def host_topology(root: Path = Path("/sys/devices/system/node"), cores: list[int] | None = None) -> Topology:
    """The cores that this process may use, by NUMA node.

    They are threads of one process, which share its interpreter. Two cores are joined directly; more of them
    hang on a router for their node, and nodes' routers are joined. Memory is shared by all cores, so no core has a
    capacity of its own.

    Parameters
    ----------
    root
        The folder in which Linux lists NUMA nodes.
    cores
        Numbers of the cores; None takes those of this process.
    """
    usable = usable_cores() if cores is None else cores
    nodes = _numa_nodes(root, usable)
    rates = DEVICE_TABLE[CORE]
    names = {core: f"cpu{position}" for position, core in enumerate(usable)}
    devices = tuple(
        Device(
            names[core],
            CORE,
            flops_per_s=rates.flops_per_s,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            meta={"core": core},
            dispatch_s=TURN.value,
            process="host",
            asynchronous=False,
        )
        for core in usable
    )
    links, routers = _joined(nodes, names)
    meta = {"numa": {name: [names[core] for core in members] for name, members in nodes.items()}}
    source = "cores of this host; rates of a generic core, see dlplacer.machines.costs.device_table"
    return Topology(devices, routers, links, name=os.uname().nodename, source=source, meta=meta)


def _numa_nodes(root: Path, cores: list[int]) -> dict[str, list[int]]:
    """Node name → its usable cores; one node where the system does not say."""
    found: dict[str, list[int]] = {}
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        try:
            members = parse_core_list((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
        if here := [core for core in cores if core in members]:
            found[folder.name.replace("node", "numa")] = here
    known = {core for members in found.values() for core in members}
    rest = [core for core in cores if core not in known]
    if rest:
        found.setdefault("numa0", []).extend(rest)
    return found


def parse_core_list(text: str) -> set[int]:
    """The numbers in Linux's list form: ``0-3,8,10-11``; ValueError if it is none."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            cores.update(range(int(first), int(last or first) + 1))
    return cores


def _joined(nodes: dict[str, list[int]], names: dict[int, str]) -> tuple[tuple[Link, ...], tuple[Router, ...]]:
    if len(names) == 1:
        return (), ()
    if len(names) == 2:
        return (Link("cpu0", "cpu1", _AT_ONCE_BYTES_PER_S, _HANDOVER_S),), ()
    links = [
        Link(names[core], node, _AT_ONCE_BYTES_PER_S, _HANDOVER_S / 2)
        for node, members in nodes.items()
        for core in members
    ]
    links += [Link(one, other, _AT_ONCE_BYTES_PER_S, SOCKET_LATENCY_S.value) for one, other in combinations(nodes, 2)]
    return tuple(links), tuple(Router(node) for node in nodes)
