"""Small random graphs and machines with everything that a problem may have."""

from random import Random

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.topology import Device, Link, Router, Topology


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


def random_fork_join(seed: int, blocks: int, plain: bool) -> tuple[OpGraph, Topology]:
    """Blocks of parallel branches between cut ops, on 2 or 3 devices.

    Parameters
    ----------
    plain
        Devices are identical and nothing but the chain of cut ops joins the blocks; otherwise there are skip edges, ops
        that nothing reads, groups, pins, two device types and tight memory.
    """
    random = Random(seed)
    builder = _ForkJoin(random, plain)
    for number in range(blocks):
        builder.block(number)
    count = random.choice([2, 2, 3])
    memory = None if plain or random.random() < 0.5 else 2 * len(builder.ops)
    types = ["gpu"] * count if plain or random.random() < 0.6 else ["gpu", "cpu", "cpu"][:count]
    devices = tuple(Device(f"d{i}", types[i], memory) for i in range(count))
    rate, latency = random.choice([1, 2, 4]), random.choice([0, 1])
    links = tuple(Link(f"d{i}", f"d{j}", rate, latency) for j in range(count) for i in range(j))
    return OpGraph(tuple(builder.ops), tuple(builder.edges)), Topology(devices, (), links)


class _ForkJoin:
    def __init__(self, random: Random, plain: bool) -> None:
        self.random, self.plain = random, plain
        self.ops: list[Op] = []
        self.edges: list[Edge] = []
        self.last = self.add("start", [])

    def add(self, name: str, sources: list[str]) -> str:
        random, more = self.random, {}
        time_s: float | dict[str, float] = random.choice([1, 2, 3, 5, 8])
        if not self.plain:
            more["colocate"] = random.choice([None, None, None, None, "g", "h"])
            more["devices"] = ("d0",) if random.random() < 0.05 else None
            more["output_bytes"] = random.choice([1, 2, 3])
            time_s = {"gpu": random.choice([0, 1, 2, 5]), "cpu": random.choice([1, 2, 8])}
        self.ops.append(Op(name, "test", time_s=time_s, **more))
        for source in sources:
            self.edges.append(Edge(source, name, random.choice([0, 2, 4, 8])))
        return name

    def block(self, number: int) -> None:
        ends = []
        for branch in range(self.random.choice([1, 2, 2, 3])):
            here = self.last
            for depth in range(self.random.choice([1, 1, 2])):
                here = self.add(f"b{number}.{branch}.{depth}", [here])
            ends.append(here)
        if not self.plain and self.random.random() < 0.3:
            self.add(f"floats{number}", [self.last])
        skip = [self.ops[0].id] if not self.plain and number and self.random.random() < 0.3 else []
        self.last = self.add(f"join{number}", [*ends, *(name for name in skip if name not in ends)])


def random_step(seed: int, most_ops: int = 4) -> tuple[OpGraph, Topology, Options]:
    """A tiny training step, a machine and options: shared tensors, phases, relays, routers, perhaps tight memory."""
    random = Random(seed)
    options = Options(**{name: random.choice(values) for name, values in CHOICES.items() if name != "objective"})
    live = options.memory == "live"
    count = random.choice([2, 2, 2, 3])
    tight = random.random() < 0.7
    sizes = [random.choice([None, 7, 9, 12] if tight else [None]) for _ in range(count)]
    devices = tuple(Device(f"d{i}", random.choice(["gpu", "gpu", "cpu"]), sizes[i]) for i in range(count))
    if random.random() < 0.4:
        devices = tuple(Device(f"d{i}", "gpu", sizes[0]) for i in range(count))
    routers = (Router("r"),) if random.random() < 0.4 else ()
    names = [node.id for node in (*devices, *routers)]
    full = options.delay == "store-and-forward" or random.random() < 0.7
    links = [
        Link(a, b, random.choice([1, 2, 4]), random.choice([0, 0, 1]), "full" if full else "half")
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if random.random() < 0.85
    ]
    size = random.randint(2, most_ops if count == 2 and not live else most_ops - 1)
    return _random_step_graph(random, size), Topology(devices, routers, tuple(links)), options


