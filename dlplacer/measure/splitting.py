"""Split ops that run while other devices are idle, plan again, and keep the shorter plan."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, linear_regression
from threading import Event
from typing import Any

from torch import fx

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.files.formats import first_difference, structure_sha256
from dlplacer.frontend.torch.capture import Captured, default_rewrites, rewritten, trace_job
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.nodes import behind_views
from dlplacer.frontend.torch.splitting import OpSplit, patterns_of
from dlplacer.frontend.torch.tracing.joint import Traced
from dlplacer.frontend.torch.tracing.passes import apply_passes
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.measure.prediction import overlap_shares
from dlplacer.planning.place import place
from dlplacer.planning.result import Result
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.profile.op_times import Times, measured_types, profile_ops, with_measured_times
from dlplacer.solvers.methods import schedules_by

_JOINS = ("aten.cat", "aten.add")
# Between 0 and 5 %: with an overhead of 5 %, splitting 36 ops of Inception-V3 still pays in simulation.
_OVERHEAD = 0.03
# Number of ops split together: 4, 6, 9, … of the ops that keep other devices idle for at least `_LEAST` of the step.
_FIRST, _GROWTH, _POWERS, _LEAST = 4, 1.5, 30, 0.0005
# Far below the error of a prediction: choices among smaller gains would be random.
_LEAST_GAIN = 0.001
_SEARCH_SHARE = 0.4


@dataclass(frozen=True)
class TracedStep:
    """A job's traced step, and the rewrites that precede any split; every method works on a copy of the graph."""

    job: Job
    traced: Traced
    rewrites: tuple[str, ...]

    @classmethod
    def of(cls, job: Job, rewrites: Sequence[str] | None = None) -> "TracedStep":
        """Trace a job; if `rewrites` is None, the step has a capture's default rewrites."""
        wanted = tuple(default_rewrites() if rewrites is None else rewrites)
        return cls(job, trace_job(job, wanted), wanted)

    def captured(self, splits: Sequence[OpSplit] = ()) -> Captured:
        """The captured step with these splits."""
        return rewritten(self.job, self._copy(), [*self.rewrites, *map(str, splits)])

    @cached_property
    def nodes(self) -> Mapping[str, fx.Node]:
        """Name → node of the calls that splits may name, in graph order."""
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
    """A split of each of the `ops` into `parts`, in graph order, except ops that cannot be cut into so many parts.

    If the first value that an op reads is cut along an axis, the op is cut along the same axis if possible: a pool
    after a norm follows the norm's cut along the channels. Otherwise the op is cut along the first axis of its rule,
    the cheapest.
    """
    cut_along: dict[str, int] = {}
    found = []
    for name, node in nodes.items():
        if name not in ops:
            continue
        patterns = {axis: pattern for axis, pattern in patterns_of(node).items() if pattern.extent(node) >= parts}
        if not patterns:
            continue
        read = next(iter(node.all_input_nodes), None)
        dim = None if read is None else cut_along.get(behind_views(read).name)
        following = (axis for axis, pattern in patterns.items() if dim is not None and pattern.inputs.get(0) == dim)
        axis = next(iter((*following, *patterns)))
        found.append(OpSplit(name, axis, parts))
        cut_along[name] = next((dim for dim in patterns[axis].outputs if dim is not None), 0)
    return found


def with_estimated_times(whole: OpGraph, graph: OpGraph) -> OpGraph:
    """The split `graph` with times from the `whole` graph; an op that is not split keeps its time.

    A part takes its share of the whole op's time, by FLOPs or else by bytes, plus 3 %. Slices and joins take times from
    a line fitted to the whole graph's joins. Device types on which some op has no time are left to the roofline.
    """
    named = {kind for op in whole.ops if isinstance(op.time_s, Mapping) for kind in op.time_s}
    kinds = [kind for kind in named if all(op.time_on(kind) is not None for op in whole.ops)]
    joins = [op for op in whole.ops if op.kind in _JOINS]
    lines = {kind: _line([(op.bytes_accessed, op.time_on(kind) or 0.0) for op in joins]) for kind in kinds}

    def time_s(op: Op, kind: str) -> float:
        origin = whole.op(op.origin[0] if op.origin else op.id)
        if op.kind != origin.kind:
            return lines[kind].time_s(op.bytes_accessed)
        share = op.flops / origin.flops if origin.flops else op.bytes_accessed / max(origin.bytes_accessed, 1)
        return (origin.time_on(kind) or 0.0) * (share * (1 + _OVERHEAD) if op.origin else 1)

    return replace(graph, ops=tuple(replace(op, time_s={kind: time_s(op, kind) for kind in kinds}) for op in graph.ops))


def _line(points: Sequence[tuple[float, float]]) -> AlphaBeta:
    """The line through (bytes, seconds); flat if all points have one size."""
    if len({size for size, _ in points}) < 2:
        return AlphaBeta(fmean(time_s for _, time_s in points) if points else 0.0, 0.0)
    line = linear_regression(*zip(*points, strict=True))
    return AlphaBeta(max(0.0, line.intercept), max(0.0, line.slope))


@dataclass(frozen=True)
class SplitChoice:
    """Splits, the graph with them, and the makespans of list schedules without and with them.

    `evaluated`: number of sets of splits tried.
    """

    splits: tuple[OpSplit, ...]
    graph: OpGraph
    whole_s: float
    split_s: float
    evaluated: int


