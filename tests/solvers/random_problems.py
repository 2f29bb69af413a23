"""Small random graphs and machines with everything that a problem may have."""

from random import Random

from dlplacer.graph import Edge, Op, OpGraph
from dlplacer.topology import Device, Link, Router, Topology


def random_problem(seed: int) -> tuple[OpGraph, Topology]:
    """A graph of 2 to 6 ops and a machine of 1 to 3 devices; about half of them are tight or broken somewhere."""
    random = Random(seed)
    hard = random.random() < 0.5
    topology = _random_topology(random, hard)
    return _random_graph(random, topology, hard), topology


def _random_topology(random: Random, hard: bool) -> Topology:
    count = random.choice([1, 2, 2, 2, 3, 3])
    types = random.choice([["gpu"] * 3, ["gpu", "gpu", "cpu"], ["cpu", "gpu", "gpu"]])
    sizes = [random.choice([None, 6, 10, 14] if hard else [None, 20]) for _ in range(count)]
    if random.random() < 0.5:
        sizes = [sizes[0]] * count
    devices = tuple(Device(f"d{i}", type=types[i], memory_bytes=sizes[i]) for i in range(count))
    routers = tuple(Router(f"r{i}") for i in range(random.choice([0, 0, 1, 2])))
    names = [node.id for node in (*devices, *routers)]
    links = []
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            if random.random() < (0.5 if hard else 0.85):
                rate, latency = random.choice([1, 2, 4]), random.choice([0, 0, 1, 2])
                links.append(Link(name, other, bytes_per_s=rate, latency_s=latency, count=random.choice([1, 1, 2])))
    return Topology(devices, routers, tuple(links))


def _random_graph(random: Random, topology: Topology, hard: bool) -> OpGraph:
    count = random.randint(2, 6 if len(topology.devices) < 3 else 5)
    types = topology.device_types
    ops = []
    for i in range(count):
        time_s: float | dict[str, float] = random.choice([0, 0, 1, 2, 3, 5, 8])
        if len(types) > 1 and random.random() < 0.5:
            time_s = {name: random.choice([0, 1, 2, 4, 7]) for name in types}
        ops.append(
            Op(
                id=f"k{i}",
                kind="test",
                time_s=time_s,
                output_bytes=random.choice([0, 1, 2, 3, 5] if hard else [0, 1, 2]),
                colocate=random.choice([None, None, None, "a", "b"]),
                devices=_random_pins(random, topology) if random.random() < (0.3 if hard else 0.1) else None,
            )
        )
    density = random.choice([0.2, 0.4, 0.6])
    edges = [
        Edge(f"k{i}", f"k{j}", bytes=random.choice([0, 2, 4, 8, 16]), tensor=f"k{i}-k{j}-{copy}")
        for i in range(count)
        for j in range(i + 1, count)
        for copy in range(2 if random.random() < 0.1 else 1)
        if random.random() < density
    ]
    return OpGraph(tuple(ops), tuple(edges))


def _random_pins(random: Random, topology: Topology) -> tuple[str, ...]:
    names = [device.id for device in topology.devices] + list(topology.device_types)
    return tuple(random.sample(names, random.choice([1, 1, 2]) if len(names) > 1 else 1))
