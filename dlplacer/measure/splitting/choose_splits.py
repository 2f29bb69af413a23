"""Search for the ops whose splitting shortens the step most, by list schedules and by profiles of what they find."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    """A set of splits of these ops, and the makespan of a list schedule with it: infinite if none fits into memory."""

    ops: frozenset[str]
    splits: tuple[OpSplit, ...]
    makespan_s: float


@dataclass
class Evaluator:
    """Evaluates sets of ops to split, each once.

    `whole` is the graph without splits, timed. A part that was never timed costs by `overhead` more than its share:
    0.05 is five percent.
    """

    step: TracedStep
    whole: OpGraph
    tables: list[MeasuredTimes]
    topology: Topology
    options: Options
    parts: int
    overhead: float
    seen: dict[tuple[OpSplit, ...], float] = field(default_factory=dict)

    def __call__(self, ops: Collection[str]) -> Prospect:
        """The prospect of splitting these ops; ops that cannot be cut are left out."""
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

    def longest(self, least_s: float) -> list[str]:
        """Ops that can be cut and take this long on some device, longest first; the roofline times unmeasured ones."""
        timed = with_times(self.whole, self.topology)
        types = {device.type for device in self.topology.devices}
        times = {op.id: max((op.time_on(kind) or 0.0 for kind in types), default=0.0) for op in timed.ops}
        cut = (name for name, node in self.step.nodes.items() if times.get(name, 0.0) >= least_s and patterns_of(node))
        return sorted(cut, key=lambda name: -times[name])


@dataclass(frozen=True)
class SplitChoice:
    """The chosen splits, the graph with them, and the makespans of list schedules without and with them.

    `evaluated`: how many sets were tried.
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
    return _Search(evaluate, time.monotonic() + time_limit_s, stop or Event(), on_progress).run(start)


class _Search:
    def __init__(
        self, evaluate: Evaluator, deadline: float, stop: Event, on_progress: Callable[[Prospect], None]
    ) -> None:
        self.evaluate, self.deadline, self.stop, self.on_progress = evaluate, deadline, stop, on_progress
        self.whole = self.best = evaluate(())
        self.longest = evaluate.longest(_SHORTEST * self.whole.makespan_s)
        self.around = neighbours(evaluate.step.nodes)

    def run(self, start: Sequence[str]) -> SplitChoice:
        for ops in (frozenset(start), *self._prefixes()):
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
        for begin in range(0, len(outside), size):
            self._try(self.best.ops.union(outside[begin : begin + size]))
        for begin in range(0, len(inside), size):
            self._try(self.best.ops.difference(inside[::-1][begin : begin + size]))
        return self.best.makespan_s < before

    def _try(self, ops: frozenset[str]) -> None:
        if self._over():
            return
        found = self.evaluate(ops)
        if (found.makespan_s, len(found.ops)) < (self.best.makespan_s, len(self.best.ops)):
            self.best = found
            self.on_progress(found)

    def _prefixes(self) -> Iterator[frozenset[str]]:
        forward = [op for op in self.longest if self.evaluate.whole.op(op).phase == "forward"]
        size = float(_FIRST)
        while size < _GROWTH * len(self.longest):
            yield from (frozenset(ops[: int(size)]) for ops in (self.longest, forward) if size < _GROWTH * len(ops))
            size *= _GROWTH

    def _between(self, ops: frozenset[str]) -> frozenset[str]:
        """Ops of any length that stand between two of a set: split too, they save a join."""
        around = ((name, *both) for name, both in self.around.items() if name not in ops)
        return frozenset(name for name, read, readers in around if ops & read and ops & readers)

    def _over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self.deadline


def measured_choice(
    evaluate: Evaluator,
    profile: Callable[[Captured], Times],
    time_limit_s: float = 30.0,
    stop: Event | None = None,
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
) -> SplitChoice:
    """The splits of the shortest step among those that `profile` has timed, or none; the graph has measured times.

    Times are on the base of the whole graph (`on_time_base_of`). After each profile the next round chooses with the
    times of the parts and joins that were measured; it ends when that promises nothing more. The limit is for choosing,
    all rounds together; profiling comes on top.
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
