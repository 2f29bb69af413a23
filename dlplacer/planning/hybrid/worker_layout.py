"""The choice of well-connected devices on a machine for workers of M devices each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import combinations

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.costs.links import Wiring

NETWORK = "network"


def cluster(box: Topology, boxes: int, bytes_per_s: float, latency_s: float = 5e-6) -> Topology:
    """Copies of a machine on one switch that never blocks; the devices of each copy share one network card.

    Device and router names get the number of their copy: ``3/gpu0``. Every device reaches the card of its box at the
    card's rate.

    `bytes_per_s`: Rate of a box's card, per direction. `latency_s`: Latency between devices of different boxes.
    """
    if boxes < 1:
        raise InputError(f"a cluster of {boxes} machines; there must be at least 1")
    devices, routers, links = [], [Router(NETWORK)], []
    for number in range(boxes):
        names = {node.id: f"{number}/{node.id}" for node in box.nodes}
        card = f"{number}/{NETWORK}"
        devices += [replace(device, id=names[device.id]) for device in box.devices]
        routers += [Router(names[router.id]) for router in box.routers] + [Router(card)]
        links += [replace(link, source=names[link.source], target=names[link.target]) for link in box.links]
        links += [Link(names[device.id], card, bytes_per_s, latency_s / 4) for device in box.devices]
        links.append(Link(card, NETWORK, bytes_per_s, latency_s / 4))
    return Topology(tuple(devices), tuple(routers), tuple(links), name=f"{boxes} x {box.name}", source=box.source)


EXHAUSTIVE_DEVICES = 8
"""Up to this many devices the search is complete; beyond that each worker takes the best remaining devices."""

_ISLAND_SHARE = 0.5

Worker = tuple[str, ...]


class WorkerLayout:
    """The choice of devices on one machine.

    On a machine of at most `EXHAUSTIVE_DEVICES` devices, a worker is rated by its slowest device pair, and a choice of
    workers by its worst worker; ties go to the larger sum over workers, then to the devices with the faster routes.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.wiring = Wiring(topology)

    # Caches on methods keep a layout alive, but there is only one per plan, which all budgets use.
    @cache  # noqa: B019
    def workers(self, devices: int, degree: int) -> tuple[Worker, ...]:
        """Workers of `degree` devices each, with `devices` devices in total."""
        if degree < 1 or devices < 1 or devices % degree:
            raise InputError(
                f"{devices} devices in workers of {degree}: give at least 1, and a number that {degree} divides"
            )
        there = len(self.topology.devices)
        if devices > there:
            raise InfeasibleError(
                f"{devices} devices were requested; topology {self.topology.name!r} has {there}: use a larger one, or "
                "join several over a network"
            )
        search = self._best if there <= EXHAUSTIVE_DEVICES else self._greedy
        return search(devices, degree)

    @cache  # noqa: B019
    def kinds(self, devices: int, degree: int) -> tuple[Worker, ...]:
        """One worker of every kind among `workers`; workers of one kind differ only in names."""
        found: dict[tuple[object, ...], Worker] = {}
        for worker in self.workers(devices, degree):
            found.setdefault(signature(sub_topology(self.topology, worker)), worker)
        return tuple(found.values())

    def islands(self, devices: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """[island] → positions of its devices in `devices`; empty unless there are several, all of one size above 1.

        Routes of at least half the best rate on the machine connect the devices of an island.
        """
        parts: dict[int, list[int]] = {}
        for place, name in enumerate(devices):
            parts.setdefault(self._island[name], []).append(place)
        sizes = {len(part) for part in parts.values()}
        return tuple(map(tuple, parts.values())) if len(sizes) == 1 and 1 < len(parts) < len(devices) else ()

    @cached_property
    def _island(self) -> dict[str, int]:
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(self._names)
        rates = {(a, b): self.rate(a, b) for a, b in combinations(self._names, 2)}
        widest = max(rates.values(), default=0.0)
        graph.add_edges_from(pair for pair, rate in rates.items() if rate >= _ISLAND_SHARE * widest)
        parts = enumerate(nx.connected_components(graph))
        return {name: number for number, part in parts for name in part}

    def _best(self, devices: int, degree: int) -> tuple[Worker, ...]:
        def worth(workers: tuple[Worker, ...]) -> tuple[float, float, float]:
            pairs = (combinations(worker, 2) for worker in workers)
            rates = [min((self.rate(a, b) for a, b in each), default=float("inf")) for each in pairs]
            everyone = tuple(sorted(self.topology.device_index[name] for worker in workers for name in worker))
            return (min(rates), sum(rates) if degree > 1 else 0.0, self._joined(everyone))

        choices = (workers for chosen in combinations(self._names, devices) for workers in partitions(chosen, degree))
        return max(choices, key=worth)

    def _greedy(self, devices: int, degree: int) -> tuple[Worker, ...]:
        left = list(self._names)
        workers: list[Worker] = []
        while len(workers) * degree < devices:
            worker = [left.pop(0)]
            while len(worker) < degree:
                following = max(left, key=lambda name: min(self.rate(name, member) for member in worker))
                worker.append(following)
                left.remove(following)
            workers.append(tuple(worker))
        return tuple(workers)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.topology.device_index)

    @cache  # noqa: B019
    def rate(self, a: str, b: str) -> float:
        """Bytes per second of the route between two devices; 0 if no links join them."""
        try:
            return 1 / self.wiring.channel(a, b).s_per_byte
        except InfeasibleError:
            return 0.0

    @cache  # noqa: B019
    def _joined(self, places: tuple[int, ...]) -> float:
        names = [self._names[place] for place in places]
        rates = [self.rate(a, b) for a, b in combinations(names, 2)]
        # First the narrowest pair, which limits a ring; then the mean, which counts for parallel rings.
        return min(rates, default=0.0) * 1e6 + sum(rates) / max(1, len(rates))


