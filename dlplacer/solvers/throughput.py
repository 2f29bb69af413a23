"""Objective throughput: the placement whose largest load is least, with a bound that CP-SAT proves in integers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from dlplacer.core.errors import InternalError
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.loads import APART, Loads
from dlplacer.problem.problem import Problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.assignment.model import AssignmentModel
from dlplacer.solvers.bounds.bounds import whole_area
from dlplacer.solvers.feasibility.explanation import explain_infeasible
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.ilp.cp_sat_search import new_solver
from dlplacer.solvers.ilp.solver_thread import solve_in_thread
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import is_memory_short, keeping_surrogates, surrogates, tightened
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import now, within
from dlplacer.solvers.local_search.load_annealing import LoadAnnealing, block_orders, contiguous_loads, load_tables


@dataclass(frozen=True)
class ThroughputParams:
    """How the time is divided, and how often a surrogate is tightened; guesses.

    Attributes
    ----------
    anneal_share, anneal_block_s, anneal_rounds
        Of the time, for annealing, at most so many seconds for a block; each round goes on from the best placement.
    whole_share, surrogate_share
        Of the time left, for the problem itself if memory may be short, as it alone gives a bound; and for each
        surrogate.
    rounds
        Times that a surrogate is tightened.
    """

    anneal_share: float = 0.6
    anneal_block_s: float = 0.05
    anneal_rounds: int = 4
    whole_share: float = 0.6
    surrogate_share: float = 0.3
    rounds: int = 6


PARAMS = ThroughputParams()


def solve_throughput(problem: Problem, budget: Budget) -> Outcome:
    """The schedule of least period found within the budget, and a period in ticks that no plan can beat.

    Raises
    ------
    InfeasibleError
        If no placement exists.
    """
    search = _Search(problem, budget)
    within(lambda: search.best is not None and not budget.left_s, search.run)
    best = search.best
    return Outcome(None if best is None else best[1], search.bound)


class _Search:
    """The best schedule with its period, and the best bound so far, in ticks."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget, self.loads = problem, budget, Loads(problem)
        self.instance = build_instance(problem)
        self.bound = whole_area(self.instance)
        self.best: tuple[int, ProblemSchedule] | None = None

    def run(self) -> None:
        """Begin with a list schedule, then search on the instance, and on tighter ones if memory is short."""
        first = construct(self.instance, list_schedule)
        if first is not None:
            self.offer(first.device)
        self._anneal()
        is_short = is_memory_short(self.problem, self.instance) and self.problem.options.memory == "live"
        self._improve(self.instance, PARAMS.whole_share if is_short else 1.0, is_whole=True)
        for surrogate in self._surrogates() if is_short else ():
            if not self.closed and self.budget.left_s:
                self._up_to_a_plan(surrogate)

    def _anneal(self) -> None:
        """Offer contiguous runs, then what annealing makes of the best placement."""
        instance = self.instance
        tables = load_tables(self.problem, instance, self.loads)
        search = LoadAnnealing(tables, instance.capacity, self.loads.link_count)
        for units in block_orders(self.problem, instance, tables):
            if (place := contiguous_loads(instance, tables, units)) is not None:
                self.offer([place[block] for block in instance.block])
        place = None
        if self.best is not None:
            device = self.best[1].device
            place = [device[ops[0]] if ops[0] < len(device) else 0 for ops in instance.members]
        if place is None or self.closed:
            return
        whole_s = min(PARAMS.anneal_share * self.budget.left_s, PARAMS.anneal_block_s * len(instance.members))
        seconds = whole_s / PARAMS.anneal_rounds
        for turn in range(PARAMS.anneal_rounds):
            search.begin(place)
            search.cool(seconds, 1000 * (self.budget.seed + turn), lambda: not self.budget.left_s)
            if search.least >= 0:
                place = search.best.tolist()
                self.offer([place[block] for block in instance.block])

    def offer(self, device: Sequence[int]) -> list[int]:
        """Keep a placement if it is a plan of shorter period; [device] → bytes by which it exceeds the memory."""
        period = max(self.loads.of(device[: self.problem.op_count]))
        if period >= (APART if self.best is None else self.best[0]):
            return [0] * self.instance.device_count
        schedule = self._scheduled(device)
        used = memory_use(self.problem, *replay(self.problem, schedule.device, schedule.order)).values()
        rooms = [(use.peak_bytes, use.capacity_bytes) for use in used]
        excess = [0 if room is None else max(0, size - room) for size, room in rooms]
        if not any(excess):
            self.best = period, schedule
            self._report()
        return excess

    @property
    def closed(self) -> bool:
        """True if the gap that the user asked for is reached."""
        return self.best is not None and self.best[0] - self.bound <= self.budget.gap * self.best[0]

    def _surrogates(self) -> Iterator[Instance]:
        yield from keeping_surrogates(self.problem)
        yield from surrogates(self.problem)

    def _up_to_a_plan(self, surrogate: Instance) -> None:
        for _ in range(PARAMS.rounds):
            place = self._improve(surrogate, PARAMS.surrogate_share, is_whole=False)
            excess = [] if place is None else self.offer([place[block] for block in surrogate.block])
            if place is None or not any(excess):
                return
            surrogate = tightened(surrogate, place, excess)

    def _scheduled(self, device: Sequence[int]) -> ProblemSchedule:
        """A list schedule of a placement: the order decides the makespan, and memory over time."""
        instance, count = self.instance, self.problem.op_count
        found = construct(instance, list_schedule, [device[ops[0]] for ops in instance.members])
        if found is None:
            raise InternalError("a placement within memory has no list schedule; please report this graph and topology")
        return ProblemSchedule(self.problem, found.device[:count], found.start[:count])

    def _improve(self, instance: Instance, share: float, is_whole: bool) -> list[int] | None:
        """The placement by block that CP-SAT finds in a share of the time; None if it finds none."""
        seconds = share * self.budget.left_s
        stop_at = now() + seconds
        most = self.problem.horizon if self.best is None else self.best[0]
        owner = AssignmentModel(self.problem, instance, self.loads, self.bound, max(most, self.bound))
        if self.best is not None:
            device = self.best[1].device
            owner.hint([device[ops[0]] if ops[0] < len(device) else 0 for ops in instance.members], most)
        solver = new_solver(self.budget.workers, self.budget.seed, max(0.0, stop_at - now()), relaxes_well=True)
        solver.parameters.relative_gap_limit = self.budget.gap
        listener = _Listener(owner)
        if is_whole:
            solver.best_bound_callback = listener.on_bound

        def look() -> bool:
            if not is_whole:
                return self.budget.stop.is_set()
            self.bound = max(self.bound, listener.bound)
            if listener.fresh:
                place, listener.fresh = listener.place, False
                self.offer([place[block] for block in instance.block])
            self._report()
            return self.budget.stop.is_set() or self.closed

        status = solve_in_thread(solver, owner.model, max(0.0, stop_at - now()), look, listener)
        if status == cp_model.INFEASIBLE and is_whole and self.best is None:
            raise explain_infeasible(self.problem)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) and is_whole:
            listener.on_bound(solver.best_objective_bound)
        if is_whole:
            look()
        return listener.place or None

    def _report(self) -> None:
        period = None if self.best is None else self.best[0]
        if period is not None and period < self.bound:
            raise InternalError(
                f"the bound of {self.bound} ticks is above a period of {period} ticks; please report this graph and "
                "topology"
            )
        self.budget.report(period, self.bound)


class _Listener(cp_model.CpSolverSolutionCallback):
    """The last placement and the best bound that the solver's threads report."""

    def __init__(self, owner: AssignmentModel) -> None:
        super().__init__()
        self.owner, self.place, self.fresh, self.bound = owner, list[int](), False, 0

    def on_solution_callback(self) -> None:
        self.place, self.fresh = self.owner.read(self.boolean_value), True

    def on_bound(self, bound: float) -> None:
        # CP-SAT hands out its integer bounds as floats.
        self.bound = max(self.bound, math.ceil(bound - 1e-3) if math.isfinite(bound) else 0)
