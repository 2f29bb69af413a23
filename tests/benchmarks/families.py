"""Graph families for benchmarks: the shapes of the scheduling literature and of models, of any size, seeded.

Every family is a function of the number of ops, a seed, the communication-to-computation ratio and the spread. Two
calls with the same arguments give equal graphs; ratio and spread leave the structure as it is.

**Communication-to-computation ratio.** On the reference machine (two devices of one type joined by a link of
`REFERENCE_BYTES_PER_S` without latency), ``ccr`` = Σ over the edges of the mean transfer time between two different
devices ÷ Σ over the ops of their time. Every edge counts, also where several edges carry one tensor or join colocated
ops. Transfer times are whole nanoseconds, at least one: the ratio is met but for this rounding. Other machines have
other ratios: `benchmarks.machines.ccr_on`.

**Spread.** Times and sizes are typical figures of an op's kind × exp(spread × N(0, 1)), a lognormal factor. In the
shapes of the literature all typical figures are equal and each edge has a tensor of its own; in the shapes of models
all readers of an op read one tensor. The mean time of a graph's ops is `MEAN_OP_S`, to the nanosecond.

Inception-V3 with its real shapes is the graph that ships.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import exp
from random import Random
from typing import Protocol

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op

REFERENCE_BYTES_PER_S = 25_000_000_000
MEAN_OP_S = 100e-6
FEWEST_OPS = 8

_NS_PER_S = 1_000_000_000
_LITERATURE_SPREAD = 0.6
_MODEL_SPREAD = 0.1


class Family(Protocol):
    """Makes a graph of exactly `op_count` ops, at least `FEWEST_OPS`; `spread` None is the family's typical one."""

    def __call__(self, op_count: int, seed: int = 0, ccr: float = 1.0, spread: float | None = None) -> OpGraph: ...


class Sketch:
    """A graph in the making: ops in topological order, with typical times and output sizes relative to each other."""

    def __init__(self, op_count: int) -> None:
        self.op_count = op_count
        self.kind: list[str] = []
        self.work: list[float] = []
        self.size: list[float] = []
        self.group: list[str | None] = []
        self.inputs: list[tuple[int, ...]] = []

    @property
    def left(self) -> int:
        """How many ops are still to be added."""
        return self.op_count - len(self.kind)

    def add(self, kind: str, *inputs: int, work: float = 1.0, size: float = 1.0, group: str | None = None) -> int:
        """Adds an op that reads the outputs of others; returns its position."""
        self.kind.append(kind)
        self.work.append(work)
        self.size.append(size)
        self.group.append(group)
        self.inputs.append(tuple(dict.fromkeys(inputs)))
        return len(self.kind) - 1

    def chain(self, kinds: Iterable[str], *inputs: int, work: float = 1.0, size: float = 1.0) -> int:
        """Adds ops one after another, of which the first reads the inputs; returns the last."""
        for kind in kinds:
            inputs = (self.add(kind, *inputs, work=work, size=size),)
        return inputs[0]


FAMILIES: dict[str, Family] = {}
"""Name → family, in the order of this file."""


def _family(spread: float, one_tensor: bool) -> Callable[[Callable[[Sketch, Random], None]], Family]:
    typical = spread

    def register(draw: Callable[[Sketch, Random], None]) -> Family:
        name = draw.__name__

        def make(op_count: int, seed: int = 0, ccr: float = 1.0, spread: float | None = None) -> OpGraph:
            if op_count < FEWEST_OPS:
                raise ValueError(f"{name} of {op_count} ops; ask for at least {FEWEST_OPS}")
            random = Random(f"{name} {op_count} {seed}")
            sketch = Sketch(op_count)
            draw(sketch, random)
            graph_name = f"{name}-{op_count}-ccr{ccr:g}-{seed}"
            return _costed(sketch, random, graph_name, ccr, typical if spread is None else spread, one_tensor)

        make.__doc__ = draw.__doc__
        FAMILIES[name] = make
        return make

    return register


