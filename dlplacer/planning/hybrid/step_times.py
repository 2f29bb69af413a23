"""Step times of data-parallel workers: in closed form, or over the links of a machine."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Protocol

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.captured_chain import serial_order
from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups, makespan_s
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.gradient_codecs import GradientExchange, exchanges
from dlplacer.machines.costs.roofline import rates_of
from dlplacer.machines.costs.roofline_times import required_time_s
from dlplacer.planning.hybrid.measurements import MeasuredCollective
from dlplacer.planning.hybrid.scaling import ScalingEfficiency
from dlplacer.planning.hybrid.worker_layout import Worker, WorkerLayout
from dlplacer.planning.hybrid.workers import WorkerSplit
from dlplacer.planning.pipeline.pipeline_workload import batch_of

_GRADIENT = "gradient"
_FLOAT_BYTES = 4
_BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class GradientLayer:
    """Gradients that are ready together.

    Attributes
    ----------
    backward_s
        Seconds of backward ops since the gradients before.
    gradient_bytes
        As float32, which is what codecs start from.
    """

    backward_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Work:
    """A step of one worker on one device.

    Attributes
    ----------
    step_s
        The whole step: forward, backward and update.
    layers
        Gradients in the order in which the backward pass makes them; empty where there are none.
    tail_s
        Seconds of backward ops after the last gradient.
    update_s
        Seconds of the update, which waits for the exchange.
    mini_batch
        Samples of a step, if known.
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
        if min(self.tail_s, self.update_s) < 0:
            raise InputError(f"work {self.name!r}: tail_s and update_s must be at least 0")
        parts_s = self.backward_s + self.tail_s + self.update_s
        if parts_s > self.step_s * (1 + 1e-9):
            raise InputError(
                f"work {self.name!r}: its backward pass and update take {parts_s:g} s, more than the {self.step_s:g} s "
                "of the step; correct one of them"
            )

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
    """The step of a captured graph, all ops one after another on one device of a type.

    Gradients are ready when the op that makes them has run. Where the graph does not say which op makes a parameter's
    gradient (ops of kind ``gradient`` that are colocated with it), all of them are taken to be ready at the very end.

    Raises
    ------
    InputError
        If an op has no time on the type, or the whole graph takes none.
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
        # Ops of the backward pass that take no time may stand among the forward ops in a topological order.
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
    """The step on the type of device that is fastest among those that can run all of it; raises as `work_of`."""
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

    Attributes
    ----------
    algorithm
        Of the all-reduce; empty where there is none.
    grouping, groups
        The grouping of gradients, and the number of messages.
    period
        Steps between exchanges.
    step_s
        Seconds of a step on average.
    exposed_s
        Of these, what the exchange adds to the computation.
    servers
        Devices of the team that serve parameters and compute nothing.
    elastic
        True for elastic averaging, whose exchange runs beside the next step.
    """

    codec: str
    transport: str
    algorithm: str
    grouping: str
    groups: int
    period: int
    step_s: float
    exposed_s: float
    servers: int = 0
    elastic: bool = False


def elastic_exposed_s(compute_s: float, exchange_s: float, period: int = 1) -> float:
    """Seconds that elastic averaging adds to a step (You, Buluç and Demmel 2017, Sync EASGD3).

    Its exchange begins with a step and is needed at the end of that step, data copy, forward and backward pass later.
    """
    return max(0.0, exchange_s - compute_s) / period


@dataclass(frozen=True, slots=True)
class Team:
    """Devices in equal workers.

    Attributes
    ----------
    degree
        M: devices of a worker.
    split
        The split of a worker's step over its devices.
    """

    devices: int
    degree: int
    split: WorkerSplit

    @property
    def workers(self) -> int:
        """Data-parallel workers: devices ÷ degree."""
        return self.devices // self.degree


class StepTimes(Protocol):
    """A source of step times."""

    def step_times(
        self, work: Work, team: Team, periods: Sequence[int], elastic: Sequence[int] = (), /
    ) -> Iterable[StepTime]:
        """The step with every exchange of gradients among the workers, at these periods, and by elastic averaging."""


@dataclass(frozen=True)
class ClosedForm:
    """Step times from a scaling efficiency: T_N = T_1 ÷ SU^M ÷ SE_N, gradients as they are, at every step (eq. 5)."""

    efficiency: ScalingEfficiency

    def step_times(
        self, work: Work, team: Team, _periods: Sequence[int], _elastic: Sequence[int] = (), /
    ) -> Iterator[StepTime]:
        """The one exchange that the form knows."""
        compute_s = work.step_s / team.split.speedup
        step_s = compute_s / self.efficiency.efficiency(team.workers)
        yield StepTime("none", "-", "", "-", 1, 1, step_s, step_s - compute_s)


