"""Seconds of ops that were never timed, from ops of the same shapes, or from the op that they are part of."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import linear_regression, mean, median

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.calibration import signature
from dlplacer.runtime.profile.op_times import measured_types

_JOINS = ("aten.cat", "aten.add")


@dataclass
class MeasuredTimes:
    """Measured seconds by op, by signature, and of ops that copy by their bytes; of one device type."""

    device_type: str
    by_op: dict[tuple[str, str], float] = field(default_factory=dict)
    by_signature: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    copied: list[tuple[float, float]] = field(default_factory=list)

    def learn(self, graph: OpGraph) -> None:
        """Remember the times of a profiled graph; of an op that is known, the first time counts."""
        for op in graph.ops:
            time_s = op.time_on(self.device_type)
            if time_s is None:
                continue
            key = signature(graph, op)
            self.by_op.setdefault((op.id, key), time_s)
            self.by_signature[key].append(time_s)
            if op.kind in _JOINS and op.bytes_accessed:
                self.copied.append((op.bytes_accessed, time_s))

    def known(self, graph: OpGraph, op: Op) -> float | None:
        """Seconds of an op that was timed, or of ops with its signature; None if there is none."""
        key = signature(graph, op)
        if (op.id, key) in self.by_op:
            return self.by_op[op.id, key]
        times = self.by_signature.get(key)
        return median(times) if times else None

    def estimate(self, op: Op, origin: Op | None, overhead: float) -> float | None:
        """Seconds of a part or a join: by its share of the op that it came from, or by its bytes."""
        if origin is None or op.kind != origin.kind:
            return self.copying.time_s(op.bytes_accessed)
        whole_s = origin.time_on(self.device_type)
        return None if whole_s is None else whole_s * share(op, origin) * (1 + overhead)

    @property
    def copying(self) -> AlphaBeta:
        """The line through what ops that only copy took; flat where all of them moved equally much."""
        sizes, times = [size for size, _ in self.copied], [time_s for _, time_s in self.copied]
        if not times:
            return AlphaBeta(0.0, 0.0)
        if len(set(sizes)) < 2:
            return AlphaBeta(mean(times), 0.0)
        line = linear_regression(sizes, times)
        return AlphaBeta(max(0.0, line.intercept), max(0.0, line.slope))


def share(part: Op, whole: Op) -> float:
    """The part of an op's work that a part of it does: by FLOPs, else by bytes."""
    if whole.flops:
        return part.flops / whole.flops
    return part.bytes_accessed / whole.bytes_accessed if whole.bytes_accessed else 1.0


def with_estimates(graph: OpGraph, whole: OpGraph, tables: Iterable[MeasuredTimes], overhead: float) -> OpGraph:
    """A graph with splits, timed: what is known from the tables, the rest estimated from the graph without them.

    Device types for which the whole graph has no times are left to the roofline.
    """
    tables = list(tables)
    origins: Mapping[str, Op] = {op.id: op for op in whole.ops}

    def timed(op: Op) -> Op:
        times: dict[str, float] = {}
        for table in tables:
            found = table.known(graph, op)
            if found is None and op.origin:
                found = table.estimate(op, origins.get(op.origin[0]), overhead)
            if found is not None:
                times[table.device_type] = found
        return replace(op, time_s={**_given(op), **times}) if times else op

    return replace(graph, ops=tuple(map(timed, graph.ops)))


def on_time_base_of(whole: OpGraph, graph: OpGraph) -> OpGraph:
    """A profiled graph with splits, its times scaled so that the ops it shares with the whole graph take as long there.

    The machine drifts between two profiles: what it gained or lost meanwhile is not to count as the splits' doing.
    """
    pairs = [(op, whole.op(op.id)) for op in graph.ops if op.id in whole.index]
    factor: dict[str, float] = {}
    for kind in measured_types(graph):
        shared = [(op.time_on(kind), twin.time_on(kind)) for op, twin in pairs]
        now, then = (sum(times[place] or 0.0 for times in shared) for place in (0, 1))
        factor[kind] = then / now if now and then else 1.0

    def scaled(op: Op) -> Op:
        return replace(op, time_s={kind: time_s * factor.get(kind, 1.0) for kind, time_s in _given(op).items()})

    return replace(graph, ops=tuple(map(scaled, graph.ops)))


def measured_overhead(whole: OpGraph, graph: OpGraph, device_type: str) -> float:
    """What the parts of all split ops take beyond what the ops took whole: 0.01 is one percent."""
    parts_s = 0.0
    origins = {op.origin[0] for op in graph.ops if op.origin}
    for op in graph.ops:
        if op.origin and op.kind == whole.op(op.origin[0]).kind:
            parts_s += op.time_on(device_type) or 0.0
    wholes_s = sum(whole.op(name).time_on(device_type) or 0.0 for name in origins)
    return parts_s / wholes_s - 1 if wholes_s else 0.0


def tables_of(graph: OpGraph) -> list[MeasuredTimes]:
    """A table for each device type for which all ops of a graph have times."""
    types = {name for op in graph.ops for name in _given(op)}
    tables = [MeasuredTimes(name) for name in sorted(types) if all(op.time_on(name) is not None for op in graph.ops)]
    for table in tables:
        table.learn(graph)
    return tables


def _given(op: Op) -> dict[str, float]:
    return dict(op.time_s) if isinstance(op.time_s, Mapping) else {}
