"""Uneven tensor parallelism: GPUs that each take a share of every matrix form one stage of a fit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.core.units import format_bytes
from dlplacer.machines.costs.collectives import AlphaBeta, ring_all_reduce
from dlplacer.machines.costs.links import Wiring
from dlplacer.machines.costs.roofline import rates_of

_MIXES = tuple(1 - step / 32 for step in range(33))
"""Weights of bandwidth against memory in the shares; the first is fastest, the last holds most."""


def divided(topology: Topology, sets: Sequence[Sequence[str]], kept_bytes: int) -> Iterator[Topology]:
    """Machines in which each set of GPUs is one device; shares follow bandwidth in the first and memory in the last.

    A stage is as fast as its slowest share, and full as soon as one share is full. The stage's ``meta`` has the
    members' numbers among all GPUs, the hosts and types of all GPUs, the shares, and the cost of the all-reduce after
    attention and MLP (Shoeybi et al. 2019).

    `kept_bytes`: Memory of each member that holds neither weights nor cache.

    Raises InputError if a set has fewer than two GPUs or names an unknown device, or if two sets share a GPU.
    """
    named = [name for names in sets for name in names]
    for names in sets:
        gpus = [topology.device(name) for name in names if topology.device(name).asynchronous]
        if len(gpus) < 2 or len(gpus) < len(names) or len({*named}) < len(named):
            raise InputError(
                f"tensor_parallel is {'+'.join(names)!r}; give two or more GPUs, each in one set, as in 'gpu0+gpu1'"
            )
    for mix in _MIXES:
        machine = topology
        for names in sets:
            machine = _joined(machine, topology, names, mix, kept_bytes)
        yield machine


def _joined(machine: Topology, whole: Topology, names: Sequence[str], mix: float, kept_bytes: int) -> Topology:
    members = [whole.device(name) for name in names]
    rates = [rates_of(member) for member in members]
    known = [rate for rate in rates if rate is not None and rate.memory_bytes_per_s is not None]
    if len(known) < len(members):
        raise InputError(f"{'+'.join(names)} have no rates; give them types of `dlplacer list devices`")
    speeds = [rate.memory_bytes_per_s or 0.0 for rate in known]
    rooms = [_room(member, kept_bytes) for member in members]
    shares = [
        mix * speed / sum(speeds) + (1 - mix) * room / sum(rooms) for speed, room in zip(speeds, rooms, strict=True)
    ]
    dtypes = set.intersection(*({*rate.flops_per_s} for rate in known))
    line = _all_reduce(Wiring(whole), names)
    gpus = [device for device in whole.devices if device.asynchronous]
    one = replace(
        members[0],
        id="+".join(names),
        type=f"{'+'.join(member.type for member in members)} by {':'.join(f'{share:.3f}' for share in shares)}",
        memory_bytes=int(min(room / share for room, share in zip(rooms, shares, strict=True))) + kept_bytes,
        flops_per_s={
            dtype: min(rate.flops_per_s[dtype] / share for rate, share in zip(known, shares, strict=True))
            for dtype in sorted(dtypes)
        },
        memory_bytes_per_s=min(speed / share for speed, share in zip(speeds, shares, strict=True)),
        meta={
            **members[0].meta,
            "members": [gpus.index(member) for member in members],
            "gpus": [(gpu.meta.get("host", ""), gpu.type) for gpu in gpus],
            "shares": shares,
            "all_reduce": [line.latency_s, line.s_per_byte],
        },
    )
    return _replaced(machine, names, one)


def _room(member: Device, kept_bytes: int) -> float:
    if member.memory_bytes is None or member.memory_bytes <= kept_bytes:
        raise InputError(
            f"device {member.id!r} has no memory beyond the reserved {format_bytes(kept_bytes)}; remove it from its set"
        )
    return float(member.memory_bytes - kept_bytes)


def _all_reduce(wiring: Wiring, names: Sequence[str]) -> AlphaBeta:
    """The cost of a ring over the slowest channel between two members."""
    lines = [wiring.channel(*pair) for pair in combinations(names, 2)]
    slowest = AlphaBeta(max(line.latency_s for line in lines), max(line.s_per_byte for line in lines))
    return ring_all_reduce(slowest, len(names))


def _replaced(machine: Topology, names: Sequence[str], one: Device) -> Topology:
    """The machine with one device in place of several, which keeps their fastest link to each node."""
    devices = [one if device.id == names[0] else device for device in machine.devices if device.id not in names[1:]]
    links: dict[frozenset[str], Link] = {}
    for link in machine.links:
        source, target = (one.id if end in names else end for end in (link.source, link.target))
        known = links.get(frozenset((source, target)))
        if source != target and (known is None or link.total_bytes_per_s > known.total_bytes_per_s):
            links[frozenset((source, target))] = replace(link, source=source, target=target)
    return replace(machine, devices=tuple(devices), links=tuple(links.values()))