def partitions(devices: Sequence[str], size: int) -> Iterator[tuple[Worker, ...]]:
    """Every partition of the devices into sets of `size`, which divides the number of devices."""
    if not devices:
        yield ()
        return
    first, rest = devices[0], devices[1:]
    for others in combinations(rest, size - 1):
        left = [device for device in rest if device not in others]
        for workers in partitions(left, size):
            yield ((first, *others), *workers)


def sub_topology(topology: Topology, devices: Sequence[str]) -> Topology:
    """The machine with only these devices; routers that no longer join two nodes are removed."""
    for name in devices:
        if name not in topology.device_index:
            raise InputError(f"{name!r} is not a device of topology {topology.name!r}; use one that it lists")
    kept = set(devices) | {router.id for router in topology.routers}
    links = [link for link in topology.links if link.source in kept and link.target in kept]
    while True:
        ends = Counter(end for link in links for end in (link.source, link.target))
        dangling = {name for name in kept.difference(devices) if ends[name] < 2}
        if not dangling:
            break
        kept -= dangling
        links = [link for link in links if link.source in kept and link.target in kept]
    return Topology(
        tuple(topology.device(name) for name in devices),
        tuple(router for router in topology.routers if router.id in kept),
        tuple(links),
        name=f"{topology.name}[{', '.join(devices)}]",
        source=topology.source,
    )


def signature(topology: Topology) -> tuple[object, ...]:
    """A key that is equal for machines whose nodes, compared in order, differ only in names."""
    place = {node.id: position for position, node in enumerate(topology.nodes)}
    nodes = tuple(
        (node.type, node.memory_bytes, repr(node.flops_per_s), node.memory_bytes_per_s)
        if isinstance(node, Device)
        else ("router",)
        for node in topology.nodes
    )
    links = (
        (*sorted((place[link.source], place[link.target])), link.bytes_per_s, link.latency_s, link.duplex, link.count)
        for link in topology.links
    )
    return nodes, tuple(sorted(links))


def boxes_for(box: Topology, devices: int, network_bytes_per_s: float | None) -> Topology:
    """The machine itself or, with a network, as many copies of it as `devices` needs."""
    boxes = -(-devices // len(box.devices))
    if network_bytes_per_s is not None:
        return cluster(box, boxes, network_bytes_per_s)
    if boxes > 1:
        raise InputError(
            f"devices is {devices}; topology {box.name!r} has {len(box.devices)}: join copies of it with "
            'network="12.5 GB/s", or assume a scaling_efficiency of 1'
        )
    return box
