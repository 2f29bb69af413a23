"""Links and collectives between processes, timed where they will be used: α-β lines."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import kind_of
from dlplacer.runtime.distributed.group import HOST, RankGroup
from dlplacer.runtime.distributed.ranks import memory_name
from dlplacer.runtime.profile.link_times import measured_topology
from dlplacer.runtime.profile.statistic import settled

SIZES_BYTES = (1024, 2**16, 2**20, 2**22, 2**24)
_REPEATS = 12
_NO_TIME_PER_BYTE = 1e-15


def fitted_line(times: Mapping[int, float]) -> AlphaBeta:
    """The α-β line nearest to measured times, each weighed by its own size: the least relative error.

    Parameters
    ----------
    times
        Bytes → seconds; two sizes at least.
    """
    if len(times) < 2:
        raise InputError(f"{len(times)} sizes were timed; an α-β line needs two at least")
    import numpy as np
    from scipy.optimize import nnls

    rows = np.array([[1 / seconds, size / seconds] for size, seconds in times.items()])
    # Columns of like length: bytes per second and 1 per second are far apart.
    scale = np.linalg.norm(rows, axis=0)
    found, _ = nnls(rows / scale, np.ones(len(rows)))
    latency_s, s_per_byte = found / scale
    return AlphaBeta(float(latency_s), max(float(s_per_byte), _NO_TIME_PER_BYTE))


def measured_all_reduce(group: RankGroup) -> AlphaBeta:
    """The line of an all-reduce between the replicas, as the slowest process sees it; the same on all of them.

    Every process takes part; with one replica there is nothing to reduce.
    """
    if not group.peers:
        return AlphaBeta(0.0, 0.0)
    times: dict[int, float] = {}
    device = next(iter(group.ranks.networks(group.rank % group.ranks.per_replica).values()))
    channel, peers = group.exchange_of(device)
    memory = torch.device(memory_name(group.ranks.devices_of(group.rank)[device]))
    for size in SIZES_BYTES:
        flat = torch.zeros(max(1, size // 4), device=memory)
        reduce = partial(_repeated_s, partial(dist.all_reduce, flat, group=peers), memory)
        times[size] = group.call(channel, f"timing an all-reduce of {size} bytes", reduce)
    everyone = group.gathered(list(times.values()))
    return fitted_line(dict(zip(times, map(max, zip(*everyone, strict=True)), strict=True)))


def measured_machine(group: RankGroup, opened: Mapping[str, RuntimeDevice]) -> Topology:
    """The devices of a plan joined pair by pair by links just measured; the same on every process.

    Inside a process tensors are handed from thread to thread; between processes they go over torch.distributed. Every
    replica measures its own links at the same time as the others; a link has the median of all replicas.
    """
    names, rank_of = list(group.ranks.owners[0]), group.ranks.rank_of
    called = {device.name: name for name, device in opened.items()}
    own = [
        (called[link.source], called[link.target], link.latency_s, 1 / link.bytes_per_s)
        for link in measured_topology(list(opened.values())).links
    ]
    for first, second in itertools.combinations(range(group.ranks.per_replica), 2):
        line = _between(group, first, second)
        if line is not None:
            for source, target in itertools.combinations(names, 2):
                if {rank_of(source, 0), rank_of(target, 0)} == {first, second}:
                    own.append((source, target, line.latency_s, line.s_per_byte))
    lines: dict[frozenset[str], list[tuple[float, float]]] = defaultdict(list)
    types: dict[str, str] = {}
    for theirs, kinds in group.gathered((own, {name: device.type for name, device in opened.items()})):
        types.update(kinds)
        for source, target, latency_s, s_per_byte in theirs:
            lines[frozenset((source, target))].append((latency_s, s_per_byte))
    links = []
    for source, target in itertools.combinations(names, 2):
        latency_s, s_per_byte = map(median, zip(*lines[frozenset((source, target))], strict=True))
        links.append(Link(source, target, 1 / max(s_per_byte, _NO_TIME_PER_BYTE), latency_s))
    devices = tuple(TopologyDevice(name, types[name]) for name in names)
    return Topology(devices, (), tuple(links), name="measured", source="timed between processes and threads")


def _between(group: RankGroup, first: int, second: int) -> AlphaBeta | None:
    """The line of a message between two processes of this replica: half of timed round trips; None on other ranks."""
    offset = group.replica * group.ranks.per_replica
    pair = (first + offset, second + offset)
    if group.rank not in pair:
        return None
    peer = pair[1] if group.rank == pair[0] else pair[0]
    moves = (dist.send, dist.recv) if group.rank == pair[0] else (dist.recv, dist.send)

    memory = group.transport.memory

    def trip(flat: torch.Tensor) -> None:
        for move in moves:
            move(flat, peer)

    times = {}
    for size in SIZES_BYTES:
        trips = partial(_repeated_s, partial(trip, torch.zeros(size, dtype=torch.uint8, device=memory)), memory)
        times[size] = group.call(HOST, f"timing messages of {size} bytes to rank {peer}", trips) / 2
    return fitted_line(times)


def _repeated_s(action: Callable[[], object], memory: torch.device) -> float:
    """Seconds of an action on this thread, until what it has enqueued on a GPU is done."""
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        action()
        if not kind_of(memory).in_host_memory:
            torch.get_device_module(memory).synchronize(memory)
        times.append(time.perf_counter() - begin)
    return settled(times)
