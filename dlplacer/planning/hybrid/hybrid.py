"""Data parallelism, model parallelism, or both: every use of up to N devices, ranked by time to converge."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.gradient_codecs import CODECS
from dlplacer.planning.hybrid.epochs import StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid_plan import BestOfDevices, HybridPlan, Strategy
from dlplacer.planning.hybrid.scaling import constant_efficiency
from dlplacer.planning.hybrid.step_times import ClosedForm, OnMachine, StepTime, StepTimes, Team, Work
from dlplacer.planning.hybrid.worker_layout import WorkerLayout, sub_topology
from dlplacer.planning.hybrid.workers import ALONE, ModelParallel, WorkerSplit, splits_of
from dlplacer.planning.pipeline.pipeline_workload import mixing_warnings

DEGREES = tuple(range(2, 9))
"""Model-parallel degrees that are considered by default."""


@dataclass(frozen=True)
class HybridProblem:
    """The input of the hybrid planner.

    `model_parallel`: Speedup of M devices, or the possible splits among them. `topology`: The machine that provides the
    devices of model-parallel workers; None if speedups depend on no machine. `step_times`: The source of step times;
    None means the links of the topology, or SE = 1 without a topology. `degrees`: Model-parallel degrees to consider in
    addition to 1; degrees without a split are skipped. `alone`: Like `model_parallel`, for workers of one device, whose
    speedup is below 1 if the device is slower than in `work`; None means the time of `work` on every device.
    """

    work: Work
    efficiency: StatisticalEfficiency
    model_parallel: ModelParallel
    topology: Topology | None = None
    step_times: StepTimes | None = None
    degrees: Sequence[int] = DEGREES
    alone: ModelParallel | None = None
    samples: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for degree in self.degrees:
            if degree < 2:
                raise InputError(f"model-parallel degree {degree}: give 2 or more, because 1 is implied")


def plan_hybrid(
    problem: HybridProblem, devices: int, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> HybridPlan:
    """The best strategy for every budget of up to `devices` devices; a strategy may leave devices idle.

    Raises InfeasibleError if no strategy trains the model; the message gives the reason.
    """
    if devices < 1:
        raise InputError(f"a budget of {devices} devices; there must be at least 1")
    search = _Search(problem)
    budgets: list[BestOfDevices] = []
    for count in range(1, devices + 1):
        smaller, is_compared = budgets[-1] if budgets else None, problem.efficiency.knows(count)
        budgets.append(BestOfDevices.of(count, list(search.strategies(count)), smaller, is_compared))
        on_progress(count, devices)
    if budgets[-1].best is None:
        raise InfeasibleError(
            f"no strategy for up to {devices} devices: the model does not fit on one and no model-parallel degree of "
            f"{', '.join(map(str, problem.degrees))} has a plan, or no batch converges with the given epochs; use more "
            "devices or more memory, or check the epochs"
        )
    work, epochs = problem.work, problem.efficiency.epochs(1)
    mini_batches = problem.samples / work.mini_batch if problem.samples and work.mini_batch else None
    reference_s = work.step_s * (1.0 if epochs is None else epochs) if search.fits_on_one() else None
    return HybridPlan(tuple(budgets), reference_s, mini_batches, problem.name or work.name)


class _Search:
    """The strategies of one problem, device count by device count."""

    def __init__(self, problem: HybridProblem) -> None:
        self.problem = problem
        self.layout = None if problem.topology is None else WorkerLayout(problem.topology)
        closed: StepTimes = ClosedForm(constant_efficiency())
        self.step_times = problem.step_times or (closed if self.layout is None else OnMachine(self.layout))

    def strategies(self, count: int) -> Iterator[Strategy]:
        """Every strategy that uses exactly this many devices."""
        efficiency = self.problem.efficiency
        for degree in (1, *self.problem.degrees):
            if count % degree or efficiency.epochs(count // degree) is None:
                continue
            for split in self._splits(count, degree):
                team = Team(count, degree, split)
                for step in self._step_times(team):
                    epochs = efficiency.epochs(team.workers, step.codec, step.period, step.elastic)
                    if epochs is not None:
                        yield Strategy(count, degree, split, step, epochs)

    def fits_on_one(self) -> bool:
        """True if some device holds the model."""
        ask = self.problem.alone
        if ask is None or self.layout is None:
            return ask is None or bool(splits_of(ask(1, None)))
        machine = self.layout.topology
        kinds = {(device.type, device.memory_bytes): device.id for device in machine.devices}
        return any(splits_of(ask(1, sub_topology(machine, [name]))) for name in kinds.values())

    def _step_times(self, team: Team) -> Sequence[StepTime]:
        """The step times with every exchange of gradients; none if no links join the workers."""
        try:
            known = self.problem.efficiency
            return list(
                self.step_times.step_times(self.problem.work, team, known.periods, tuple(known.elastic_factors))
            )
        except InfeasibleError:
            return ()

    def _splits(self, count: int, degree: int) -> tuple[WorkerSplit, ...]:
        """The splits of a worker; on a machine, the splits of the slowest of the chosen workers."""
        ask = self.problem.alone if degree == 1 else self.problem.model_parallel
        if ask is None:
            return (ALONE,)
        if self.layout is None:
            return splits_of(ask(degree, None))
        # For more devices than the machine has, the workers of the whole machine are representative.
        there = len(self.layout.topology.devices)
        kinds = self.layout.kinds(min(count, there - there % degree), degree) if degree <= there else ()
        answers = [splits_of(ask(degree, sub_topology(self.layout.topology, worker))) for worker in kinds]
        if not all(answers):
            return ()
        return min(answers, key=lambda splits: max(split.speedup for split in splits), default=())


def plan_notes(
    plan: HybridPlan, graph: OpGraph | None = None, efficiency: StatisticalEfficiency | None = None
) -> tuple[str, ...]:
    """Notes on unknown epochs, assumed factors of codecs, and batch norm in pipelines.

    `graph`: Graph of a worker's step; None omits the note on batch norm. `efficiency`: The epochs of the plan; None
    omits the note on codecs.
    """
    notes = []
    if unknown := [each.devices for each in plan.budgets if not each.is_compared]:
        notes.append(
            f"epochs of data parallelism are not known for {unknown[0]} to {unknown[-1]} workers, so no strategy is "
            "compared with it there; measure them (dlplacer epochs), or give 'critical_batch' in their file"
        )
    used = [best for each in plan.budgets if (best := each.best) is not None]
    assumed = {best.step.codec for best in used} - set(efficiency.codec_factors) if efficiency is not None else ()
    notes += [
        f"epochs with codec {codec!r} are assumed to grow with its noise, up to {CODECS[codec]:g} times; measure "
        "them (dlplacer epochs --codecs), or give 'codec_factor' in the epochs file: 1 if training takes as long, "
        "as in the tables of Wen et al. 2017"
        for codec in sorted(assumed)
        if CODECS[codec] > 1
    ]
    most = max((strategy.split.micro_batches for strategy in used), default=1)
    return (*notes, *(() if graph is None else mixing_warnings(graph, most)))
