"""The default method: the heuristics' schedules, then parts of the machine and the machine itself, phase by phase."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf

from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import critical_path, whole_area
from dlplacer.solvers.decode.machine_code import is_kept
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.schedule import Begin, Budget, Incumbent, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import ask_time, within
from dlplacer.solvers.local_search.compile_ahead import HEURISTICS_CODE, compile_in_thread
from dlplacer.solvers.machine_parts import PartSearch
from dlplacer.solvers.starts import StartMethod, StartSearch, single_device


@dataclass(frozen=True)
class MachineCodeParams:
    """When the heuristics' machine code is loaded, and when it is compiled before it is used.

    Attributes
    ----------
    load_from, load_from_s
        Ops above which, and seconds left from which it is loaded.
    compile_from, compile_from_s
        Ops × devices above which it is compiled, as the heuristics would take as long in Python; and seconds left.
    """

    load_from: int = 40
    load_from_s: float = 4.0
    compile_from: int = 16_000
    compile_from_s: float = 20.0


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
    _load_code(instance, incumbent)
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

    if instance.traffic is not None and "parts" not in incumbent.budget.without:
        parts.run_ahead()
    run_phases(PhaseContext(problem, instance, heuristics.surrogate, incumbent, later), PHASES)


def _unless_out_of_time() -> bool:
    ask_time()
    return False


def _load_code(instance: Instance, incumbent: Incumbent) -> None:
    """Load machine code that is kept; compile it where heuristics take longer without: 10,000 ops on 32 devices."""
    size, first = instance.op_count * instance.device_count, incumbent.budget.for_first
    if is_kept(HEURISTICS_CODE):
        if instance.op_count > PARAMS.load_from and incumbent.budget.left_s >= PARAMS.load_from_s:
            # Half a second; from here on small problems have machine code too.
            in_thread(partial(import_module, "numba"), inf, _unless_out_of_time, lambda: None)
    elif size > PARAMS.compile_from and first.left_s > PARAMS.compile_from_s and instance.device_count > 1:
        compile_in_thread(HEURISTICS_CODE, lambda: not first.left_s)
