"""Search for the ops whose splitting shortens the step most, by list schedules and by profiles of what they find."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import linear_regression, mean
from threading import Event
from typing import Any

from torch import fx

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.options import Options
from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.files.structure_hash import first_difference, structure_sha256
from dlplacer.frontend.torch.capture import Captured, default_rewrites, rewritten, trace_job
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.nodes import behind_views, is_folded
from dlplacer.frontend.torch.splitting.rewrite import OpSplit
from dlplacer.frontend.torch.splitting.rules import Pattern, patterns_of
from dlplacer.frontend.torch.tracing.joint import Traced
from dlplacer.frontend.torch.tracing.passes import apply_passes
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.place import place
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.profile.op_times import Times, measured_types, profile_ops, with_measured_times
from dlplacer.solvers.methods import schedules_by


@dataclass(frozen=True)
class TracedStep:
    """A job's step as traced, and the rewrites that come before any split; each works on a copy of its graph."""

    job: Job
    traced: Traced
    rewrites: tuple[str, ...]

    @classmethod
    def of(cls, job: Job, rewrites: Sequence[str] | None = None) -> "TracedStep":
        """Trace a job; None means the rewrites that a capture applies by default."""
        wanted = tuple(default_rewrites() if rewrites is None else rewrites)
        return cls(job, trace_job(job, wanted), wanted)

    def captured(self, splits: Sequence[OpSplit] = ()) -> Captured:
        """The graph and executable with these splits."""
        return rewritten(self.job, self._copy(), [*self.rewrites, *map(str, splits)])

    @cached_property
    def nodes(self) -> Mapping[str, fx.Node]:
        """The calls that splits may name, in order."""
        traced = self._copy()
        apply_passes(traced.module.graph, self.rewrites)
        return {node.name: node for node in traced.module.graph.nodes if node.op == "call_function"}

    def _copy(self) -> Traced:
        module, graph = self.traced.module, fx.Graph()
        copied = graph.graph_copy(module.graph, {}, return_output_node=True)
        assert isinstance(copied, tuple)
        graph.output(copied[0]).meta = dict(module.graph.output_node().meta)
        return replace(self.traced, module=fx.GraphModule(module, graph))


def splits_of(nodes: Mapping[str, fx.Node], ops: Collection[str], parts: int) -> list[OpSplit]:
    """A split for each op of a set that can be cut into that many parts, in graph order.

    An op is cut along the axis of the first value that it reads in parts: a pool that follows a norm cut along the
    channels is cut along them too. Where it reads none, or cannot follow, it is cut along the first axis that
    its rule names, which is the cheapest.
    """
    cut_along: dict[str, int] = {}
    found = []
    for name, node in nodes.items():
        if name not in ops:
            continue
        patterns = {axis: pattern for axis, pattern in patterns_of(node).items() if pattern.extent(node) >= parts}
        if not patterns:
            continue
        axis = next(iter((*_following(node, patterns, cut_along), *patterns)))
        found.append(OpSplit(name, axis, parts))
        first = patterns[axis].outputs
        cut_along[name] = next((dim for dim in first if dim is not None), 0)
    return found


def _following(node: fx.Node, patterns: Mapping[str, Pattern], cut_along: Mapping[str, int]) -> Iterable[str]:
    """Axes along which the first argument can be read in its existing parts."""
    first = node.args[0] if node.args else None
    read = first[0] if isinstance(first, (list, tuple)) and first else first
    dim = cut_along.get(behind_views(read).name) if isinstance(read, fx.Node) else None
    return [axis for axis, pattern in patterns.items() if dim is not None and pattern.inputs.get(0) == dim]


def neighbours(nodes: Mapping[str, fx.Node]) -> dict[str, tuple[set[str], set[str]]]:
    """Op that can be cut → the ops that it reads and those that read it, tuple unpacking and views left out."""
    around: dict[str, tuple[set[str], set[str]]] = {name: (set(), set()) for name in nodes}
    for name, node in nodes.items():
        if not is_folded(node):
            for source in {behind_views(read).name for read in node.all_input_nodes} & around.keys():
                around[name][0].add(source)
                around[source][1].add(name)
    return {name: both for name, both in around.items() if patterns_of(nodes[name])}


_JOINS = ("aten.cat", "aten.add")
# Between a free split and the 5 % at which, in simulation, splitting 36 ops of Inception-V3 still pays.
_OVERHEAD = 0.03


