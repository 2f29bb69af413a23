"""The default method: the heuristics' schedules, then parts of the machine and the machine itself, phase by phase."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING

from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import critical_path, whole_area
from dlplacer.solvers.decomposition.device_subset import device_subsets
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.incumbent import Begin, Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import ask_time, within
from dlplacer.solvers.local_search.compile_ahead import HEURISTICS_CODE, compile_in_thread, compiling_ahead
from dlplacer.solvers.local_search.kept_code import is_kept
from dlplacer.solvers.parts import PartSearch
from dlplacer.solvers.starts import PARAMS as STARTS
from dlplacer.solvers.starts import StartSearch, single_device

if TYPE_CHECKING:
    from dlplacer.solvers.local_search.greedy_schedules import CompiledHeuristics


@dataclass(frozen=True)
class CompiledParams:
    """When heuristics in machine code come first, and when annealing's code is compiled meanwhile.

    Attributes
    ----------
    kept_from
        Ops × devices above which they are worth their loading, half a second, where the code is kept from an earlier
        process.
    compiled_from, compiled_from_s
        Ops above which they are worth their compilation, and seconds left from which they are.
    published_share, share
        For those that are published, and for all.
    compile_ahead_from, compile_ahead_from_s
        Ops above which, and seconds left from which, annealing's code is compiled meanwhile, once for all on a machine.
    """

    kept_from: int = 1000
    compiled_from: int = 2000
    compiled_from_s: float = 20.0
    published_share: float = 0.3
    share: float = 0.15
    compile_ahead_from: int = 40
    compile_ahead_from_s: float = 4.0


PARAMS = CompiledParams()


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
    compiled = _compiled(problem, instance, incumbent)
    offered = compiled is not None and _start_compiled(problem, instance, incumbent, compiled)
    heuristics = StartSearch(problem, instance, incumbent, _others(incumbent, starts, compiled, offered))
    heuristics.run(PARAMS.share if offered else STARTS.share)
    best = incumbent.best
    if best is not None and (best.makespan == incumbent.bound or not incumbent.budget.left_s):
        return
    # It loads solvers: a third of a second, that first schedules at a limit of one second do without.
    in_thread(partial(import_module, "dlplacer.solvers.phases"), inf, _unless_out_of_time, lambda: None)
    from dlplacer.solvers.phases import AGAIN, PHASES, PhaseContext, run_phases

    def search_part(problem: Problem, instance: Instance, incumbent: Incumbent) -> None:
        run_phases(PhaseContext(problem, instance, instance, incumbent, is_part=True), PHASES)

    parts = PartSearch(problem, instance, incumbent, starts, search_part, compiled is not None)

    def later() -> None:
        heuristics.go_on()
        parts.run()

    with _annealing_ahead(instance, incumbent):
        if instance.traffic is not None and "parts" not in incumbent.budget.without:
            parts.run_ahead()
        run_phases(PhaseContext(problem, instance, heuristics.surrogate, incumbent, later), PHASES)
        run_phases(PhaseContext(problem, instance, heuristics.surrogate, incumbent), [AGAIN])


def _unless_out_of_time() -> bool:
    ask_time()
    return False


def _annealing_ahead(instance: Instance, incumbent: Incumbent) -> AbstractContextManager[None]:
    """Have annealing's code compiled while other phases run, where it is likely to be called."""
    wanted = instance.traffic is not None and instance.op_count > PARAMS.compile_ahead_from and not incumbent.closed
    # One worker is one busy core: then annealing compiles its own code, if it has the time.
    wanted = wanted and incumbent.budget.workers > 1
    return compiling_ahead() if wanted and incumbent.budget.left_s > PARAMS.compile_ahead_from_s else nullcontext()


def _compiled(problem: Problem, instance: Instance, incumbent: Incumbent) -> "CompiledHeuristics | None":
    """Heuristics in machine code where links are contended, if there is time for them.

    By HEFT 10,000 ops on 32 devices take half a minute in Python, here 1 s.
    """
    if "compiled rules" in incumbent.budget.without:
        return None
    left_s = incumbent.budget.for_first.left_s
    if instance.op_count > PARAMS.compiled_from and left_s > PARAMS.compiled_from_s and instance.device_count > 1:
        compile_in_thread(HEURISTICS_CODE, lambda: not incumbent.budget.for_first.left_s)
    return kept_heuristics(problem, instance)


def kept_heuristics(problem: Problem, instance: Instance) -> "CompiledHeuristics | None":
    """Heuristics in machine code that is kept from an earlier process, where they are worth their loading."""
    size = instance.op_count * instance.device_count
    if instance.traffic is None or instance.device_count == 1 or size <= PARAMS.kept_from:
        return None
    if not is_kept(*HEURISTICS_CODE):
        return None
    if kept_heuristics not in problem.derived:
        from dlplacer.solvers.local_search.greedy_schedules import CompiledHeuristics

        problem.derived[kept_heuristics] = CompiledHeuristics.of(instance)
    return problem.derived[kept_heuristics]  # type: ignore[no-any-return]


def _start_compiled(problem: Problem, instance: Instance, incumbent: Incumbent, compiled: "CompiledHeuristics") -> bool:
    """Many of them, also on parts of the machine, such as one host of a cluster, for which Python has no time.

    Returns whether they found anything. Where HEFT finds no room they are not asked: others have to be, and surrogates.
    """
    left_s = incumbent.budget.for_first.left_s
    if not compiled.finds_room(problem, incumbent):
        return False
    subsets = tuple(range(instance.device_count)), *device_subsets(problem, instance)
    return compiled.offer(incumbent, subsets, PARAMS.published_share * left_s, PARAMS.share * left_s)


def _others(
    incumbent: Incumbent, starts: list[StartMethod], compiled: "CompiledHeuristics | None", offered: bool
) -> list[StartMethod]:
    """The heuristics that machine code has not been asked for, the quickest first; all where that is not enough."""
    if compiled is None:
        return starts
    if not offered or incumbent.best is None or incumbent.refused:
        return compiled.instead_of(starts, incumbent.budget.workers)
    return sorted((start for start in starts if start.in_machine_code is None), key=lambda start: start.cost)