def _random_step_graph(random: Random, count: int) -> OpGraph:
    backward_from = random.choice([count, count // 2, count - 1])
    ops = [
        Op(
            f"k{i}",
            "test",
            random.choice([0, 1, 2, 3, 5]),
            weight_bytes=random.choice([0, 0, 1, 3]),
            output_bytes=random.choice([0, 1, 3, 4]),
            workspace_bytes=random.choice([0, 0, 2]),
            phase="backward" if i >= backward_from else random.choice(["forward", None]),
            colocate=random.choice([None, None, None, "a"]),
        )
        for i in range(count)
    ]
    edges = []
    for i in range(count):
        size = random.choice([0, 1, 2, 4])
        for j in range(i + 1, count):
            if random.random() < 0.55:
                shared = f"k{i}" if random.random() < 0.6 else f"k{i}-k{j}"
                edges.append(Edge(f"k{i}", f"k{j}", size, tensor=shared))
    return OpGraph(tuple(ops), tuple(edges))


def random_everything(seed: int) -> tuple[OpGraph, Topology, Options]:
    """A training step with all that a problem may have at once, on 4 to 8 devices in a ring, a star, a line or a tree.

    Times per type, pins, colocation, workspace, tight memory over time, contended half-duplex links, relays,
    routers and the barrier at the loss.
    """
    random = Random(seed)
    options = Options(
        routing=random.choice(["free", "free", "shortest"]),
        delay=random.choice(["cut-through", "cut-through", "store-and-forward"]),
        transfers=random.choice(["device", "device", "edge"]),
        memory=random.choice(["live", "live", "sum"]),
        step=random.choice(["autograd", "joint"]),
    )
    count = random.randint(4, 8)
    memory = random.choice([None, 14, 18, 24])
    devices = tuple(
        Device(f"d{i}", random.choice(["gpu", "gpu", "cpu"]), random.choice([memory, memory, 30])) for i in range(count)
    )
    topology = Topology(devices, *_random_network(random, [device.id for device in devices]))
    return _random_everything_graph(random, random.randint(4, 8), count), topology, options


def _random_network(random: Random, names: list[str]) -> tuple[tuple[Router, ...], tuple[Link, ...]]:
    shape = random.choice(["ring", "star", "line", "tree"])
    if shape == "star":
        pairs = [(name, "r0") for name in names]
    elif shape == "tree":
        pairs = [("r0", "r1"), *((name, f"r{i % 2}") for i, name in enumerate(names)), (names[0], names[1])]
    else:
        pairs = list(zip(names, [*names[1:], names[0]], strict=True))[: len(names) - (shape == "line")]
    links = tuple(
        Link(a, b, random.choice([1, 1, 2]), random.choice([0, 0, 1]), random.choice(["full", "full", "half"]))
        for a, b in pairs
    )
    return tuple(Router(name) for name in ("r0", "r1") if any(name in pair for pair in pairs)), links


def _random_everything_graph(random: Random, count: int, devices: int) -> OpGraph:
    ops = []
    for i in range(count):
        time_s: float | dict[str, float] = random.choice([1, 2, 3, 5])
        if random.random() < 0.5:
            time_s = {"gpu": random.choice([0, 1, 2, 4]), "cpu": random.choice([1, 3, 6])}
        ops.append(
            Op(
                f"k{i}",
                "test",
                time_s,
                weight_bytes=random.choice([0, 0, 1, 3]),
                output_bytes=random.choice([0, 2, 4]),
                workspace_bytes=random.choice([0, 0, 2]),
                phase="backward" if i >= count // 2 else "forward",
                colocate=random.choice([None, None, None, "a", "b"]),
                devices=(f"d{random.randrange(devices)}",) if random.random() < 0.1 else None,
            )
        )
    edges = []
    for i in range(count):
        size = random.choice([0, 2, 2, 4])
        for j in range(i + 1, count):
            if random.random() < 0.35:
                shared = f"k{i}" if random.random() < 0.7 else f"k{i}-k{j}"
                edges.append(Edge(f"k{i}", f"k{j}", size, tensor=shared))
    return OpGraph(tuple(ops), tuple(edges))