def with_estimated_times(whole: OpGraph, graph: OpGraph, overhead: float = _OVERHEAD) -> OpGraph:
    """The graph with splits of a whole one that has times: each op takes as long as there.

    A part takes its share of the whole op and `overhead` more: 0.05 is five percent. What cuts and joins takes the
    line through the whole graph's joins. Types of devices for which some op has no time are left to the roofline.
    """
    kinds = {kind for op in whole.ops for kind in _given(op)}
    kinds = {kind for kind in kinds if all(op.time_on(kind) is not None for op in whole.ops)}
    joins = [op for op in whole.ops if op.kind in _JOINS and op.bytes_accessed]
    copy_line = {kind: _line([(op.bytes_accessed, op.time_on(kind) or 0.0) for op in joins]) for kind in kinds}

    def time_s(op: Op, kind: str) -> float | None:
        if not op.origin:
            return whole.op(op.id).time_on(kind)
        origin = whole.op(op.origin[0])
        if op.kind != origin.kind:
            return copy_line[kind].time_s(op.bytes_accessed)
        return (origin.time_on(kind) or 0.0) * _share(op, origin) * (1 + overhead)

    def timed(op: Op) -> Op:
        known = {kind: found for kind in kinds if (found := time_s(op, kind)) is not None}
        return replace(op, time_s={**_given(op), **known}) if known else op

    return replace(graph, ops=tuple(map(timed, graph.ops)))


def _line(points: Sequence[tuple[float, float]]) -> AlphaBeta:
    """The line through (bytes, seconds); flat where all are of one size."""
    sizes, times = [size for size, _ in points], [time_s for _, time_s in points]
    if len(set(sizes)) < 2:
        return AlphaBeta(mean(times) if times else 0.0, 0.0)
    line = linear_regression(sizes, times)
    return AlphaBeta(max(0.0, line.intercept), max(0.0, line.slope))


def _share(part: Op, whole: Op) -> float:
    """The share of an op's work that one part of it does: by FLOPs, else by bytes."""
    if whole.flops:
        return part.flops / whole.flops
    return part.bytes_accessed / whole.bytes_accessed if whole.bytes_accessed else 1.0


def _given(op: Op) -> dict[str, float]:
    return dict(op.time_s) if isinstance(op.time_s, Mapping) else {}


# How many of the longest ops are tried at once: 4, 6, 9, … In a simulation of Inception-V3 with 5 % overhead per part,
# 9 splits raise the speedup from 1.75 to 1.88, 36 to 1.92, and 135 lower it again.
_FIRST, _GROWTH = 4, 1.5
# Far below the error of a prediction: smaller gains would be chosen at random.
_LEAST_GAIN = 0.001
# Bounds the search; each op below this share of the step could shorten it by less than this.
_SHORTEST = 0.0005


@dataclass(frozen=True)
class Prospect:
    """A set of splits of these ops, and the makespan of a list schedule with it: infinite if none fits into memory."""

    ops: frozenset[str]
    splits: tuple[OpSplit, ...]
    makespan_s: float


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


