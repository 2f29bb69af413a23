"""What a step of data-parallel workers takes, and its closed form."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlplacer.planning.hybrid.placed_workers import WorkerSplit
from dlplacer.planning.hybrid.scaling_efficiency import ScalingEfficiency
from dlplacer.planning.hybrid.step_workload import Work


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step with one exchange of gradients.

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
        """The step with every exchange of gradients among the workers, at these periods."""


@dataclass(frozen=True)
class ClosedForm:
    """Step times from a scaling efficiency: T_N = T_1 ÷ SU^M ÷ SE_N, gradients as they are, at every step (eq. 5)."""

    efficiency: ScalingEfficiency

    def step_times(self, work: Work, team: Team, _periods: Sequence[int], /) -> Iterator[StepTime]:
        """The one exchange that the form knows."""
        compute_s = work.step_s / team.split.speedup
        step_s = compute_s / self.efficiency.efficiency(team.workers)
        yield StepTime("none", "-", "", "-", 1, 1, step_s, step_s - compute_s)
