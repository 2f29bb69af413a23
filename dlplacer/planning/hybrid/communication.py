"""Step times of data-parallel workers: in closed form, or over the links of a real machine."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.exact_groups import best_groups
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.data_parallel.groups.message_timeline import makespan_s
from dlplacer.data_parallel.groups.policies import by_bytes, per_layer, single_group
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.gradient_exchange import GradientExchange, exchanges
from dlplacer.machines.costs.roofline import rates_of
from dlplacer.planning.hybrid.exchange_lines import ExchangeLine, line_through, lines_among
from dlplacer.planning.hybrid.placed_workers import WorkerSplit
from dlplacer.planning.hybrid.scaling_efficiency import ScalingEfficiency
from dlplacer.planning.hybrid.step_workload import Work
from dlplacer.planning.hybrid.worker_layout import Worker, WorkerLayout

GROUPINGS = {"single": single_group, "per-layer": per_layer, "25 MiB": by_bytes, "optimal": best_groups}
"""How gradients are grouped into messages → the cuts of a chain."""

SERVED_DEVICES = 64
"""In larger teams nothing goes through parameter servers: all workers would wait for few links."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One way to exchange gradients and the step time with it.

    Attributes
    ----------
    algorithm
        Of the all-reduce; empty where there is none.
    grouping, groups
        How gradients are grouped, and into how many messages.
    period
        Steps between exchanges.
    step_s
        Seconds of a step on average.
    exposed_s
        Of these, what the exchange adds to the computation.
    servers
        Devices of the team that serve parameters and compute nothing.
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


@dataclass(frozen=True, slots=True)
class Team:
    """Devices in equal workers.

    Attributes
    ----------
    degree
        M: devices of a worker.
    split
        How a worker's devices share its step.
    """

    devices: int
    degree: int
    split: WorkerSplit

    @property
    def workers(self) -> int:
        """Data-parallel workers: devices ÷ degree."""
        return self.devices // self.degree


class StepTimes(Protocol):
    """Where step times come from."""

    def step_times(self, work: Work, team: Team, periods: Sequence[int], /) -> Iterable[StepTime]:
        """Every way to exchange gradients among the workers, at these periods."""


@dataclass(frozen=True)
class ClosedForm:
    """Step times from a scaling efficiency: T_N = T_1 ÷ SU^M ÷ SE_N, gradients as they are, at every step (eq. 5)."""

    efficiency: ScalingEfficiency

    def step_times(self, work: Work, team: Team, _periods: Sequence[int], /) -> Iterator[StepTime]:
        """The one way that the form knows."""
        compute_s = work.step_s / team.split.speedup
        step_s = compute_s / self.efficiency.efficiency(team.workers)
        yield StepTime("none", "-", "", "-", 1, 1, step_s, step_s - compute_s)


