"""Model-parallel workers: the speedup of one worker's step on M devices, and which devices of a machine each gets."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from threading import Event
from typing import Any

from dlplacer.core.errors import InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.place import place

NETWORK = "network"


def cluster(box: Topology, boxes: int, bytes_per_s: float, latency_s: float = 5e-6) -> Topology:
    """So many copies of a machine, each with one network card that its devices share, on one switch that never blocks.

    Device and router names get the number of their copy: ``3/gpu0``. Every device reaches the card of its box at the
    card's rate.

    Parameters
    ----------
    bytes_per_s
        Of a box's card, per direction.
    latency_s
        From device to device of different boxes.
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
"""Up to this many devices the search is complete; beyond it each worker takes the best devices that are left."""

_ISLAND_SHARE = 0.5

Worker = tuple[str, ...]


class WorkerLayout:
    """The choice of devices on one machine.

    A worker is as good as its narrowest pair of devices, and a choice of workers as good as its worst worker; among
    equals the sum over the workers decides, then how well all chosen devices are joined.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.wiring = Wiring(topology)

    # Caches on methods keep a layout alive; there is one for each plan, and all budgets ask it.
    @cache  # noqa: B019
    def workers(self, devices: int, degree: int) -> tuple[Worker, ...]:
        """Workers of `degree` devices each, `devices` of the machine in all."""
        if degree < 1 or devices < 1 or devices % degree:
            raise InputError(
                f"{devices} devices in workers of {degree}: give at least 1, and a number that {degree} divides"
            )
        there = len(self.topology.devices)
        if devices > there:
            raise InfeasibleError(
                f"{devices} devices are asked for; topology {self.topology.name!r} has {there}: use a larger one, or "
                "join several over a network"
            )
        search = self._best if there <= EXHAUSTIVE_DEVICES else self._greedy
        return search(devices, degree)

    def kinds(self, devices: int, degree: int) -> tuple[Worker, ...]:
        """One worker of every kind among `workers`: kinds differ in more than names."""
        found: dict[tuple[object, ...], Worker] = {}
        for worker in self.workers(devices, degree):
            found.setdefault(self._signature(worker), worker)
        return tuple(found.values())

    def islands(self, devices: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Places of these devices in parts that are joined better inside than outside; empty unless of equal size.

        Two devices are in one part if a route of at least half the best rate between any two of the machine joins them.
        """
        parts: dict[int, list[int]] = {}
        for position, name in enumerate(devices):
            parts.setdefault(self._island[name], []).append(position)
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
            rates = [self._narrowest(worker) for worker in workers]
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

    @cache  # noqa: B019
    def _signature(self, worker: Worker) -> tuple[object, ...]:
        return signature(sub_topology(self.topology, worker))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.topology.device_index)

    @cache  # noqa: B019
    def rate(self, a: str, b: str) -> float:
        """Bytes per second of the route between two devices; 0 where no links join them."""
        try:
            return 1 / self.wiring.channel(a, b).s_per_byte
        except InfeasibleError:
            return 0.0

    @cache  # noqa: B019
    def _narrowest(self, worker: Worker) -> float:
        return min((self.rate(a, b) for a, b in combinations(worker, 2)), default=float("inf"))

    @cache  # noqa: B019
    def _joined(self, places: tuple[int, ...]) -> float:
        names = [self._names[place] for place in places]
        rates = [self.rate(a, b) for a, b in combinations(names, 2)]
        # In this order: the narrowest pair, which holds up a ring, then the mean, which rings side by side share.
        return min(rates, default=0.0) * 1e6 + sum(rates) / max(1, len(rates))


def partitions(devices: Sequence[str], size: int) -> Iterator[tuple[Worker, ...]]:
    """Every partition of devices into sets of a size that divides their number, each once."""
    if not devices:
        yield ()
        return
    first, rest = devices[0], devices[1:]
    for others in combinations(rest, size - 1):
        left = [device for device in rest if device not in others]
        for workers in partitions(left, size):
            yield ((first, *others), *workers)


def sub_topology(topology: Topology, devices: Sequence[str]) -> Topology:
    """The machine with these devices alone: routers that lead nowhere else are left out."""
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
    """Equal for machines that differ in names alone, node by node in the order given."""
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


@dataclass(frozen=True)
class WorkerSplit:
    """The split of a worker's step over its devices.

    Attributes
    ----------
    speedup
        SU^M: the step on one device ÷ on these.
    shares
        The share of the gradients that each device holds; empty for equal shares.
    used
        The number of devices that run ops; 0 stands for all.
    """

    speedup: float
    method: str = "given"
    micro_batches: int = 1
    shares: tuple[float, ...] = ()
    used: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.speedup < float("inf"):
            raise InputError(f"model-parallel speedup is {self.speedup}; it must be positive and finite")
        if self.micro_batches < 1:
            raise InputError(f"{self.micro_batches} micro-batches; there must be at least 1")