@dataclass(frozen=True, slots=True)
class ExchangeChoice:
    """An exchange among some workers, with an algorithm for each of its collectives.

    Attributes
    ----------
    algorithm
        Of the all-reduce; empty where there is none.
    line
        Seconds over the bytes of the float32 gradient, coding included.
    servers
        Devices that serve parameters and do not compute.
    """

    exchange: GradientExchange
    workers: int
    algorithm: str
    line: AlphaBeta
    servers: int = 0


def choices_among(costs: MachineCosts, exchange: GradientExchange) -> Iterator[ExchangeChoice]:
    """Every choice of algorithms that is the fastest for gradients of some size."""
    used = tuple(dict.fromkeys(collective for collective, _ in exchange.steps(costs.devices)))
    found = []
    for chosen in product(*(costs.algorithms[collective].items() for collective in used)):
        by_collective = dict(zip(used, chosen, strict=True))
        line = exchange.line({collective: line for collective, (_, line) in by_collective.items()}, costs.devices)
        algorithm = by_collective["all-reduce"][0] if "all-reduce" in by_collective else ""
        found.append(ExchangeChoice(exchange, costs.devices, algorithm, line))
    least_s = math.inf
    for each in sorted(found, key=lambda choice: (choice.line.s_per_byte, choice.line.latency_s)):
        if each.line.latency_s < least_s:
            least_s = each.line.latency_s
            yield each


SERVED_DEVICES = 64
"""In larger teams nothing goes through parameter servers: all workers would wait for few links."""