class OnMachine:
    """Step times over the links of a machine.

    With overlap a group of gradients is sent as soon as all of it is ready, one group after another, while the backward
    pass goes on; without, everything is sent at the end. Coding takes time on the device. With a period τ above 1 the
    weights are averaged in one message every τ steps, hidden behind nothing.

    Parameters
    ----------
    overlap
        Whether the exchange may run beside the backward pass.
    groupings
        Keys of `GROUPINGS`; ``optimal`` is never worse than the others. Without overlap there is one message.
    """

    def __init__(
        self,
        layout: WorkerLayout,
        gradient_exchanges: Sequence[GradientExchange] | None = None,
        *,
        overlap: bool = True,
        groupings: Sequence[str] = ("optimal",),
    ) -> None:
        for name in groupings:
            if name not in GROUPINGS:
                raise InputError(f"there is no grouping {name!r}; use some of {', '.join(GROUPINGS)}")
        self.layout, self.overlap = layout, overlap
        self.gradient_exchanges = tuple(
            exchanges(memory_rate(layout.topology)) if gradient_exchanges is None else gradient_exchanges
        )
        self.groupings = tuple(groupings)

    def step_times(self, work: Work, team: Team, periods: Sequence[int], /) -> Iterator[StepTime]:
        """Every exchange with every algorithm that may be best, every grouping and period.

        Parameter servers stand in for whole workers: for 1, 2, 4 … of them, up to half, those that are joined best.
        They are looked at for up to `SERVED_DEVICES` devices.
        """
        if team.workers == 1 or not work.gradient_bytes:
            compute_s = work.step_s / team.split.speedup
            yield StepTime("none", "-", "", "-", 0, 1, compute_s, 0.0)
            return
        teams = self.layout.workers(team.devices, team.degree)
        costs = self._costs(team, teams)
        for gradient_exchange in self.gradient_exchanges:
            if not gradient_exchange.is_served and gradient_exchange.fits(team.workers):
                for choice in lines_among(costs, gradient_exchange):
                    yield from self._timed(work, team, periods, gradient_exchange, team.workers, choice)
        served = [gradient_exchange for gradient_exchange in self.gradient_exchanges if gradient_exchange.is_served]
        if not served or team.devices > SERVED_DEVICES:
            return
        widest = self._by_width(teams)
        for count in _powers(team.workers // 2):
            serving, computing = widest[:count], [worker for worker in teams if worker not in widest[:count]]
            fewer = self._costs(team, computing)
            for gradient_exchange in (
                gradient_exchange
                for gradient_exchange in served
                if len(computing) > 1 and gradient_exchange.fits(len(computing))
            ):
                choice = line_through(fewer, gradient_exchange, [name for worker in serving for name in worker])
                yield from self._timed(work, team, periods, gradient_exchange, len(computing), choice)

    def _timed(
        self,
        work: Work,
        team: Team,
        periods: Sequence[int],
        gradient_exchange: GradientExchange,
        workers: int,
        choice: ExchangeLine,
    ) -> Iterator[StepTime]:
        """The step with one exchange, in every grouping and period."""
        compute_s, line = work.step_s / team.split.speedup, choice.line
        coding = gradient_exchange.codec_s_per_byte(workers)
        wire = AlphaBeta(line.latency_s, max(0.0, line.s_per_byte - coding))
        names = gradient_exchange.codec, gradient_exchange.transport, choice.algorithm
        for grouping in self.groupings if self.overlap else ():
            groups, step_s = _overlapped(work, team.split.speedup, wire, coding, grouping)
            yield StepTime(*names, grouping, groups, 1, step_s, step_s - compute_s, choice.servers)
        for period in (period for period in periods if period > 1 or not self.overlap):
            exposed_s = line.time_s(work.gradient_bytes) / period
            yield StepTime(*names, "single", 1, period, compute_s + exposed_s, exposed_s, choice.servers)

    def _costs(self, team: Team, workers: Sequence[Worker]) -> MachineCosts:
        groups = tuple(zip(*workers, strict=True))
        held, degree = team.split.shares, team.degree
        shares = held if len(held) == degree else (1 / degree,) * degree
        return MachineCosts(self.layout.wiring, groups, shares, self.layout.islands(groups[0]))

    def _by_width(self, workers: Sequence[Worker]) -> list[Worker]:
        """The workers, those first that have the highest rates to all others and the widest links."""
        everybody = [name for worker in workers for name in worker]
        own: dict[str, float] = defaultdict(float)
        for link in self.layout.topology.links:
            own[link.source] += link.total_bytes_per_s
            own[link.target] += link.total_bytes_per_s

        def width(worker: Worker) -> tuple[float, float]:
            rates = (self.layout.rate(name, other) for name in worker for other in everybody if other not in worker)
            return sum(rates), sum(own[name] for name in worker)

        return sorted(workers, key=width, reverse=True)


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 … up to this."""
    yield from (1 << place for place in range(most.bit_length()))


def memory_rate(topology: Topology) -> float | None:
    """Bytes per second of the slowest memory among the devices; None where no rate is known."""
    known = [rates.memory_bytes_per_s for device in topology.devices if (rates := rates_of(device)) is not None]
    return min((rate for rate in known if rate is not None), default=None)


def _overlapped(work: Work, speedup: float, wire: AlphaBeta, coding: float, grouping: str) -> tuple[int, float]:
    """Number of groups and step time; the chain lists layers in the order of the forward pass."""
    layers = list(reversed(work.layers))
    sizes = tuple(layer.gradient_bytes for layer in layers)
    computes = tuple(layer.backward_s / speedup + coding * layer.gradient_bytes for layer in layers)
    chain = LayerChain(wire.latency_s, tuple(wire.s_per_byte * size for size in sizes), computes, sizes)
    cuts = GROUPINGS[grouping](chain)
    exchanged_s = makespan_s(chain, cuts, "backward")
    computed_s = sum(computes) + work.tail_s / speedup
    return len(cuts), work.forward_s / speedup + max(exchanged_s, computed_s) + work.update_s / speedup
