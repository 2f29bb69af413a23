"""Model parallelism for the planner: the speedup of one worker's step on M devices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

from dlplacer.core.errors import InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.planning.hybrid.worker_layout import signature
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.place import place


@dataclass(frozen=True)
class WorkerSplit:
    """The split of a worker's step over its devices.

    `speedup`: SU^M, the step time on one device ÷ the step time on M devices. `shares`: The share of the gradients that
    each device holds; empty for equal shares. `used`: The number of devices that run ops; 0 means all.
    """

    speedup: float
    method: str = "given"
    micro_batches: int = 1
    shares: tuple[float, ...] = ()
    used: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.speedup < float("inf"):
            raise InputError(f"model-parallel speedup is {self.speedup}; it must be positive and finite")


ModelParallel = Callable[[int, Topology | None], float | WorkerSplit | Iterable[WorkerSplit] | None]
"""(M, the machine of one worker) → the speedup or possible splits; None or no split if M devices cannot run the step.

The machine is None if the planner has no topology.
"""

ALONE = WorkerSplit(1.0, "one device")


def splits_of(answer: float | WorkerSplit | Iterable[WorkerSplit] | None) -> tuple[WorkerSplit, ...]:
    """The splits in the result of a `ModelParallel`."""
    if answer is None:
        return ()
    if isinstance(answer, WorkerSplit):
        return (answer,)
    if isinstance(answer, (int, float)):
        return (WorkerSplit(float(answer)),)
    return tuple(answer)


@dataclass(frozen=True)
class SpeedupTable:
    """Known speedups: M → SU^M; degrees that are not listed cannot be used."""

    speedups: Mapping[int, float]

    def __post_init__(self) -> None:
        for degree, speedup in self.speedups.items():
            if degree < 2 or not speedup > 0:
                raise InputError(f"speedup {speedup} of {degree} devices: at least 2 devices and a positive speedup")

    def __call__(self, degree: int, _topology: Topology | None) -> WorkerSplit | None:
        """The listed speedup of a degree; None if there is none."""
        return WorkerSplit(self.speedups[degree]) if degree in self.speedups else None


class SplitPerMachine(ABC):
    """A source of splits that plans once for all machines that differ only in names.

    `single_s`: Step time on one device, the basis of speedups.
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
        """The split on a new machine; None if there is none."""


class Placed(SplitPerMachine):
    """Speedups from the solver, which places the graph on the machine of each worker.

    A machine has no split if its memory is too small for the graph or no plan is found in time.

    `stop`: Once it is set, the current solve ends, and KeyboardInterrupt is raised before another solve.
    `solving`: Arguments of `dlplacer.planning.place.place`. The defaults, 20 s and a gap of 1 %, suit many solves
    in series: one percent of a step changes little here. One device always uses the method ``single``.
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
        # Ctrl-C ends a solve with the best plan so far, or none; it also cancels the following solves.
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt
        return split


def shares_of(graph: OpGraph, placed: Iterable[tuple[str, str]], topology: Topology) -> tuple[float, ...]:
    """The share of the gradients on each device, from (op, its device); ops without gradients may be left out."""
    held = dict.fromkeys(topology.device_index, 0)
    for op, device in placed:
        held[device] += graph.op(op).gradient_bytes
    total = sum(held.values())
    return tuple(size / total for size in held.values()) if total else ()


class PipelinedWorkers(SplitPerMachine):
    """The best pipeline over all devices of a worker, with its number of micro-batches.

    There is no split if the graph exceeds a machine's memory, has fewer blocks than the machine has devices, or has
    pins or colocated sets.
    """

    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        if self.graph.constraints:
            return None
        try:
            plan = plan_pipeline(self.graph, topology, stages=degree)
        except InfeasibleError:
            return None
        placed = ((name, stage.device) for stage in plan.stages for name in stage.ops)
        shares = shares_of(self.graph, placed, topology)
        return WorkerSplit(self.single_s / plan.step_s, "pipeline", plan.micro_batches, shares)
