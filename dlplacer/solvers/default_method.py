"""The default method: the heuristics' schedules, then parts of the machine and the machine itself, phase by phase."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf

from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import critical_path, whole_area
from dlplacer.solvers.decode.machine_code import is_kept
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.incumbent import Begin, Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import ask_time, within
from dlplacer.solvers.local_search.compile_ahead import HEURISTICS_CODE, compile_in_thread, compiling_ahead
from dlplacer.solvers.parts import PartSearch
from dlplacer.solvers.starts import StartMethod, StartSearch, single_device


@dataclass(frozen=True)
class MachineCodeParams:
    """When machine code is made ahead of what asks for it.

    Attributes
    ----------
    first_from, first_from_s
        Ops × devices above which the heuristics' code is compiled first, as they would take as long in Python; and
        seconds left from which it is.
    ahead_from, ahead_from_s
        Ops above which, and seconds left from which, all code is compiled meanwhile, once for all on a machine.
    """

    first_from: int = 16_000
    first_from_s: float = 20.0
    ahead_from: int = 40
    ahead_from_s: float = 4.0


PARAMS = MachineCodeParams()


def solve_ilp(problem: Problem, budget: Budget, starts: Iterable[StartMethod], begin: Begin) -> Outcome:
    """The best schedule found within the budget, and a makespan that none can beat.

    It begins with the schedules of those heuristics that fit into a share of the time (`StartSearch`): no plan is worse
    than theirs. One that did not fit may by itself find more.

    Parameters
    ----------
    starts
        The heuristics, the quick ones first: those that would not fit into the time are left out.
    begin
        Called before all else, with an incumbent that is empty: a warm start.

    Raises
    ------
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    InternalError
        If a proven bound contradicts a schedule.
    """
    instance = build_instance(problem)
    incumbent = Incumbent(budget, admission(problem, instance))
    begin(instance, incumbent)
    if not incumbent.closed:
        phases = partial(_run_phases, problem, instance, incumbent, list(starts))
        within(lambda: incumbent.best is not None and not incumbent.budget.left_s, phases)
    best = incumbent.best
    return Outcome(None if best is None else ProblemSchedule.of(problem, instance, best), incumbent.bound)


def _run_phases(problem: Problem, instance: Instance, incumbent: Incumbent, starts: list[StartMethod]) -> None:
    """The phases in order. Each goes on from what `incumbent` holds, and does nothing once the gap is closed."""
    incumbent.raise_bound(max(critical_path(instance), whole_area(instance)))
    incumbent.offer(single_device(instance, incumbent))
    _compile_first(instance, incumbent)
    heuristics = StartSearch(problem, instance, incumbent, starts)
    heuristics.run()
    best = incumbent.best
    if best is not None and (best.makespan == incumbent.bound or not incumbent.budget.left_s):
        return
    # It loads solvers: a third of a second, that first schedules at a limit of one second do without.
    in_thread(partial(import_module, "dlplacer.solvers.phases"), inf, _unless_out_of_time, lambda: None)
    from dlplacer.solvers.phases import PHASES, PhaseContext, run_phases

    def search_part(problem: Problem, instance: Instance, incumbent: Incumbent) -> None:
        run_phases(PhaseContext(problem, instance, instance, incumbent, is_part=True), PHASES)

    parts = PartSearch(problem, instance, incumbent, starts, search_part)

    def later() -> None:
        heuristics.go_on()
        parts.run()

    with _code_ahead(instance, incumbent):
        if instance.traffic is not None and "parts" not in incumbent.budget.without:
            parts.run_ahead()
        run_phases(PhaseContext(problem, instance, heuristics.surrogate, incumbent, later), PHASES)


def _unless_out_of_time() -> bool:
    ask_time()
    return False


def _compile_first(instance: Instance, incumbent: Incumbent) -> None:
    """Have the heuristics' code compiled where they take longer without: 10,000 ops on 32 devices take minutes."""
    size, first = instance.op_count * instance.device_count, incumbent.budget.for_first
    if size > PARAMS.first_from and first.left_s > PARAMS.first_from_s and instance.device_count > 1:
        compile_in_thread(HEURISTICS_CODE, lambda: not first.left_s)


def _code_ahead(instance: Instance, incumbent: Incumbent) -> AbstractContextManager[None]:
    """Have all code compiled while other phases run, where there is time to use it; load what is kept."""
    wanted = instance.op_count > PARAMS.ahead_from and not incumbent.closed
    if not wanted or incumbent.budget.left_s < PARAMS.ahead_from_s:
        return nullcontext()
    if is_kept(HEURISTICS_CODE):
        # Half a second; from here on small problems have machine code too.
        in_thread(partial(import_module, "numba"), inf, _unless_out_of_time, lambda: None)
    # One worker is one busy core: then whoever calls code compiles it, if it has the time.
    return compiling_ahead() if incumbent.budget.workers > 1 else nullcontext()
