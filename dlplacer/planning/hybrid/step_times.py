"""Step times of data-parallel workers: in closed form, or over the links of a machine."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TypeAlias

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.captured_chain import serial_order
from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups, makespan_s
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.gradient_codecs import GradientExchange, exchanges
from dlplacer.machines.costs.links import MachineCosts
from dlplacer.machines.costs.roofline import rates_of
from dlplacer.machines.costs.roofline_times import required_time_s
from dlplacer.planning.hybrid.worker_layout import WorkerLayout
from dlplacer.planning.hybrid.workers import WorkerSplit
from dlplacer.planning.pipeline.pipeline_workload import batch_of

_GRADIENT = "gradient"
_FLOAT_BYTES = 4
_BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class GradientLayer:
    """Gradients that are ready together.

    `backward_s`: Seconds of backward ops since the previous gradients. `gradient_bytes`: Bytes as float32, the input of
    codecs.
    """

    backward_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Work:
    """A step of one worker on one device.

    `layers`: Gradients in the order in which the backward pass computes them; empty if there are none. `tail_s`:
    Seconds of backward ops after the last gradient.
    """

    step_s: float
    layers: tuple[GradientLayer, ...] = field(default=(), repr=False)
    tail_s: float = 0.0
    update_s: float = 0.0
    mini_batch: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.step_s < float("inf"):
            raise InputError(f"work {self.name!r}: step_s is {self.step_s}; it must be positive and finite")

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes that data-parallel workers average at every step, as float32."""
        return sum(layer.gradient_bytes for layer in self.layers)

    @cached_property
    def backward_s(self) -> float:
        """Seconds from the first backward op to the last gradient."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def forward_s(self) -> float:
        """Seconds before the first backward op."""
        return max(0.0, self.step_s - self.backward_s - self.tail_s - self.update_s)


def work_of(graph: OpGraph, device_type: str) -> Work:
    """The step of a captured graph with all ops in series on one device of a type.

    A gradient is ready when the op that computes it ends. If a parameter has no op of kind ``gradient`` that is
    colocated with it, its gradient counts as ready after the last backward op.

    Raises InputError if an op has no time on the type, or the whole graph takes no time.
    """
    spent_s, update_s = 0.0, 0.0
    ready: list[tuple[float, int]] = []
    made_at: dict[str, float] = {}
    forward_s: float | None = None
    for op_id in serial_order(graph):
        op = graph.op(op_id)
        time_s = required_time_s(op, device_type)
        if op.phase == "optimizer":
            update_s += time_s
            continue
        # A topological order may list backward ops of zero time among the forward ops.
        if op.phase == "backward" and time_s > 0 and forward_s is None:
            forward_s = spent_s
        spent_s += time_s
        made_at[op_id] = spent_s
        if op.kind == _GRADIENT and op.colocate in graph.index:
            size = _as_float32(graph.op(op.colocate or ""))
            if size:
                made = [made_at[edge.source] for edge in graph.edges_into[op_id] if edge.source in made_at]
                ready.append((max(made, default=spent_s), size))
    if not spent_s > 0:
        raise InputError(f"graph {graph.name!r} takes no time on a {device_type!r}; profile it first")
    rest = sum(_as_float32(op) for op in graph.ops if op.kind != _GRADIENT) - sum(size for _, size in ready)
    if rest > 0:
        ready.append((spent_s, rest))
    ready.sort()
    forward_s = spent_s if forward_s is None else forward_s
    tail_s = spent_s - max(forward_s, ready[-1][0] if ready else forward_s)
    layers = _layers(ready, forward_s)
    return Work(spent_s + update_s, layers, tail_s, update_s, batch_of(graph), graph.name)


def fastest_work(graph: OpGraph, topology: Topology) -> Work:
    """The step on the fastest device type that can run all ops; errors as in `work_of`."""
    kinds = topology.device_types
    able = [kind for kind in kinds if all(op.time_on(kind) is not None for op in graph.ops)]
    return min((work_of(graph, kind) for kind in able or kinds[:1]), key=lambda work: work.step_s)


def _layers(ready: Sequence[tuple[float, int]], start_s: float) -> tuple[GradientLayer, ...]:
    layers: list[GradientLayer] = []
    before_s = start_s
    for at_s, size in ready:
        if layers and at_s <= before_s:
            layers[-1] = GradientLayer(layers[-1].backward_s, layers[-1].gradient_bytes + size)
        else:
            layers.append(GradientLayer(max(0.0, at_s - before_s), size))
            before_s = max(before_s, at_s)
    return tuple(layers)


def _as_float32(op: Op) -> int:
    width = _BYTES_OF.get(op.outputs[0].dtype if op.outputs else op.dtype or "", _FLOAT_BYTES)
    return op.gradient_bytes * _FLOAT_BYTES // width


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step with one exchange of gradients.

    `exposed_s`: The part of `step_s` that the exchange adds to the computation. `elastic`: True for elastic averaging,
    whose exchange runs in parallel with the next step.
    """

    codec: str
    transport: str
    algorithm: str
    grouping: str
    groups: int
    period: int
    step_s: float
    exposed_s: float
    elastic: bool = False


