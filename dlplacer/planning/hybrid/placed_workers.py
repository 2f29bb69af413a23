"""Model parallelism as the planner sees it: how much faster M devices do one worker's step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Event

from dlplacer.core.errors import InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.planning.hybrid.worker_layout import signature
from dlplacer.planning.place import place


@dataclass(frozen=True)
class WorkerSplit:
    """One way to share a worker's step among its devices.

    Attributes
    ----------
    speedup
        SU^M: the step on one device ÷ on these.
    method
        Where it comes from: ``placement``, ``pipeline``, ``given``.
    micro_batches
        Parts into which the mini-batch is cut.
    shares
        What part of the gradients each device holds; empty for equal parts.
    """

    speedup: float
    method: str = "given"
    micro_batches: int = 1
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.speedup < float("inf"):
            raise InputError(f"model-parallel speedup is {self.speedup}; it must be positive and finite")
        if self.micro_batches < 1:
            raise InputError(f"{self.micro_batches} micro-batches; there must be at least 1")


ModelParallel = Callable[[int, Topology | None], float | WorkerSplit | Iterable[WorkerSplit] | None]
"""(M, the machine of one worker) → its speedup or the ways to split; None or nothing where M devices cannot do it.

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


class Placed:
    """Speedups from the solver: the graph is placed on the machine that a worker really gets.

    Machines that differ in names alone are solved once. A machine whose memory the graph exceeds, or for which no plan
    was found in time, has no split.

    Parameters
    ----------
    single_s
        Step time on one device, to which speedups refer.
    method, time_limit_s, gap, seed, workers
        As for `dlplacer.planning.place.place`, for each solve; one device needs no method.
    stop
        Once it is set, the solve at hand ends, and KeyboardInterrupt is raised instead of starting others.
    """

    def __init__(
        self,
        graph: OpGraph,
        single_s: float,
        options: Options | None = None,
        *,
        method: str = "ilp",
        time_limit_s: float = 20.0,
        gap: float = 0.01,
        seed: int = 0,
        workers: int | None = None,
        stop: Event | None = None,
    ) -> None:
        if not single_s > 0:
            raise InputError(f"step time on one device is {single_s} s; it must be positive")
        self.graph, self.single_s, self.options = graph, single_s, options
        self.method, self.time_limit_s, self.gap = method, time_limit_s, gap
        self.seed, self.workers, self.stop = seed, workers, stop
        self.solved: dict[tuple[object, ...], WorkerSplit | None] = {}

    def __call__(self, degree: int, topology: Topology | None) -> WorkerSplit | None:
        """The placement on a worker's machine as a split, or None."""
        if topology is None:
            raise InputError("a placement needs the machine of a worker; give the planner a topology")
        key = signature(topology)
        if key not in self.solved:
            self.solved[key] = self._solve(topology, "single" if degree == 1 else self.method)
        return self.solved[key]

    def _solve(self, topology: Topology, method: str) -> WorkerSplit | None:
        split = self._placed(topology, method)
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt
        return split

    def _placed(self, topology: Topology, method: str) -> WorkerSplit | None:
        try:
            result = place(
                self.graph,
                topology,
                self.options,
                method=method,
                time_limit_s=self.time_limit_s,
                gap=self.gap,
                seed=self.seed,
                workers=self.workers,
                stop=self.stop,
            )
        except (InfeasibleError, NoPlanError):
            return None
        return split_of(result.plan, self.single_s)


def split_of(plan: Plan, single_s: float) -> WorkerSplit:
    """A plan as a split: its speedup over the step on one device, and what part of the gradients each device holds."""
    return WorkerSplit(single_s / plan.makespan_s, "placement", 1, gradient_shares(plan))


def gradient_shares(plan: Plan) -> tuple[float, ...]:
    """What part of the gradients each device holds, in the order of the topology; empty where there are none."""
    device_of = {entry.op: entry.device for entry in plan.ops}
    held = dict.fromkeys(plan.topology.device_index, 0)
    for op in plan.graph.ops:
        held[device_of[op.id]] += op.gradient_bytes
    total = sum(held.values())
    return tuple(size / total for size in held.values()) if total else ()


class Several:
    """The splits of several sources together: placements and pipelines."""

    def __init__(self, *sources: ModelParallel) -> None:
        self.sources = sources

    def __call__(self, degree: int, topology: Topology | None) -> tuple[WorkerSplit, ...]:
        """All ways of all sources."""
        return tuple(split for source in self.sources for split in splits_of(source(degree, topology)))