_of_literature = _family(_LITERATURE_SPREAD, one_tensor=False)
_of_models = _family(_MODEL_SPREAD, one_tensor=True)


@_of_literature
def fork_join(sketch: Sketch, random: Random) -> None:
    """Stages of 2 to 9 independent ops; the op that joins a stage forks the next."""
    last = sketch.add("task")
    while sketch.left:
        width = min(random.randint(2, 8), sketch.left - 1)
        if sketch.left - width == 2:
            width += 1
        last = sketch.add("task", *[sketch.add("task", last) for _ in range(width)])


@_of_literature
def in_tree(sketch: Sketch, random: Random) -> None:
    """Every op but the last has one reader; no op reads more than three."""
    parents = _tree(sketch.op_count, random)
    inputs: list[list[int]] = [[] for _ in range(sketch.op_count)]
    for child, parent in enumerate(parents, start=1):
        inputs[sketch.op_count - 1 - parent].append(sketch.op_count - 1 - child)
    for sources in inputs:
        sketch.add("task", *sources)


@_of_literature
def out_tree(sketch: Sketch, random: Random) -> None:
    """Every op but the first reads one other; no op has more than three readers."""
    sketch.add("task")
    for parent in _tree(sketch.op_count, random):
        sketch.add("task", parent)


@_of_literature
def series_parallel(sketch: Sketch, random: Random) -> None:
    """Series and parallel parts nested at random; the ends of parallel parts meet in an op."""
    _series_parallel(sketch, random, sketch.add("task"), sketch.left)


@_of_literature
def stencil(sketch: Sketch, random: Random) -> None:
    """A square of rows in which each op reads the three ops above it."""
    width = max(2, round(sketch.op_count**0.5))
    above: list[int] = []
    while sketch.left:
        above = [sketch.add("task", *above[max(0, at - 1) : at + 2]) for at in range(min(width, sketch.left))]