def elastic_exposed_s(compute_s: float, exchange_s: float, period: int = 1) -> float:
    """Seconds that elastic averaging adds to a step (You, Buluç and Demmel 2017, Sync EASGD3).

    The exchange starts with a step and is needed at the end of that step, after data copy, forward and backward pass.
    """
    return max(0.0, exchange_s - compute_s) / period


@dataclass(frozen=True, slots=True)
class Team:
    """A set of devices, divided into equal workers."""

    devices: int
    degree: int
    split: WorkerSplit

    @property
    def workers(self) -> int:
        """The number of data-parallel workers: devices ÷ degree."""
        return self.devices // self.degree


@dataclass(frozen=True)
class ClosedForm:
    """Step times T_1 ÷ SU^M ÷ SE_N (Pal et al. 2019, eq. 5), with exact gradients at every step."""

    efficiency: Callable[[int], float]

    def step_times(
        self, work: Work, team: Team, _periods: Sequence[int], _elastic: Sequence[int] = (), /
    ) -> Iterator[StepTime]:
        """One step time, with an exchange of exact gradients at every step."""
        compute_s = work.step_s / team.split.speedup
        step_s = compute_s / self.efficiency(team.workers)
        yield StepTime("none", "-", "", "-", 1, 1, step_s, step_s - compute_s)


def lines_among(costs: MachineCosts, exchange: GradientExchange) -> Iterator[tuple[str, AlphaBeta]]:
    """(Name of the all-reduce algorithm, cost of the exchange) for each choice that is fastest for some size.

    The name is "" if the exchange uses no all-reduce. The cost includes coding.
    """
    used = tuple(dict.fromkeys(collective for collective, _ in exchange.steps(costs.devices)))
    found = []
    for chosen in product(*(costs.algorithms[collective].items() for collective in used)):
        by_collective = dict(zip(used, chosen, strict=True))
        line = exchange.line({collective: line for collective, (_, line) in by_collective.items()}, costs.devices)
        found.append((by_collective["all-reduce"][0] if "all-reduce" in by_collective else "", line))
    least_s = math.inf
    for algorithm, line in sorted(found, key=lambda each: (each[1].s_per_byte, each[1].latency_s)):
        if line.latency_s < least_s:
            least_s = line.latency_s
            yield algorithm, line


