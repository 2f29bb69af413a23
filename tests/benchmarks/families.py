"""Graph families for benchmarks: the shapes of the scheduling literature and of models, of any size, seeded.

Every family is a function of the number of ops, a seed, the communication-to-computation ratio and the spread. Two calls
with the same arguments give equal graphs.

**Communication-to-computation ratio.** On the reference machine (two devices of type ``fast`` and one link of
`REFERENCE_BYTES_PER_S` without latency) ``ccr`` = Σ over the edges of their mean transfer time between two different
devices ÷ Σ over the ops of their time, to within the rounding of times to whole nanoseconds and of transfer times to
whole nanoseconds of at least one. Every edge counts, also where several edges carry one tensor. Other machines have
another ratio: `benchmarks.machines.ccr_on`.

**Spread.** Times and sizes are typical figures of the op's kind × a lognormal factor exp(spread × N(0, 1)). The typical
figures of the literature's shapes are all equal; there each edge has a tensor of its own. In the shapes of models all
readers of an op read one tensor. The times of a graph have the mean `MEAN_OP_S`.

The unfused Inception-V3 with real shapes and its training step is `solvers.synthetic.inception_like`.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from dlplacer.graph import Edge, Op, OpGraph

REFERENCE_BYTES_PER_S = 25_000_000_000
MEAN_OP_S = 100e-6
FEWEST_OPS = 8

_BYTES_PER_NS = REFERENCE_BYTES_PER_S // 10**9
_LITERATURE_SPREAD = 0.6
_MODEL_SPREAD = 0.1


class Family(Protocol):
    """Makes the family's graph of exactly `op_count` ops, at least `FEWEST_OPS`; `spread` None is the typical one."""

    def __call__(self, op_count: int, seed: int = 0, ccr: float = 1.0, spread: float | None = None) -> OpGraph: ...


class Sketch:
    """A graph in the making: ops in topological order, with typical times and output sizes relative to each other."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.kind: list[str] = []
        self.work: list[float] = []
        self.size: list[float] = []
        self.inputs: list[tuple[int, ...]] = []
        self.group: list[str | None] = []

    @property
    def left(self) -> int:
        """Ops still to be added."""
        return self.room - len(self.kind)

    def op(self, kind: str, *inputs: int, work: float = 1.0, size: float = 1.0, group: str | None = None) -> int:
        """Adds an op that reads the outputs of others; returns its position."""
        self.kind.append(kind)
        self.work.append(work)
        self.size.append(size)
        self.inputs.append(tuple(dict.fromkeys(inputs)))
        self.group.append(group)
        return len(self.kind) - 1

    def chain(self, kinds: Sequence[str], *inputs: int, work: float = 1.0, size: float = 1.0) -> int:
        """Adds ops one after another, the first of which reads `inputs`; returns the last."""
        for kind in kinds:
            inputs = (self.op(kind, *inputs, work=work, size=size),)
        return inputs[0]


FAMILIES: dict[str, Family] = {}
"""Name → generator, in the order of this file."""


def _family(
    spread: float, one_tensor: bool
) -> Callable[[Callable[[Sketch, Random], None]], Callable[[int, int, float, float | None], OpGraph]]:
    typical = spread

    def register(draw: Callable[[Sketch, Random], None]) -> Family:
        name = draw.__name__

        def make(op_count: int, seed: int = 0, ccr: float = 1.0, spread: float | None = None) -> OpGraph:
            if op_count < FEWEST_OPS:
                raise ValueError(f"{name} with {op_count} ops; ask for at least {FEWEST_OPS}")
            random = Random(f"{name} {op_count} {seed}")
            sketch = Sketch(op_count)
            draw(sketch, random)
            return _costed(sketch, random, f"{name}-{op_count}-{seed}", ccr, (typical, one_tensor), spread)

        make.__doc__ = draw.__doc__
        FAMILIES[name] = make
        return make

    return register