@_of_models
def pipeline(sketch: Sketch, random: Random) -> None:
    """Micro-batches through 2 to 8 stages, forward and backward; each stage is colocated and may end in updates."""
    stages = min(8, max(2, round((sketch.op_count / 4) ** 0.5)))
    work = [random.uniform(0.7, 1.4) for _ in range(stages)]
    backwards: list[list[int]] = [[] for _ in range(stages)]
    for _ in range(sketch.op_count // (2 * stages)):
        forward: list[int] = []
        for stage in range(stages):
            forward.append(sketch.add("forward", *forward[-1:], work=work[stage], group=f"stage{stage}"))
        backward: list[int] = []
        for stage in reversed(range(stages)):
            read = (forward[stage], *backward[-1:])
            backward.append(sketch.add("backward", *read, work=2 * work[stage], group=f"stage{stage}"))
            backwards[stage].append(backward[-1])
    for number in range(sketch.left):
        stage = number % stages
        sketch.add("update", *backwards[stage], work=0.3, group=f"stage{stage}")


@_of_literature
def layered(sketch: Sketch, random: Random) -> None:
    """Random layers of about √n ops; an op reads one to three ops of the two layers before."""
    width = max(2, round(sketch.op_count**0.5))
    layers: list[list[int]] = [[]]
    while sketch.left:
        layer = []
        for _ in range(min(sketch.left, random.randint(width // 2, width + width // 2))):
            near, far = layers[-1], layers[-1] + (layers[-2] if len(layers) > 1 else [])
            more = random.sample(far, min(len(far), random.randint(0, 2)))
            layer.append(sketch.add("task", *([random.choice(near)] if near else []), *more))
        layers.append(layer)


@_of_models
def inception_like(sketch: Sketch, random: Random) -> None:
    """A stem, then blocks of two to four branches of convolutions that end in a concatenation."""
    last = sketch.chain(("conv", "pool"))
    while sketch.left:
        size = random.randint(8, 12)
        size = sketch.left if sketch.left < size + 4 else size
        branches = max(2, min(4, size // 3))
        ends = []
        for length in _split(size - 1, branches, random):
            end = last
            for _ in range(length):
                end = sketch.add("conv", end, work=random.uniform(0.5, 2.0), size=1 / branches)
            ends.append(end)
        last = sketch.add("concat", *ends, work=0.2)


@_of_models
def transformer_like(sketch: Sketch, random: Random) -> None:
    """Layers of attention, head by head, and a feed-forward part, each beside a residual edge."""
    last = sketch.add("embedding", work=0.3)
    heads = random.choice((2, 4, 8))
    while sketch.left:
        size = 7 + 2 * heads
        size = sketch.left if sketch.left < size + 9 else size
        read = last
        if size >= 9:
            queries, values = sketch.add("linear", last, work=2, size=2), sketch.add("linear", last)
            count = (size - 7) // 2
            scores = [sketch.add("scores", queries, size=1 / count) for _ in range(count)]
            contexts = [sketch.add("context", score, values, size=1 / count) for score in scores]
            read = sketch.add("add", sketch.add("linear", *contexts), last, work=0.1)
            size -= 4 + 2 * count
        up = sketch.add("linear", read, work=4, size=4)
        up = sketch.chain(["gelu"] * (size - 3), up, work=0.3, size=4)
        last = sketch.add("add", sketch.add("linear", up, work=4), read, work=0.1)


@_of_models
def two_tower(sketch: Sketch, random: Random) -> None:
    """Two towers of embedding look-ups and dense layers, one heavier than the other, that meet in an interaction."""
    total = sketch.op_count - 2
    first = round(total * random.uniform(0.4, 0.6))
    tops = []
    for size, work in ((first, 1.0), (total - first, random.uniform(1.0, 2.0))):
        look_ups = [sketch.add("embedding", work=0.3, size=0.3) for _ in range(max(1, size // 4))]
        joined = sketch.add("concat", *look_ups, work=0.2)
        tops.append(sketch.chain(["linear"] * (size - len(look_ups) - 1), joined, work=work))
    sketch.add("loss", sketch.add("interaction", *tops, work=0.5), work=0.1)


@_of_models
def mixture_of_experts(sketch: Sketch, random: Random) -> None:
    """Layers of attention, a router, 4 or 8 unevenly loaded experts of two ops, and their combination."""
    last = sketch.add("embedding", work=0.3)
    experts = random.choice((4, 8))
    while sketch.left:
        size = 3 + 2 * experts
        size = sketch.left if sketch.left < size + 7 else size
        if size % 2 == 0:
            last = sketch.add("norm", last, work=0.2)
        attention = sketch.add("attention", last, work=2)
        router = sketch.add("router", attention, work=0.1)
        count = (size - 3) // 2
        ends = []
        for _ in range(count):
            load = random.uniform(0.3, 2.0)
            up = sketch.add("expert", router, work=load, size=4 / count)
            ends.append(sketch.add("expert", up, work=load, size=1 / count))
        last = sketch.add("combine", *ends, attention, work=0.2)


@_of_models
def u_net(sketch: Sketch, random: Random) -> None:
    """Residual blocks down 1 to 4 levels and up again; what leaves a level downwards is read again upwards."""
    depth = min(4, max(1, (sketch.op_count - 1) // 12))
    share, extra = divmod(sketch.op_count - 1, 2 * depth + 1)
    sizes = [share + (number < extra) for number in range(2 * depth + 1)]
    time = sketch.add("time_embedding", work=0.1, size=0.05)
    last, skips = time, []
    for level in range(depth + 1):
        last = _residual(sketch, sizes[level], (last,), time, 0.5**level)
        skips.append(last)
    for level in reversed(range(depth)):
        last = _residual(sketch, sizes[2 * depth - level], (last, skips[level]), time, 0.5**level)


@_of_models
def recurrent(sketch: Sketch, random: Random) -> None:
    """An unrolled LSTM, layers × time steps: a cell reads the layer below and the step before."""
    layers = min(8, max(1, round((sketch.op_count / 16) ** 0.5)))
    steps = sketch.op_count // (4 * layers)
    hidden: list[list[int]] = [[] for _ in range(layers)]
    memory: list[list[int]] = [[] for _ in range(layers)]
    for _ in range(steps):
        below: list[int] = []
        for layer in range(layers):
            gates = [sketch.add("linear", *read, work=2, size=4) for read in (below, hidden[layer])]
            memory[layer] = [sketch.add("cell", *gates, *memory[layer], work=0.3)]
            hidden[layer] = below = [sketch.add("hidden", *memory[layer], work=0.2)]
    sketch.chain(["linear"] * sketch.left, *hidden[-1])


def _tree(count: int, random: Random) -> list[int]:
    """The parents of nodes 1, 2, …; a node has at most three children."""
    parents, places = [], [0, 0, 0]
    for node in range(1, count):
        chosen = random.randrange(len(places))
        places[chosen], places[-1] = places[-1], places[chosen]
        parents.append(places.pop())
        places += [node] * 3
    return parents


def _series_parallel(sketch: Sketch, random: Random, first: int, size: int) -> int:
    if size == 1:
        return sketch.add("task", first)
    if size == 2 or random.random() < 0.5:
        here = random.randint(1, size - 1)
        return _series_parallel(sketch, random, _series_parallel(sketch, random, first, here), size - here)
    parts = _split(size - 1, min(size - 1, random.randint(2, 3)), random)
    return sketch.add("task", *[_series_parallel(sketch, random, first, part) for part in parts])


def _residual(sketch: Sketch, size: int, inputs: tuple[int, ...], time: int, scale: float) -> int:
    """Adds residual blocks of 4 to 7 ops, or one chain if there is no room for any; returns the last op."""
    while size:
        here = 4 if size >= 8 else size
        size -= here
        if here < 4:
            return sketch.chain(["conv"] * here, *inputs, time, size=scale)
        short = sketch.add("conv", *inputs, work=0.3, size=scale)
        end = sketch.chain(["conv"] * (here - 2), *inputs, time, size=scale)
        inputs = (sketch.add("add", short, end, work=0.1, size=scale),)
    return inputs[0]


def _split(total: int, parts: int, random: Random) -> list[int]:
    """Positive numbers that sum to the total."""
    cuts = [0, *sorted(random.sample(range(1, total), parts - 1)), total]
    return [after - before for before, after in pairwise(cuts)]


def _costed(sketch: Sketch, random: Random, name: str, ccr: float, spread: float, one_tensor: bool) -> OpGraph:
    def varied(values: Sequence[float]) -> list[float]:
        return [value * exp(spread * random.gauss(0, 1)) for value in values]

    time_ns = _scaled(varied(sketch.work), MEAN_OP_S * _NS_PER_S * sketch.op_count)
    pairs = [(source, target) for target, sources in enumerate(sketch.inputs) for source in sources]
    of_op = varied(sketch.size)
    relative = [of_op[source] for source, _ in pairs]
    if not one_tensor:
        relative = varied([sketch.size[source] for source, _ in pairs])
    transfer_ns = _scaled(relative, ccr * sum(time_ns))
    names = [f"{kind}{position}" for position, kind in enumerate(sketch.kind)]
    edges = []
    output: list[dict[str, int]] = [{} for _ in names]
    for (source, target), ns in zip(pairs, transfer_ns, strict=True):
        size_bytes = ns * REFERENCE_BYTES_PER_S // _NS_PER_S
        tensor = names[source] if one_tensor else f"{names[source]}->{names[target]}"
        edges.append(Edge(names[source], names[target], size_bytes, tensor=tensor))
        output[source][tensor] = size_bytes
    ops = [
        Op(op, kind, time_s=ns / _NS_PER_S, output_bytes=sum(sizes.values()), colocate=group)
        for op, kind, ns, sizes, group in zip(names, sketch.kind, time_ns, output, sketch.group, strict=True)
    ]
    return OpGraph(tuple(ops), tuple(edges), name=name)


def _scaled(values: Sequence[float], total: float) -> list[int]:
    """Whole numbers of at least 1 in the proportions of the values that sum to about the total."""
    factor = total / sum(values)
    return [max(1, round(value * factor)) for value in values]