class OnMachine:
    """Step times over the links of a machine.

    With overlap a group of gradients is sent as soon as all of it is ready, one group after another, while the backward
    pass goes on; without, everything is sent at the end. A worker that cuts its mini-batch into micro-batches has the
    sums of their gradients in the backward pass of the last one alone, and only that pass hides their exchange. Coding
    takes time on the device. With a period τ above 1 the weights are averaged in one message every τ steps, hidden
    behind nothing.

    Parameters
    ----------
    overlap
        True if the exchange may overlap with the backward pass.
    measured
        Collectives as they were timed; what the links promise is scaled to them.
    """

    def __init__(
        self,
        layout: WorkerLayout,
        gradient_exchanges: Sequence[GradientExchange] | None = None,
        *,
        overlap: bool = True,
        measured: Sequence[MeasuredCollective] = (),
    ) -> None:
        self.layout, self.overlap = layout, overlap
        self.gradient_exchanges = tuple(
            exchanges(memory_rate(layout.topology)) if gradient_exchanges is None else gradient_exchanges
        )
        self.factors = {each.collective: _factor(layout, each) for each in measured}

    def step_times(
        self, work: Work, team: Team, periods: Sequence[int], elastic: Sequence[int] = (), /
    ) -> Iterator[StepTime]:
        """Every exchange with every algorithm that may be best, at every period, gradients in the best groups.

        Parameter servers stand in for whole workers: for 1, 2, 4 … of them, up to half, those that are joined best.
        They are looked at for up to `SERVED_DEVICES` devices.
        """
        if team.workers == 1 or not work.gradient_bytes:
            compute_s = work.step_s / team.split.speedup
            yield StepTime("none", "-", "", "-", 0, 1, compute_s, 0.0)
            return
        for choice in self._choices(team):
            yield from self._timed(work, team, periods, choice)
            if choice.exchange.codec.name == "none" and not choice.servers:
                yield from self._averaged(work, team, elastic, choice)

    def _choices(self, team: Team) -> Iterator[ExchangeChoice]:
        """Exchanges among all workers, then through servers."""
        workers = self.layout.workers(team.devices, team.degree)
        costs = self._costs(team, workers)
        served = []
        for exchange in self.gradient_exchanges:
            if exchange.is_served:
                served.append(exchange)
            elif exchange.fits(team.workers):
                yield from choices_among(costs, exchange)
        if not served or team.devices > SERVED_DEVICES:
            return
        widest = self._by_width(workers)
        for count in (1 << power for power in range((team.workers // 2).bit_length())):
            computing = [worker for worker in workers if worker not in widest[:count]]
            if len(computing) == 1:
                continue
            fewer = self._costs(team, computing)
            servers = [name for worker in widest[:count] for name in worker]
            for exchange in served:
                if exchange.fits(len(computing)):
                    line = exchange.line(fewer.served(servers), fewer.devices)
                    yield ExchangeChoice(exchange, fewer.devices, "", line, len(servers))

    def _timed(self, work: Work, team: Team, periods: Sequence[int], choice: ExchangeChoice) -> Iterator[StepTime]:
        """The step with one exchange, at every period."""
        compute_s, line = work.step_s / team.split.speedup, choice.line
        coding = choice.exchange.codec_s_per_byte(choice.workers)
        # Coding keeps the device busy, not the link: it goes to the computation, and only the rest may overlap with it.
        wire = AlphaBeta(line.latency_s, max(0.0, line.s_per_byte - coding))
        names = choice.exchange.codec.name, choice.exchange.transport.name, choice.algorithm
        if self.overlap:
            groups, step_s = _overlapped(work, team.split, wire, coding)
            yield StepTime(*names, "optimal", groups, 1, step_s, step_s - compute_s, choice.servers)
        for period in (period for period in periods if period > 1 or not self.overlap):
            exposed_s = line.time_s(work.gradient_bytes) / period
            yield StepTime(*names, "single", 1, period, compute_s + exposed_s, exposed_s, choice.servers)

    def _averaged(self, work: Work, team: Team, periods: Sequence[int], choice: ExchangeChoice) -> Iterator[StepTime]:
        """The step with elastic averaging of weights, which are as many as gradients, at every period."""
        compute_s, exchange_s = work.step_s / team.split.speedup, choice.line.time_s(work.gradient_bytes)
        transport = choice.exchange.transport.name
        for period in periods:
            exposed_s = elastic_exposed_s(compute_s, exchange_s, period)
            step_s = compute_s + exposed_s
            yield StepTime("none", transport, choice.algorithm, "single", 1, period, step_s, exposed_s, elastic=True)

    def _costs(self, team: Team, workers: Sequence[Worker]) -> MachineCosts:
        groups = tuple(zip(*workers, strict=True))
        held, degree = team.split.shares, team.degree
        shares = held if len(held) == degree else (1 / degree,) * degree
        return MachineCosts(self.layout.wiring, groups, shares, self.layout.islands(groups[0]), self.factors)

    def _by_width(self, workers: Sequence[Worker]) -> list[Worker]:
        """The workers, ordered by falling rates to all others and widths of links."""
        everybody = [name for worker in workers for name in worker]
        own: dict[str, float] = defaultdict(float)
        for link in self.layout.topology.links:
            own[link.source] += link.total_bytes_per_s
            own[link.target] += link.total_bytes_per_s

        def width(worker: Worker) -> tuple[float, float]:
            rates = (self.layout.rate(name, other) for name in worker for other in everybody if other not in worker)
            return sum(rates), sum(own[name] for name in worker)

        return sorted(workers, key=width, reverse=True)


def _factor(layout: WorkerLayout, measured: MeasuredCollective) -> float:
    """Measured seconds ÷ those that the links among the first devices promise, for the bytes that were timed."""
    there = [device.id for device in layout.topology.devices]
    if measured.devices > len(there):
        raise InputError(
            f"{measured.collective} was measured among {measured.devices} devices, and {layout.topology.name!r} has "
            f"{len(there)}; give a measurement among at most as many"
        )
    group = tuple(there[: measured.devices])
    promised = MachineCosts(layout.wiring, (group,), (1.0,), layout.islands(group)).collectives(measured.bytes)
    return measured.seconds / promised[measured.collective].time_s(measured.bytes)


def memory_rate(topology: Topology) -> float | None:
    """Bytes per second of the slowest memory among the devices; None where no rate is known."""
    known = [rates.memory_bytes_per_s for device in topology.devices if (rates := rates_of(device)) is not None]
    return min((rate for rate in known if rate is not None), default=None)


def _overlapped(work: Work, split: WorkerSplit, wire: AlphaBeta, coding: float) -> tuple[int, float]:
    """Number of groups and step time."""
    speedup, last = split.speedup, split.speedup * split.micro_batches
    # Gradients are listed as backward makes them; a chain lists its layers in the order of the forward pass.
    layers = list(reversed(work.layers))
    sizes = tuple(layer.gradient_bytes for layer in layers)
    computes = tuple(layer.backward_s / last + coding * layer.gradient_bytes for layer in layers)
    chain = LayerChain(wire.latency_s, tuple(wire.s_per_byte * size for size in sizes), computes, sizes)
    cuts = best_groups(chain)
    exchanged_s = makespan_s(chain, cuts, "backward")
    computed_s = sum(computes) + work.tail_s / last
    before_s = work.forward_s / speedup + (work.backward_s + work.tail_s) * (1 / speedup - 1 / last)
    return len(cuts), before_s + max(exchanged_s, computed_s) + work.update_s / speedup
