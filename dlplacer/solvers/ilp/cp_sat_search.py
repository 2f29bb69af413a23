"""Runs of CP-SAT on a model: parameters, deadline, early stops, and improvements as they are found."""

import math
from collections.abc import Callable
from enum import Enum
from functools import partial

from ortools.sat.python import cp_model

from dlplacer.core.errors import InternalError
from dlplacer.problem.route_table import ScheduledTransfer
from dlplacer.solvers.decode.decode import compact
from dlplacer.solvers.ilp.constraints import Literal, Variables
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, with_transfers
from dlplacer.solvers.instance.time_limit import count_work, counts_work, in_thread, time_is_up

_TUNED_PORTFOLIO = 8
"""Workers from which CP-SAT's own portfolio is used: its authors tune no smaller one."""

_SUBSOLVERS = ("no_lp", "quick_restart_no_lp", "default_lp", "quick_restart", "max_lp", "reduced_costs")
"""Full searches for fewer workers; the first ones omit the linear relaxation, which slows these models down."""

_SECONDS_OF_WORK = 4.0
"""Seconds per deterministic second of CP-SAT; 3 to 7 on sections."""


def new_solver(
    workers: int, seed: int, seconds: float, work: float = math.inf, relaxes_well: bool = False
) -> cp_model.CpSolver:
    """A solver limited in elapsed and deterministic seconds; with CP-SAT's own searches if the model `relaxes_well`."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed % 2**31
    if counts_work():
        work = min(work, seconds / _SECONDS_OF_WORK)
    else:
        solver.parameters.max_time_in_seconds = seconds
    solver.parameters.max_deterministic_time = work
    # Presolve drops the enforcement of rows whose Boolean coefficients sum past 2^31: a wrong OPTIMAL (issue 5293).
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.catch_sigint_signal = False
    # Precedences between ops of one device cost more to find than they save.
    solver.parameters.use_precedences_in_disjunctive_constraint = False
    if workers == 1 and not relaxes_well:
        solver.parameters.linearization_level = 0
    elif workers < _TUNED_PORTFOLIO and not relaxes_well:
        solver.parameters.subsolvers.extend(_SUBSOLVERS[: max(2, workers - 1)])
    return solver


def solve_in_thread(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    seconds: float,
    look: Callable[[], bool],
    listener: cp_model.CpSolverSolutionCallback | None = None,
) -> cp_model.CpSolverStatus | None:
    """The status with which CP-SAT ends; None if it ignores its limits and is left behind.

    CP-SAT runs in a thread, because presolve makes no callbacks: so Ctrl-C works, and `look` can end CP-SAT.
    """
    try:
        status = in_thread(lambda: solver.solve(model, listener), seconds, look, solver.stop_search)
    except TimeoutError:
        return None
    count_work(_SECONDS_OF_WORK * solver.deterministic_time)
    return status


Reader = Callable[[Callable[[Literal], bool], Callable[[cp_model.IntVar], int]], list[Schedule]]
"""(values of literals, values of variables) → the schedules that a solution suggests."""


def read_schedules(
    variables: Variables,
    instance: Instance,
    is_true: Callable[[Literal], bool],
    value: Callable[[cp_model.IntVar], int],
) -> list[Schedule]:
    """The schedules that a solution suggests: one, as early as its order allows, or three if transfers are modelled.

    The three: transfers sent early; as solved, because waiting may save memory; with transfers chosen anew.
    """
    place = [next(device for device, there in row.items() if is_true(there)) for row in variables.place]
    start = tuple(map(value, variables.start))
    found = compact(instance, [place[block] for block in instance.block], start)
    if instance.traffic is None or not variables.optional_transfers:
        return [found]
    transfers = [
        ScheduledTransfer(optional.request, optional.target, optional.route, tuple(map(value, optional.start)))
        for optional in variables.optional_transfers
        if is_true(optional.used)
    ]
    early = with_transfers(instance, instance.traffic, found.device, start, transfers)
    wanted = {(send.request, send.target): send for send in reversed(transfers)}
    kept = tuple(wanted[send.request, send.target] for send in early.transfers)
    makespan = max(begin + instance.duration[op][found.device[op]] for op, begin in enumerate(start))
    return [early, Schedule(found.device, start, makespan, kept), found]


def reader(variables: Variables, instance: Instance) -> Reader:
    """The `read_schedules` of a model with start times."""
    return partial(read_schedules, variables, instance)


class SearchEnd(Enum):
    """The proof with which a search ends."""

    INFEASIBLE = "the model has no solution"
    OPTIMAL = "no solution is better than the incumbent's"
    UNDECIDED = "time or work was up first"


def no_schedule_error(known: Schedule) -> InternalError:
    """The error for a model proved infeasible although the schedule `known` obeys it."""
    return InternalError(
        f"CP-SAT finds no schedule of at most {known.makespan} ticks, although one is known; please report this graph "
        "and topology"
    )


_ENDS = {cp_model.INFEASIBLE: SearchEnd.INFEASIBLE, cp_model.OPTIMAL: SearchEnd.OPTIMAL}


def search(
    model: cp_model.CpModel,
    read: Reader,
    incumbent: Incumbent,
    seconds: float,
    work: float = math.inf,
    relaxes_well: bool = False,
) -> SearchEnd:
    """Solve a model for some time and return the proof; better schedules and bounds go to the incumbent."""
    budget = incumbent.budget
    if seconds <= 0:
        return SearchEnd.UNDECIDED
    if budget.workers > 1:
        # Several workers are not deterministic anyway, and with limits of their own some would idle.
        seconds, work = min(seconds, _SECONDS_OF_WORK * work), math.inf
    solver = new_solver(budget.workers, budget.seed, seconds, work, relaxes_well)
    solver.parameters.relative_gap_limit = budget.gap
    listener = _Listener(read)
    solver.best_bound_callback = listener.on_bound

    def look() -> bool:
        if counts_work():
            return budget.stop.is_set()
        listener.deliver(incumbent)
        return budget.stop.is_set() or incumbent.closed or time_is_up()

    status = solve_in_thread(solver, model, seconds, look, listener)
    if status is None:
        return SearchEnd.UNDECIDED
    listener.deliver(incumbent)
    if status == cp_model.MODEL_INVALID:
        raise InternalError(f"CP-SAT refuses the model: {model.validate()}; please report this graph and topology")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        incumbent.raise_bound(_whole(solver.best_objective_bound))
    return _ENDS.get(status, SearchEnd.UNDECIDED)


class _Listener(cp_model.CpSolverSolutionCallback):
    """Reports of the solver's threads, kept until the main thread delivers them."""

    def __init__(self, read: Reader) -> None:
        super().__init__()
        self.read = read
        self.found: list[Schedule] = []
        self.bound = 0

    def on_solution_callback(self) -> None:
        self.found = self.read(self.boolean_value, self.value)

    def on_bound(self, bound: float) -> None:
        self.bound = max(self.bound, _whole(bound))

    def deliver(self, incumbent: Incumbent) -> None:
        found, self.found = self.found, []
        for schedule in found:
            incumbent.offer(schedule)
        incumbent.raise_bound(self.bound)


def _whole(bound: float) -> int:
    """The integer bound proven by a floating-point one, with tolerance because CP-SAT reports bounds as floats."""
    return math.ceil(bound - 1e-3) if math.isfinite(bound) else 0
