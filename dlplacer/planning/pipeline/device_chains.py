"""Sequences of devices for the stages of a pipeline: the sequences worth trying."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.message_routes import LinkDirection, Wiring

Routes = tuple[float, ...]
Shared = frozenset[tuple[int, ...]]

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

    def routes(self, wraps: bool) -> Routes:
        """The numbers of all routes that stages use; smaller is better."""
        count = len(self.devices) if wraps else len(self.devices) - 1
        lines = (*self.forward[:count], *self.backward[:count])
        return tuple(number for line in lines for number in (line.latency_s, line.s_per_byte))

    def shared(self, wraps: bool) -> Shared:
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
    marks
        Device → what else tells it apart, such as the blocks that it may not run.

    Raises
    ------
    InfeasibleError
        If no sequence of them is joined by links.
    """
    count = len(wiring.topology.devices)
    if not 1 <= ranks <= count:
        raise InputError(f"a pipeline over {ranks} devices; the topology has {count}: use 1 to {count}")
    found: dict[tuple[Routes, Shared, object], DeviceChain] = {}
    sequences = list(islice(_sequences(wiring.topology, ranks, marks), most + 1))
    for names in sequences[:most]:
        chain = _chain(wiring, names)
        if chain is not None:
            kinds = tuple((each.type, each.memory_bytes, marks.get(each.id)) for each in chain.devices)
            found.setdefault((chain.routes(wraps), chain.shared(wraps), kinds), chain)
    if not found:
        raise InfeasibleError(f"no {ranks} devices of topology {wiring.topology.name!r} are joined by links")
    kept: list[tuple[Routes, Shared, object]] = []
    for routes, shared, own in sorted(found, key=lambda profile: (sum(profile[0]), len(profile[1]))):
        if not any(
            other == own and less <= shared and all(a <= b for a, b in zip(cheaper, routes, strict=True))
            for cheaper, less, other in kept
        ):
            kept.append((routes, shared, own))
    is_all = len(sequences) <= most and len(kept) <= MOST_KEPT
    return [found[profile] for profile in kept[:MOST_KEPT]], is_all


def _chain(wiring: Wiring, names: tuple[str, ...]) -> DeviceChain | None:
    ahead = list(zip(names, (*names[1:], names[0]), strict=True))
    lines: list[tuple[AlphaBeta, ...]] = []
    directions: list[tuple[tuple[LinkDirection, ...], ...]] = []
    try:
        for pairs in (ahead, [(b, a) for a, b in ahead]):
            lines.append(tuple(wiring.channel(a, b) for a, b in pairs))
            directions.append(tuple(wiring.directions(a, b) if a != b else () for a, b in pairs))
    except InfeasibleError:
        return None
    return DeviceChain(tuple(map(wiring.topology.device, names)), lines[0], lines[1], directions[0], directions[1])


def _sequences(topology: Topology, ranks: int, marks: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """All sequences of different devices; of devices that nothing tells apart the first unused one stands for all."""
    leader: dict[str, str] = {}
    for device in topology.devices:
        alike = (name for name in leader.values() if _are_twins(topology, device, topology.device(name), marks))
        leader[device.id] = next(alike, device.id)

    def extend(chosen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(chosen) == ranks:
            yield chosen
            return
        unused = {leader[name]: name for name in reversed(leader) if name not in chosen}
        for name in sorted(unused.values(), key=topology.device_index.__getitem__):
            yield from extend((*chosen, name))

    return extend(())


def _are_twins(topology: Topology, one: Device, other: Device, marks: Mapping[str, object]) -> bool:
    """True if the machine stays the same when the two change places."""
    if (one.type, one.memory_bytes, marks.get(one.id)) != (other.type, other.memory_bytes, marks.get(other.id)):
        return False
    links = {
        frozenset((link.source, link.target)): (link.bytes_per_s, link.latency_s, link.duplex, link.count)
        for link in topology.links
    }
    swap = {one.id: other.id, other.id: one.id}
    return all(links.get(frozenset(swap.get(end, end) for end in ends)) == cost for ends, cost in links.items())
