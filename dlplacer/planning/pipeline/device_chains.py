"""Sequences of devices for the stages of a pipeline: the sequences worth trying."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.topology import Device
from dlplacer.machines.costs.alpha_beta import FREE, AlphaBeta
from dlplacer.machines.costs.message_routes import LinkDirection, Wiring

MOST_CHAINS = 20_000
MOST_KEPT = 32


@dataclass(frozen=True)
class DeviceChain:
    """Devices in the order of the stages, stage k on device k mod p, with the routes between neighbours.

    Attributes
    ----------
    forward, backward
        [rank] → cost of the route to the next rank (the last one's leads to the first) and of the route back.
    """

    devices: tuple[Device, ...]
    forward: tuple[AlphaBeta, ...]
    backward: tuple[AlphaBeta, ...]
    forward_directions: tuple[tuple[LinkDirection, ...], ...]
    backward_directions: tuple[tuple[LinkDirection, ...], ...]

    @property
    def _kind(self) -> tuple[tuple[str, int | None], ...]:
        return tuple((device.type, device.memory_bytes) for device in self.devices)

    def routes(self, wraps: bool) -> tuple[float, ...]:
        """The numbers of all routes that stages use; smaller is better."""
        count = len(self.devices) if wraps else len(self.devices) - 1
        lines = (*self.forward[:count], *self.backward[:count])
        return tuple(number for line in lines for number in (line.latency_s, line.s_per_byte))

    def shared(self, wraps: bool) -> frozenset[tuple[int, ...]]:
        """The routes that share a link direction, by their numbers: their transfers take turns."""
        count = len(self.devices) if wraps else len(self.devices) - 1
        users: dict[LinkDirection, list[int]] = defaultdict(list)
        for number, directions in enumerate((*self.forward_directions[:count], *self.backward_directions[:count])):
            for direction in directions:
                users[direction].append(number)
        return frozenset(tuple(numbers) for numbers in users.values() if len(numbers) > 1)


def chains_of(
    wiring: Wiring, ranks: int, wraps: bool, most: int = MOST_CHAINS, marks: Mapping[str, object] = MappingProxyType({})
) -> tuple[list[DeviceChain], bool]:
    """The sequences of so many devices that no other one dominates; True if all sequences were tried.

    Of two sequences with the same types, memories and marks, one whose routes are all at least as cheap and share no
    link directions that those of the other do not makes every split at least as good, so the other is left out.

    Parameters
    ----------
    wraps
        True if a stage on the last device hands over to one on the first.
    most
        Sequences to look at.
    marks
        Device → what else tells it apart, such as the blocks that it may not run.

    Raises
    ------
    InputError
        If there are not so many devices.
    InfeasibleError
        If no sequence of them is joined by links.
    """
    count = len(wiring.topology.devices)
    if not 1 <= ranks <= count:
        raise InputError(f"a pipeline over {ranks} devices; the topology has {count}: use 1 to {count}")
    found: dict[tuple[object, ...], DeviceChain] = {}
    sequences = list(islice(_sequences(wiring, ranks, marks), most + 1))
    for names in sequences[:most]:
        chain = _chain(wiring, names)
        if chain is not None:
            found.setdefault((_marked(chain, marks), chain.routes(wraps), chain.shared(wraps)), chain)
    if not found:
        raise InfeasibleError(f"no {ranks} devices of topology {wiring.topology.name!r} are joined by links")
    best = sorted(found.values(), key=lambda chain: (sum(chain.routes(wraps)), len(chain.shared(wraps))))
    kept: list[DeviceChain] = []
    for chain in best:
        routes, shared = chain.routes(wraps), chain.shared(wraps)
        if not any(
            _marked(other, marks) == _marked(chain, marks)
            and other.shared(wraps) <= shared
            and all(a <= b for a, b in zip(other.routes(wraps), routes, strict=True))
            for other in kept
        ):
            kept.append(chain)
    return kept[:MOST_KEPT], len(sequences) <= most and len(kept) <= MOST_KEPT


def _marked(chain: DeviceChain, marks: Mapping[str, object]) -> tuple[object, ...]:
    return chain._kind, *(marks.get(device.id) for device in chain.devices)


def _chain(wiring: Wiring, names: tuple[str, ...]) -> DeviceChain | None:
    following = (*names[1:], names[0])
    try:
        forward = tuple(wiring.channel(a, b) if a != b else FREE for a, b in zip(names, following, strict=True))
        backward = tuple(wiring.channel(b, a) if a != b else FREE for a, b in zip(names, following, strict=True))
        there = tuple(wiring.directions(a, b) if a != b else () for a, b in zip(names, following, strict=True))
        back = tuple(wiring.directions(b, a) if a != b else () for a, b in zip(names, following, strict=True))
    except InfeasibleError:
        return None
    return DeviceChain(tuple(map(wiring.topology.device, names)), forward, backward, there, back)


def _sequences(wiring: Wiring, ranks: int, marks: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """All sequences of different devices; of devices that nothing tells apart the first unused one stands for all."""
    names = [device.id for device in wiring.topology.devices]
    group = _twins(wiring, names, marks)

    def extend(chosen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(chosen) == ranks:
            yield chosen
            return
        tried = set()
        for name in names:
            if name not in chosen and group[name] not in tried:
                tried.add(group[name])
                yield from extend((*chosen, name))

    return extend(())


def _twins(wiring: Wiring, names: list[str], marks: Mapping[str, object]) -> dict[str, int]:
    """Device → number of its group: equal type, memory and mark, and equal routes to all others over the same links."""
    group: dict[str, int] = {}
    leaders: list[str] = []
    for name in names:
        for number, leader in enumerate(leaders):
            if marks.get(name) == marks.get(leader) and _are_twins(wiring, name, leader, names):
                group[name] = number
                break
        else:
            group[name] = len(leaders)
            leaders.append(name)
    return group


def _are_twins(wiring: Wiring, one: str, other: str, names: list[str]) -> bool:
    first, second = wiring.topology.device(one), wiring.topology.device(other)
    if (first.type, first.memory_bytes) != (second.type, second.memory_bytes):
        return False
    rest = [name for name in names if name not in (one, other)]
    return _line(wiring, one, other) == _line(wiring, other, one) and all(
        _line(wiring, one, name) == _line(wiring, other, name)
        and _line(wiring, name, one) == _line(wiring, name, other)
        and _directions(wiring, one, name, {one: other, other: one}) == _directions(wiring, other, name, {})
        for name in rest
    )


def _directions(wiring: Wiring, source: str, target: str, renamed: Mapping[str, str]) -> set[frozenset[str]]:
    """The links on the route between two devices, with some nodes renamed; none without a route."""
    try:
        directions = wiring.directions(source, target)
    except InfeasibleError:
        return set()
    return {frozenset(renamed.get(end, end) for end in direction) for direction in directions}


def _line(wiring: Wiring, source: str, target: str) -> AlphaBeta | None:
    try:
        return wiring.channel(source, target)
    except InfeasibleError:
        return None
