"""Search for the ops whose splitting shortens the step most, by list schedules and by profiles of what they find."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.frontend.torch.splitting.rules import patterns_of
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.measure.splitting.estimated_times import (
    MeasuredTimes,
    measured_overhead,
    on_time_base_of,
    with_estimates,
)
from dlplacer.measure.splitting.traced_step import TracedStep, neighbours, splits_of
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.profile.op_times import Times, with_measured_times
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.methods import run_rule

_LIST_S = 10.0
"""For a list schedule, half of it for a placement where it runs out of memory: many sets of splits are looked at."""
# How many of the longest ops are tried at once: 4, 6, 9, … In a simulation of Inception-V3 with 5 % overhead per part,
# 9 splits raise the speedup from 1.75 to 1.88, 36 to 1.92, and 135 lower it again.
_FIRST, _GROWTH = 4, 1.5
# Far below the error of a prediction: smaller gains would be chosen at random.
_LEAST_GAIN = 0.001
# Bounds the search; each op below this share of the step could shorten it by less than this.
_SHORTEST = 0.0005
_WORTH_PROFILING, _ROUNDS = 0.002, 2


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


@dataclass(frozen=True)
class SplitChoice:
    """The splits that were chosen, and what list schedules promise without and with them.

    Attributes
    ----------
    graph
        With the splits, timed by what is known and by estimates.
    evaluated
        How many sets were tried.
    """

    splits: tuple[OpSplit, ...]
    graph: OpGraph
    whole_s: float
    split_s: float
    evaluated: int


def choose_splits(
    evaluate: Evaluator,
    time_limit_s: float = 30.0,
    stop: Event | None = None,
    start: Sequence[str] = (),
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
) -> SplitChoice:
    """The best set of splits found within a time, or none if no set shortens the step by a tenth of a percent.

    The longest ops are split first, more and more of them, over all phases and over the forward pass alone, whose
    critical path weight gradients cannot fill. From the best of these sets on, groups of ops are added and taken away
    as long as that helps.

    Parameters
    ----------
    start
        Ops of a further set to begin with.
    """
    if not time_limit_s > 0:
        raise InputError(f"the time limit for choosing splits is {time_limit_s:g} s; it must be positive")
    search = _Search(evaluate, time.monotonic() + time_limit_s, stop or Event(), on_progress)
    return search.run(start)


class _Search:
    def __init__(
        self, evaluate: Evaluator, deadline: float, stop: Event, on_progress: Callable[[Prospect], None]
    ) -> None:
        self.evaluate, self.deadline, self.stop, self.on_progress = evaluate, deadline, stop, on_progress
        self.whole = self.best = evaluate(())
        self.longest = self._longest()
        self.around = neighbours(evaluate.step.nodes)

    def run(self, start: Sequence[str]) -> SplitChoice:
        for ops in (frozenset(start), *self._prefixes()):
            if self._over():
                break
            self._try(ops)
        size = max(1, len(self.best.ops) // 4)
        while size and not self._over():
            self._try(self.best.ops | self._between(self.best.ops))
            while self._improves(size) and not self._over():
                pass
            size //= 2
        if self.best.makespan_s > (1 - _LEAST_GAIN) * self.whole.makespan_s:
            self.best = self.whole
        evaluate, best = self.evaluate, self.best
        graph = evaluate.graph(best.splits)
        return SplitChoice(best.splits, graph, self.whole.makespan_s, best.makespan_s, len(evaluate.seen))

    def _improves(self, size: int) -> bool:
        """One pass over groups of neighbours: take each out, and put each in; whether anything helped."""
        before = self.best.makespan_s
        inside = [op for op in self.longest if op in self.best.ops]
        outside = [op for op in self.longest if op not in self.best.ops][: max(len(inside), 4 * size)]
        for group in _groups(outside, size):
            self._try(self.best.ops.union(group))
        for group in _groups(inside[::-1], size):
            self._try(self.best.ops.difference(group))
        return self.best.makespan_s < before

    def _try(self, ops: frozenset[str]) -> None:
        if self._over():
            return
        found = self.evaluate(ops)
        if (found.makespan_s, len(found.ops)) < (self.best.makespan_s, len(self.best.ops)):
            self.best = found
            self.on_progress(found)

    def _prefixes(self) -> Iterator[frozenset[str]]:
        graph = self.evaluate.whole
        forward = [op for op in self.longest if graph.op(op).phase == "forward"]
        size = float(_FIRST)
        while size < _GROWTH * len(self.longest):
            for ops in (self.longest, forward):
                if size < _GROWTH * len(ops):
                    yield frozenset(ops[: int(size)])
            size *= _GROWTH

    def _between(self, ops: frozenset[str]) -> frozenset[str]:
        """Ops of any length that stand between two of a set: split too, they save a join."""
        inside = [name for name in self.around if name not in ops and ops & self.around[name][0]]
        return frozenset(name for name in inside if ops & self.around[name][1])

    def _longest(self) -> list[str]:
        """Ops that can be cut, longest first, down to a small share of the step."""
        evaluate = self.evaluate
        times = {op.id: _time_s(evaluate, op.id) for op in evaluate.whole.ops}
        least = _SHORTEST * self.whole.makespan_s
        return sorted(
            (name for name, node in evaluate.step.nodes.items() if times.get(name, 0.0) >= least and patterns_of(node)),
            key=lambda name: -times[name],
        )

    def _over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self.deadline


def _time_s(evaluate: Evaluator, op: str) -> float:
    return max((evaluate.timed.op(op).time_on(kind) or 0.0 for kind in evaluate.types), default=0.0)


def _groups(ops: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for begin in range(0, len(ops), size):
        yield ops[begin : begin + size]


def measured_choice(
    evaluate: Evaluator,
    profile: Callable[[Captured], Times],
    time_limit_s: float = 30.0,
    stop: Event | None = None,
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
) -> SplitChoice:
    """The splits of the shortest step among those that were profiled, or none; the graph has measured times.

    Times are on the base of the whole graph (`on_time_base_of`). After each profile the next round chooses with the
    times of the parts and joins that were measured; it ends when that promises nothing more.

    Parameters
    ----------
    profile
        Times the ops of a capture on the devices.
    time_limit_s
        For choosing, all rounds together; profiling comes on top.
    """
    whole = evaluate.whole
    whole_s = evaluate(()).makespan_s
    best = SplitChoice((), whole, whole_s, whole_s, 0)
    begin: tuple[str, ...] = ()
    tried = 0
    for _ in range(_ROUNDS):
        choice = choose_splits(evaluate, time_limit_s / _ROUNDS, stop, begin, on_progress)
        tried += choice.evaluated
        if choice.split_s > (1 - _WORTH_PROFILING) * best.split_s or (stop is not None and stop.is_set()):
            break
        captured = evaluate.step.captured(choice.splits)
        graph = on_time_base_of(whole, with_measured_times(captured.graph, profile(captured)))
        found_s = evaluate.makespan_s(graph)
        if found_s < best.split_s:
            best = replace(choice, graph=graph, split_s=found_s)
        for table in evaluate.tables:
            table.learn(graph)
        evaluate.overhead = max(measured_overhead(whole, graph, table.device_type) for table in evaluate.tables)
        evaluate.seen.clear()
        begin = tuple(split.op for split in best.splits)
    return replace(best, evaluated=tried)