@dataclass
class SplitSearch:
    """Searches for the ops to split, of a step whose graph without splits has times, into so many parts each.

    By default there are as many parts as devices. `on_progress` hears of every set that is the best so far.
    """

    step: TracedStep
    whole: OpGraph
    topology: Topology
    options: Options = field(default_factory=Options)
    parts: int | None = None
    overhead: float = _OVERHEAD
    stop: Event = field(default_factory=Event)
    on_progress: Callable[[Prospect], None] = lambda prospect: None

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts < 2:
            raise InputError(f"ops cannot be split into {self.parts} parts; give at least 2")
        self._seen: dict[tuple[OpSplit, ...], float] = {}

    def choose(self, time_limit_s: float) -> SplitChoice:
        """The best set of splits found within a time, or none if no set shortens the step by a tenth of a percent.

        The longest ops are split first, more and more of them, over all phases and over the forward pass alone, whose
        critical path weight gradients cannot fill. From the best of these sets on, groups of ops are added
        and taken away as long as that helps.
        """
        if not time_limit_s > 0:
            raise InputError(f"the time limit for choosing splits is {time_limit_s:g} s; it must be positive")
        self._deadline = time.monotonic() + time_limit_s
        whole = self._best = self._prospect(())
        # On a single device there is nothing to gain.
        longest = self._longest(_SHORTEST * whole.makespan_s) if len(self.topology.devices) > 1 else []
        for ops in self._prefixes(longest):
            self._try(ops)
        around = neighbours(self.step.nodes)
        size = max(1, len(self._best.ops) // 4)
        while size and longest and not self._is_over():
            chosen = self._best.ops
            # Ops of any length that stand between two of the set: split too, they save a join.
            between = (op for op, (read, readers) in around.items() if chosen & read and chosen & readers)
            self._try(chosen.union(between))
            while self._improves(longest, size) and not self._is_over():
                pass
            size //= 2
        best = self._best if self._best.makespan_s <= (1 - _LEAST_GAIN) * whole.makespan_s else whole
        return SplitChoice(best.splits, self._graph(best.splits), whole.makespan_s, best.makespan_s, len(self._seen))

    def choose_measured(self, profile: Callable[[Captured], Times], time_limit_s: float) -> SplitChoice:
        """The choice by estimates, if it shortens the step by the times that `profile` measures of its parts, or none.

        Ops that the whole graph has too take as long as there: a machine that drifts meanwhile favours neither. The
        limit is for choosing; profiling comes on top.
        """
        choice = self.choose(time_limit_s)
        if not choice.splits or self.stop.is_set():
            return choice
        captured = self.step.captured(choice.splits)
        measured = with_measured_times(captured.graph, profile(captured))
        ops = tuple(
            replace(op, time_s=self.whole.op(op.id).time_s) if op.id in self.whole.index else op for op in measured.ops
        )
        graph = replace(measured, ops=ops)
        split_s = self._makespan_s(graph)
        if split_s >= choice.whole_s:
            return replace(choice, splits=(), graph=self.whole, split_s=choice.whole_s)
        return replace(choice, graph=graph, split_s=split_s)

    def _prospect(self, ops: Collection[str]) -> Prospect:
        """The prospect of splitting these ops; ops that cannot be cut are left out."""
        parts = max(len(self.topology.devices), 2) if self.parts is None else self.parts
        splits = tuple(splits_of(self.step.nodes, ops, parts))
        if splits not in self._seen:
            self._seen[splits] = self._makespan_s(self._graph(splits))
        return Prospect(frozenset(split.op for split in splits), splits, self._seen[splits])

    def _graph(self, splits: Sequence[OpSplit]) -> OpGraph:
        return (
            with_estimated_times(self.whole, self.step.captured(splits).graph, self.overhead) if splits else self.whole
        )

    def _makespan_s(self, graph: OpGraph) -> float:
        """Of the best list schedule."""
        try:
            problem = build_problem(with_times(graph, self.topology), self.topology, self.options)
            found = next(filter(None, schedules_by("list", problem)), None)
        except InfeasibleError:
            found = None
        return float("inf") if found is None else found.makespan * float(problem.tick_s)

    def _longest(self, least_s: float) -> list[str]:
        """Ops that can be cut and take this long on some device, longest first; the roofline times unmeasured ones."""
        timed = with_times(self.whole, self.topology)
        kinds = {device.type for device in self.topology.devices}
        times = {op.id: max((op.time_on(kind) or 0.0 for kind in kinds), default=0.0) for op in timed.ops}
        cut = (name for name, node in self.step.nodes.items() if times.get(name, 0.0) >= least_s and patterns_of(node))
        return sorted(cut, key=lambda name: -times[name])

    def _prefixes(self, longest: Sequence[str]) -> Iterator[frozenset[str]]:
        forward = [op for op in longest if self.whole.op(op).phase == "forward"]
        size = float(_FIRST)
        while size < _GROWTH * len(longest):
            yield from (frozenset(ops[: int(size)]) for ops in (longest, forward) if size < _GROWTH * len(ops))
            size *= _GROWTH

    def _improves(self, longest: Sequence[str], size: int) -> bool:
        """One pass over groups of ops: put each in, and take each out; whether anything helped."""
        before = self._best.makespan_s
        inside = [op for op in longest if op in self._best.ops]
        outside = [op for op in longest if op not in self._best.ops][: max(len(inside), 4 * size)]
        for begin in range(0, len(outside), size):
            self._try(self._best.ops.union(outside[begin : begin + size]))
        for begin in range(0, len(inside), size):
            self._try(self._best.ops.difference(inside[::-1][begin : begin + size]))
        return self._best.makespan_s < before

    def _try(self, ops: frozenset[str]) -> None:
        if self._is_over():
            return
        found = self._prospect(ops)
        if (found.makespan_s, len(found.ops)) < (self._best.makespan_s, len(self._best.ops)):
            self._best = found
            self.on_progress(found)

    def _is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self._deadline


_SEARCH_SHARE = 0.4
_STEPS = 5
"""That are timed of each set of splits that is profiled."""


@dataclass(frozen=True, repr=False)
class SplitResult:
    """Plans of one step without splits and with them: the same where none shorten the step.

    `evaluated`: how many sets of splits were tried.
    """

    whole: Result
    split: Result
    splits: tuple[OpSplit, ...]
    evaluated: int

    def __repr__(self) -> str:
        whole_s, split_s = self.whole.plan.makespan_s, self.split.plan.makespan_s
        return (
            f"<SplitResult: {format_seconds(whole_s)} whole, {format_seconds(split_s)} with {len(self.splits)} ops "
            f"split, {self.evaluated} sets of splits tried>"
        )

    @property
    def gain(self) -> float:
        """Step time without splits ÷ step time with them."""
        return self.whole.plan.makespan_s / self.split.plan.makespan_s

    @property
    def speedup(self) -> float | None:
        """Time of all ops without splits on the best single device ÷ step time with them."""
        alone_s = self.whole.single_device_s
        return None if alone_s is None else alone_s / self.split.plan.makespan_s


def place_with_splits(
    job: Job,
    topology: Topology,
    options: Options | None = None,
    *,
    graph: OpGraph | None = None,
    devices: Sequence[str] = (),
    parts: int | None = None,
    rewrites: Sequence[str] | None = None,
    time_limit_s: float = 120.0,
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
    **solving: Any,
) -> SplitResult:
    """The best plans found for a job without and with splits of its ops: see `dlplacer.place_with_splits`.

    `solving` is for `dlplacer.planning.place.place`.
    """
    began = time.monotonic()
    (options or Options()).require_makespan("splitting")
    step = TracedStep.of(job, rewrites)
    opened = open_devices(list(devices)) if devices else []
    try:
        whole = whole_graph(step, graph, opened)
        stop = solving.get("stop") or Event()
        search = SplitSearch(step, whole, topology, options or Options(), parts, stop=stop, on_progress=on_progress)
        choice = chosen_splits(search, opened, _SEARCH_SHARE * time_limit_s)
    finally:
        for device in opened:
            device.close()
    # Profiling comes on top of the limit, so with devices the time spent so far is not deducted.
    left_s = max(1.0, time_limit_s - (0.0 if opened else time.monotonic() - began))
    result = place(whole, topology, options, time_limit_s=left_s / 2, **solving)
    split = place(choice.graph, topology, options, time_limit_s=left_s / 2, **solving) if choice.splits else result
    if split.plan.makespan_s >= result.plan.makespan_s:
        return SplitResult(result, result, (), choice.evaluated)
    return SplitResult(result, split, choice.splits, choice.evaluated)


def chosen_splits(search: SplitSearch, devices: Sequence[RuntimeDevice], time_limit_s: float) -> SplitChoice:
    """The choice by measurement where there are devices, else by estimates."""
    if not devices or len(search.topology.devices) < 2:
        return search.choose(time_limit_s)
    job = search.step.job
    return search.choose_measured(lambda captured: profile_ops(job, captured, devices, _STEPS), time_limit_s)


def whole_graph(
    step: TracedStep, graph: OpGraph | None, devices: Sequence[RuntimeDevice] = (), steps: int = 7, warmup: int = 2
) -> OpGraph:
    """The step's graph without splits: the given one, profiled where its times were not measured on these devices.

    Raises InputError if the given graph is not the step's.
    """
    captured = step.captured()
    if graph is not None and structure_sha256(graph) != structure_sha256(captured.graph):
        raise InputError(
            f"the graph with the times is another one: {first_difference(graph, captured.graph)} (first: the given "
            "graph; second: this job without splits); profile the job again with the same options"
        )
    whole = captured.graph if graph is None else graph
    if not {device.type for device in devices} <= set(measured_types(whole)):
        whole = with_measured_times(whole, profile_ops(step.job, captured, devices, steps, warmup))
    return whole