ModelParallel = Callable[[int, Topology | None], float | WorkerSplit | Iterable[WorkerSplit] | None]
"""(M, the machine of one worker) → its speedup or its possible splits; None or nothing where M devices cannot do it.

The machine is None where the planner was given none.
"""

ALONE = WorkerSplit(1.0, "one device")


def splits_of(answer: float | WorkerSplit | Iterable[WorkerSplit] | None) -> tuple[WorkerSplit, ...]:
    """The answer of a `ModelParallel` as a tuple."""
    if answer is None:
        return ()
    if isinstance(answer, WorkerSplit):
        return (answer,)
    if isinstance(answer, (int, float)):
        return (WorkerSplit(float(answer)),)
    return tuple(answer)


@dataclass(frozen=True)
class SpeedupTable:
    """Speedups that are known: M → SU^M; degrees that are not listed cannot be used."""

    speedups: Mapping[int, float]

    def __post_init__(self) -> None:
        for degree, speedup in self.speedups.items():
            if degree < 2 or not speedup > 0:
                raise InputError(f"speedup {speedup} of {degree} devices: at least 2 devices and a positive speedup")

    def __call__(self, degree: int, _topology: Topology | None) -> WorkerSplit | None:
        """The listed speedup."""
        return WorkerSplit(self.speedups[degree]) if degree in self.speedups else None


class SplitPerMachine(ABC):
    """A source of splits that looks at each kind of machine once: those that differ in names alone are one.

    Parameters
    ----------
    single_s
        Step time on one device, to which speedups refer.
    """

    def __init__(self, graph: OpGraph, single_s: float) -> None:
        if not single_s > 0:
            raise InputError(f"step time on one device is {single_s} s; it must be positive")
        self.graph, self.single_s = graph, single_s
        self.solved: dict[tuple[object, ...], WorkerSplit | None] = {}

    def __call__(self, degree: int, topology: Topology | None) -> WorkerSplit | None:
        """The split on a worker's machine; None if there is none."""
        if topology is None:
            raise InputError("a worker's step is planned on its machine; give the planner a topology")
        key = signature(topology)
        if key not in self.solved:
            self.solved[key] = self._split(degree, topology)
        return self.solved[key]

    @abstractmethod
    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        """The split on a machine that was not tried before; None if there is none."""


class Placed(SplitPerMachine):
    """Speedups from the solver: the graph is placed on the machine that a worker really gets.

    A machine whose memory the graph exceeds, or for which no plan was found in time, has no split.

    Parameters
    ----------
    stop
        Once it is set, the solve at hand ends, and KeyboardInterrupt is raised instead of starting others.
    solving
        Arguments of `dlplacer.planning.place.place`. One device needs no method; the limit and the gap are those of
        many solves in a row, as a percent of a worker's step decides nothing here.
    """

    def __init__(self, graph: OpGraph, single_s: float, stop: Event | None = None, **solving: Any) -> None:
        super().__init__(graph, single_s)
        self.stop, self.solving = stop, {"time_limit_s": 20.0, "gap": 0.01, **solving}

    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        alone = {"method": "single"} if degree == 1 else {}
        split = None
        with suppress(InfeasibleError, NoPlanError):
            plan = place(self.graph, topology, **{**self.solving, **alone}, stop=self.stop).plan
            shares = shares_of(self.graph, plan.placement.items(), topology)
            used = len({entry.device for entry in plan.ops if entry.end_s > entry.start_s})
            split = WorkerSplit(self.single_s / plan.makespan_s, "placement", 1, shares, used)
        # Ctrl-C ends a solve with the best plan so far, or none; the solves that would follow are not wanted either.
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt
        return split


def shares_of(graph: OpGraph, placed: Iterable[tuple[str, str]], topology: Topology) -> tuple[float, ...]:
    """The share of the gradients that each device holds, by (op, its device); ops without gradients may be left out."""
    held = dict.fromkeys(topology.device_index, 0)
    for op, device in placed:
        held[device] += graph.op(op).gradient_bytes
    total = sum(held.values())
    return tuple(size / total for size in held.values()) if total else ()


class PipelinedWorkers(SplitPerMachine):
    """The best pipeline over all devices of a worker, with its number of micro-batches.

    There is no split if the graph exceeds a machine's memory, or has fewer parts than the machine has devices.
    """

    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        try:
            plan = plan_pipeline(self.graph, topology, stages=degree)
        except InfeasibleError:
            return None
        placed = ((name, stage.device) for stage in plan.stages for name in stage.ops)
        shares = shares_of(self.graph, placed, topology)
        return WorkerSplit(self.single_s / plan.step_s, "pipeline", plan.micro_batches, shares)