def choose_splits(
    step: TracedStep,
    plan: Plan,
    parts: int | None = None,
    time_limit_s: float = float("inf"),
    profile: Callable[[Captured], Times] | None = None,
    stop: Event | None = None,
    on_progress: Callable[[SplitChoice], None] = lambda choice: None,
) -> SplitChoice:
    """The best set of splits of ops, judged by list schedules; it may be empty.

    Candidates are the ops that run longest while other devices are idle in `plan`, a plan of the whole step. Growing
    sets of candidates are split, each op into `parts`, by default one per device. A `profile` times the parts of the
    best set, beyond the time limit; the set is dropped unless the step is shorter with these times. `on_progress` is
    called with every set that is the best so far.
    """
    topology, until = plan.topology, time.monotonic() + time_limit_s
    shares = overlap_shares(plan, topology.device_index)
    held_s = {entry.op: (entry.end_s - entry.start_s) * (1 - shares.get(entry.op, 1.0)) for entry in plan.ops}
    least_s = _LEAST * plan.makespan_s
    held = [name for name, node in step.nodes.items() if held_s.get(name, 0.0) >= least_s and patterns_of(node)]
    held.sort(key=lambda name: -held_s[name])
    whole_s = _makespan_s(plan.graph, topology, plan.options)
    best, tried = SplitChoice((), plan.graph, whole_s, whole_s, 0), 0
    for count in sorted({min(len(held), int(_FIRST * _GROWTH**power)) for power in range(_POWERS)} - {0}):
        if time.monotonic() >= until or (stop and stop.is_set()):
            break
        splits = tuple(splits_of(step.nodes, held[:count], parts or len(topology.devices)))
        graph = with_estimated_times(plan.graph, step.captured(splits).graph)
        choice = SplitChoice(splits, graph, whole_s, _makespan_s(graph, topology, plan.options), tried := tried + 1)
        if choice.split_s < min(best.split_s, (1 - _LEAST_GAIN) * whole_s):
            best = choice
            on_progress(best)
    if best.splits and profile is not None and not (stop and stop.is_set()):
        captured = step.captured(best.splits)
        measured = with_measured_times(captured.graph, profile(captured))
        # Ops of the whole graph keep their times there, so that a change in machine speed favours neither graph.
        known = {op.id: op for op in plan.graph.ops}
        ops = (replace(op, time_s=known.get(op.id, op).time_s) for op in measured.ops)
        graph = replace(measured, ops=tuple(ops))
        best = replace(best, graph=graph, split_s=_makespan_s(graph, topology, plan.options))
    if best.split_s >= whole_s:
        best = SplitChoice((), plan.graph, whole_s, whole_s, 0)
    return replace(best, evaluated=tried)


def _makespan_s(graph: OpGraph, topology: Topology, options: Options) -> float:
    """The makespan of the best list schedule; infinite if none fits into memory."""
    try:
        problem = build_problem(with_times(graph, topology), topology, options)
        found = next(filter(None, schedules_by("list", problem)), None)
    except InfeasibleError:
        found = None
    return float("inf") if found is None else found.makespan * float(problem.tick_s)


@dataclass(frozen=True, repr=False)
class SplitResult:
    """Plans of one step without and with splits; both are the same if no split shortens the step.

    `evaluated`: number of sets of splits tried.
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
        """Time of the whole step on the best single device ÷ step time with splits; None if no device holds it."""
        alone_s = self.whole.single_device_s
        return None if alone_s is None else alone_s / self.split.plan.makespan_s


def place_with_splits(
    job: Job,
    topology: Topology,
    options: Options | None = None,
    *,
    graph: OpGraph | None = None,
    parts: int | None = None,
    rewrites: Sequence[str] | None = None,
    time_limit_s: float = 120.0,
    on_progress: Callable[[SplitChoice], None] = lambda choice: None,
    **solving: Any,
) -> SplitResult:
    """The best plans found for a job without and with splits of its ops; see `dlplacer.place_with_splits`.

    `solving`: options of `dlplacer.planning.place.place`.
    """
    (options or Options()).require_makespan("splitting")
    step, each_s = TracedStep.of(job, rewrites), (1 - _SEARCH_SHARE) / 2 * time_limit_s
    result = place(whole_graph(step, graph), topology, options, time_limit_s=each_s, **solving)
    stop, limit_s = solving.get("stop"), _SEARCH_SHARE * time_limit_s
    choice = choose_splits(step, result.plan, parts, limit_s, stop=stop, on_progress=on_progress)
    split = place(choice.graph, topology, options, time_limit_s=each_s, **solving) if choice.splits else result
    if split.plan.makespan_s >= result.plan.makespan_s:
        return SplitResult(result, result, (), choice.evaluated)
    return SplitResult(result, split, choice.splits, choice.evaluated)


def whole_graph(
    step: TracedStep, graph: OpGraph | None, devices: Sequence[RuntimeDevice] = (), steps: int = 7, warmup: int = 2
) -> OpGraph:
    """The step's graph without splits: `graph` or a new one, profiled unless its times were measured on these devices.

    Raises InputError if `graph` is not the step's.
    """
    captured = step.captured()
    if graph is not None and structure_sha256(graph) != structure_sha256(captured.graph):
        raise InputError(
            f"the given graph is not that of this job: {first_difference(graph, captured.graph)} (first: the given "
            "graph; second: this job without splits); profile the job again with the same options"
        )
    whole = captured.graph if graph is None else graph
    if not {device.type for device in devices} <= set(measured_types(whole)):
        whole = with_measured_times(whole, profile_ops(step.job, captured, devices, steps, warmup))
    return whole
