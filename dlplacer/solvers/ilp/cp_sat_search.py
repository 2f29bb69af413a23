"""Running CP-SAT on a model: parameters, deadline, early stops, improvements as they come."""

import math
from collections.abc import Callable
from enum import Enum
from functools import partial

from ortools.sat.python import cp_model

from dlplacer.core.errors import InternalError
from dlplacer.problem.route_table import ScheduledTransfer
from dlplacer.solvers.decode.decode import compact
from dlplacer.solvers.ilp.constraints import Literal, Variables
from dlplacer.solvers.ilp.solver_thread import PARAMS as THREAD
from dlplacer.solvers.ilp.solver_thread import limit, solve_in_thread
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, with_transfers
from dlplacer.solvers.instance.time_limit import counts_work, time_is_up

_TUNED_PORTFOLIO = 8
"""From so many workers on CP-SAT's own portfolio is used; 8 is the smallest that its authors tune."""

_SUBSOLVERS = ("no_lp", "quick_restart_no_lp", "default_lp", "quick_restart", "max_lp", "reduced_costs")
"""Full searches below that; the first ones leave out the linear relaxation, which slows these models down."""


def new_solver(
    workers: int, seed: int, seconds: float, work: float = math.inf, relaxes_well: bool = False
) -> cp_model.CpSolver:
    """A solver with the parameters that every search here uses.

    The inclusion work limit of 0 guards against wrong OPTIMAL answers (OR-Tools issue 5293).
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed % 2**31
    limit(solver, seconds, work)
    # Presolve drops the enforcement of rows whose Boolean coefficients pass 2^31 in sum: a wrong OPTIMAL (issue 5293).
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.catch_sigint_signal = False
    # Precedences between ops of one device cost more to find than they prune.
    solver.parameters.use_precedences_in_disjunctive_constraint = False
    if relaxes_well:
        return solver
    if workers == 1:
        solver.parameters.linearization_level = 0
    elif workers < _TUNED_PORTFOLIO:
        solver.parameters.subsolvers.extend(_SUBSOLVERS[: max(2, workers - 1)])
    return solver


def read_schedule(
    variables: Variables,
    instance: Instance,
    is_true: Callable[[Literal], bool],
    value: Callable[[cp_model.IntVar], int],
) -> Schedule:
    """The schedule of a solution, every op as early as its placement and order allow."""
    place = [next(device for device, there in row.items() if is_true(there)) for row in variables.place]
    start = [value(variable) for variable in variables.start]
    return compact(instance, [place[block] for block in instance.block], start)


def read_schedules(
    variables: Variables,
    instance: Instance,
    is_true: Callable[[Literal], bool],
    value: Callable[[cp_model.IntVar], int],
) -> list[Schedule]:
    """The schedules that a solution suggests.

    Where transfers are part of the model: with transfers decided anew, with all things moved early in the order that
    the solution has, and as it is, which may be needed where waiting saves memory.
    """
    found = read_schedule(variables, instance, is_true, value)
    if instance.traffic is None or not variables.optional_transfers:
        return [found]
    start = tuple(map(value, variables.start))
    transfers = [
        ScheduledTransfer(optional.request, optional.target, optional.route, tuple(map(value, optional.start)))
        for optional in variables.optional_transfers
        if is_true(optional.used)
    ]
    early = with_transfers(instance, instance.traffic, found.device, start, transfers)
    wanted = {(send.request, send.target): send for send in reversed(transfers)}
    kept = tuple(wanted[send.request, send.target] for send in early.transfers)
    makespan = max(begin + instance.duration[op][found.device[op]] for op, begin in enumerate(start))
    return [early, found, Schedule(found.device, start, makespan, kept)]


Reader = Callable[[Callable[[Literal], bool], Callable[[cp_model.IntVar], int]], list[Schedule]]
"""(values of literals, values of variables) → the schedules that a solution suggests."""


def reader(variables: Variables, instance: Instance) -> Reader:
    """The reader of a model with start times: see `read_schedules`."""
    return partial(read_schedules, variables, instance)


class SearchEnd(Enum):
    """The proof with which a search ends."""

    INFEASIBLE = "the model has no solution"
    OPTIMAL = "no solution is better than the incumbent's"
    UNDECIDED = "time or work was up first"


def search(
    model: cp_model.CpModel,
    read: Reader,
    incumbent: Incumbent,
    seconds: float,
    work: float = math.inf,
    relaxes_well: bool = False,
) -> SearchEnd:
    """Solve a model for some time and return what is proven; better schedules and bounds go to the incumbent.

    A solver that does not heed the time limit is left behind.

    Parameters
    ----------
    seconds
        Limit on the time that passes.
    work
        Limit in CP-SAT's deterministic seconds, which one worker spends in the same way every time; several workers
        get as much time as that takes.
    relaxes_well
        Whether the linear relaxation is close: then searches are those that CP-SAT chooses itself, which use it.
    """
    budget = incumbent.budget
    if seconds <= 0:
        return SearchEnd.UNDECIDED
    if budget.workers > 1:
        # Several workers are not deterministic anyway, and each would end alone once it has spent its work: with limits
        # of their own one of two was idle for most of the time.
        seconds, work = min(seconds, THREAD.seconds_of_work * work), math.inf
    solver = new_solver(budget.workers, budget.seed, seconds, work, relaxes_well)
    solver.parameters.relative_gap_limit = budget.gap
    listener = _Listener(read)
    solver.best_bound_callback = listener.on_bound

    def look() -> bool:
        if counts_work():
            return budget.stop.is_set()
        listener.deliver(incumbent)
        return budget.stop.is_set() or incumbent.closed or time_is_up()

    # A thread, as Ctrl-C and `stop` have to be heard during presolve, which calls nothing back.
    status = solve_in_thread(solver, model, seconds, look, listener)
    if status is None:
        return SearchEnd.UNDECIDED
    listener.deliver(incumbent)
    if status == cp_model.MODEL_INVALID:
        raise InternalError(f"CP-SAT refuses the model: {model.validate()}; please report this graph and topology")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        incumbent.raise_bound(_whole(solver.best_objective_bound))
    return _ENDS.get(status, SearchEnd.UNDECIDED)


_ENDS = {cp_model.INFEASIBLE: SearchEnd.INFEASIBLE, cp_model.OPTIMAL: SearchEnd.OPTIMAL}


class _Listener(cp_model.CpSolverSolutionCallback):
    """Keeps what the solver's threads report until the main thread delivers it."""

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
    """The whole number of ticks that a bound from floating-point arithmetic proves."""
    # CP-SAT hands out its integer bounds as floats.
    return math.ceil(bound - 1e-3) if math.isfinite(bound) else 0