class OnMachine:
    """Step times over the links of a machine.

    With `overlap`, groups of gradients are sent one at a time, each as soon as it is ready, during the backward pass;
    else all gradients are sent at the end. With micro-batches, gradients are complete only in the backward pass of the
    last micro-batch, so only that pass hides the exchange. Coding takes time on the device. With a period τ above 1,
    workers average their weights in one message every τ steps, and nothing hides this message.
    """

    def __init__(
        self,
        layout: WorkerLayout,
        gradient_exchanges: Sequence[GradientExchange] | None = None,
        *,
        overlap: bool = True,
    ) -> None:
        self.layout, self.overlap = layout, overlap
        self.gradient_exchanges = tuple(
            exchanges(memory_rate(layout.topology)) if gradient_exchanges is None else gradient_exchanges
        )

    def step_times(
        self, work: Work, team: Team, periods: Sequence[int], elastic: Sequence[int] = (), /
    ) -> Iterator[StepTime]:
        """The step times of every exchange at every period, with each algorithm that may be the fastest."""
        if team.workers == 1 or not work.gradient_bytes:
            compute_s = work.step_s / team.split.speedup
            yield StepTime("none", "-", "", "-", 0, 1, compute_s, 0.0)
            return
        costs = self._costs(team)
        for exchange in self.gradient_exchanges:
            if exchange.fits(team.workers):
                for algorithm, line in lines_among(costs, exchange):
                    yield from self._timed(work, team, periods, exchange, algorithm, line)
                    if exchange.codec == "none":
                        yield from self._averaged(work, team, elastic, exchange.transport, algorithm, line)

    def _timed(
        self,
        work: Work,
        team: Team,
        periods: Sequence[int],
        exchange: GradientExchange,
        algorithm: str,
        line: AlphaBeta,
    ) -> Iterator[StepTime]:
        """The step times with one exchange, at every period."""
        compute_s = work.step_s / team.split.speedup
        coding = exchange.codec_s_per_byte(team.workers)
        # Coding occupies the device and not the link, so it adds to the computation; only the rest may overlap with it.
        wire = AlphaBeta(line.latency_s, max(0.0, line.s_per_byte - coding))
        names = exchange.codec, exchange.transport, algorithm
        if self.overlap:
            groups, step_s = _overlapped(work, team.split, wire, coding)
            yield StepTime(*names, "optimal", groups, 1, step_s, step_s - compute_s)
        for period in (period for period in periods if period > 1 or not self.overlap):
            exposed_s = line.time_s(work.gradient_bytes) / period
            yield StepTime(*names, "single", 1, period, compute_s + exposed_s, exposed_s)

    def _averaged(
        self, work: Work, team: Team, periods: Sequence[int], transport: str, algorithm: str, line: AlphaBeta
    ) -> Iterator[StepTime]:
        """The step times with elastic averaging at every period; it sends weights, as many bytes as the gradients."""
        compute_s, exchange_s = work.step_s / team.split.speedup, line.time_s(work.gradient_bytes)
        for period in periods:
            exposed_s = elastic_exposed_s(compute_s, exchange_s, period)
            step_s = compute_s + exposed_s
            yield StepTime("none", transport, algorithm, "single", 1, period, step_s, exposed_s, elastic=True)

    def _costs(self, team: Team) -> MachineCosts:
        groups = tuple(zip(*self.layout.workers(team.devices, team.degree), strict=True))
        held, degree = team.split.shares, team.degree
        shares = held if len(held) == degree else (1 / degree,) * degree
        return MachineCosts(self.layout.wiring, groups, shares, self.layout.islands(groups[0]))


def memory_rate(topology: Topology) -> float | None:
    """Bytes per second of the slowest memory among the devices; None if no rate is known."""
    known = [rates.memory_bytes_per_s for device in topology.devices if (rates := rates_of(device)) is not None]
    return min((rate for rate in known if rate is not None), default=None)


def _overlapped(work: Work, split: WorkerSplit, wire: AlphaBeta, coding: float) -> tuple[int, float]:
    """The number of groups, and the step time in seconds."""
    speedup, last = split.speedup, split.speedup * split.micro_batches
    # Gradients are in the order of the backward pass; a chain lists its layers in the order of the forward pass.
    layers = list(reversed(work.layers))
    sizes = tuple(layer.gradient_bytes for layer in layers)
    computes = tuple(layer.backward_s / last + coding * layer.gradient_bytes for layer in layers)
    chain = LayerChain(wire.latency_s, tuple(wire.s_per_byte * size for size in sizes), computes, sizes)
    cuts = best_groups(chain)
    exchanged_s = makespan_s(chain, cuts, "backward")
    computed_s = sum(computes) + work.tail_s / last
    before_s = work.forward_s / speedup + (work.backward_s + work.tail_s) * (1 / speedup - 1 / last)
    return len(cuts), before_s + max(exchanged_s, computed_s) + work.update_s / speedup


StepTimes: TypeAlias = ClosedForm | OnMachine
"""The sources of step times."""
