"""Measure links and collectives between processes, under the conditions of later runs."""

import itertools
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
import torch.distributed as dist

from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.open import kind_of
from dlplacer.runtime.distributed.group import RankGroup, memory_name
from dlplacer.runtime.profile.machine_times import measured_topology
from dlplacer.runtime.profile.op_times import settled

SMALL_BYTES, LARGE_BYTES = 1024, 2**24
_REPEATS = 12
_NO_TIME_PER_BYTE = 1e-15


def measured_all_reduce(group: RankGroup) -> AlphaBeta:
    """The α-β line of an all-reduce between replicas, on the slowest process; every process returns the same.

    Every process must call it; with one replica, an all-reduce takes no time.
    """
    if group.peers is None:
        return AlphaBeta(0.0, 0.0)
    memory = torch.device(memory_name(next(iter(group.ranks.devices_of(group.rank).values()))))
    own = _line(group, "an all-reduce", memory, lambda flat: dist.all_reduce(flat, group=group.peers))
    return AlphaBeta(*map(max, zip(*group.gathered((own.latency_s, own.s_per_byte)), strict=True)))


def measured_machine(group: RankGroup, opened: Mapping[str, RuntimeDevice]) -> Topology:
    """The topology of a plan's devices, with a measured link for each pair; every process returns the same.

    Within a process, tensors pass between threads; between processes, they pass over torch.distributed. All replicas
    measure their links at the same time, and each link takes the median over the replicas.
    """
    ranks, called = group.ranks, {device.name: name for name, device in opened.items()}
    found = {
        frozenset((called[link.source], called[link.target])): (link.latency_s, 1 / link.bytes_per_s)
        for link in measured_topology(list(opened.values())).links
    }
    memory = next(iter(opened.values())).torch_device if group.on_device else HOST_DEVICE
    pairs = list(itertools.combinations(ranks.owners[0], 2))
    between = {frozenset(pair): {ranks.rank_of(device, 0) for device in pair} for pair in pairs}
    for first, second in itertools.combinations(range(ranks.per_replica), 2):
        line = _between(group, first, second, memory)
        if line is not None:
            ours = (pair for pair, ends in between.items() if ends == {first, second})
            found |= dict.fromkeys(ours, (line.latency_s, line.s_per_byte))
    everyone = group.gathered((found, {name: device.type for name, device in opened.items()}))
    links = []
    for source, target in pairs:
        measured = [
            theirs[frozenset((source, target))] for theirs, _ in everyone if frozenset((source, target)) in theirs
        ]
        latency_s, s_per_byte = map(median, zip(*measured, strict=True))
        links.append(Link(source, target, 1 / max(s_per_byte, _NO_TIME_PER_BYTE), latency_s))
    types = {name: kind for _, theirs in everyone for name, kind in theirs.items()}
    devices = tuple(TopologyDevice(name, types[name]) for name in ranks.owners[0])
    return Topology(devices, (), tuple(links), name="measured", source="timed between processes and threads")


def _between(group: RankGroup, first: int, second: int, memory: torch.device) -> AlphaBeta | None:
    """The α-β line of a message between two processes of this replica, half a timed round trip; None on other ranks."""
    pair = [rank + group.replica * group.ranks.per_replica for rank in (first, second)]
    if group.rank not in pair:
        return None
    moves = (dist.send, dist.recv) if group.rank == pair[0] else (dist.recv, dist.send)
    peer = pair[group.rank == pair[0]]

    def trip(flat: torch.Tensor) -> None:
        for move in moves:
            move(flat, peer)

    line = _line(group, f"messages of rank {peer}", memory, trip)
    return AlphaBeta(line.latency_s / 2, line.s_per_byte / 2)


def _line(group: RankGroup, what: str, memory: torch.device, action: Callable[[torch.Tensor], object]) -> AlphaBeta:
    """The α-β line through the times of an action on a small and a large vector; a GPU's times include completion."""
    found = []
    for size in (SMALL_BYTES, LARGE_BYTES):
        flat, times = torch.zeros(size // 4, device=memory), []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            with group.waiting(what):
                action(flat)
            if not kind_of(memory).in_host_memory:
                torch.get_device_module(memory).synchronize(memory)
            times.append(time.perf_counter() - begin)
        found.append(settled(times))
    return AlphaBeta(found[0], max((found[1] - found[0]) / (LARGE_BYTES - SMALL_BYTES), _NO_TIME_PER_BYTE))
