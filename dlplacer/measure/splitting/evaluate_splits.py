"""The step time that a set of splits promises, by a list schedule under estimated times."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.measure.splitting.estimated_times import MeasuredTimes, with_estimates
from dlplacer.measure.splitting.split_axes import splits_of
from dlplacer.measure.splitting.traced_step import TracedStep
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.methods import run_rule

_LIST_S = 10.0
"""For a list schedule, half of it for a placement where it runs out of memory: many sets of splits are looked at."""


@dataclass(frozen=True)
class Prospect:
    """A set of splits and what it promises.

    Attributes
    ----------
    ops
        The ops that are split, as they were before.
    makespan_s
        Of a list schedule, not of the best plan; infinite if no schedule fits into memory.
    """

    ops: frozenset[str]
    splits: tuple[OpSplit, ...]
    makespan_s: float


@dataclass
class Evaluator:
    """Evaluates sets of ops to split, each once.

    Attributes
    ----------
    whole
        The graph without splits, timed.
    overhead
        What a part costs beyond its share, for parts that were never timed: 0.05 is five percent.
    """

    step: TracedStep
    whole: OpGraph
    tables: list[MeasuredTimes]
    topology: Topology
    options: Options
    parts: int
    overhead: float
    seen: dict[tuple[OpSplit, ...], float] = field(default_factory=dict)

    @cached_property
    def timed(self) -> OpGraph:
        """The graph without splits, with roofline times where it has none."""
        return with_times(self.whole, self.topology)

    @property
    def types(self) -> tuple[str, ...]:
        """Device types of the machine."""
        return tuple(dict.fromkeys(device.type for device in self.topology.devices))

    def __call__(self, ops: Collection[str]) -> Prospect:
        """What splitting these ops promises; ops that cannot be cut are left out."""
        splits = tuple(splits_of(self.step.nodes, ops, self.parts))
        if splits not in self.seen:
            self.seen[splits] = self.makespan_s(self.graph(splits))
        return Prospect(frozenset(split.op for split in splits), splits, self.seen[splits])

    def graph(self, splits: Collection[OpSplit]) -> OpGraph:
        """The graph with splits, timed by what is known and by estimates."""
        if not splits:
            return self.whole
        return with_estimates(self.step.captured(list(splits)).graph, self.whole, self.tables, self.overhead)

    def makespan_s(self, graph: OpGraph) -> float:
        """Of the best list schedule."""
        try:
            problem = build_problem(with_times(graph, self.topology), self.topology, self.options)
            found = run_rule(problem, build_instance(problem), "list", Budget(time.monotonic() + _LIST_S))
        except InfeasibleError:
            found = None
        return float("inf") if found is None else found.makespan * float(problem.tick_s)
