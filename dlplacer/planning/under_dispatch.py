"""The plan for a machine whose devices wait for the processes that issue their ops.

Dispatch only delays. A plan under it is a plan of the problem without it, where every start may be earlier, so every
bound of that problem holds; `dlplacer.problem.dispatch.least_step_s` adds another. The solvers know of neither. So
candidates are replayed with dispatch, and the shortest replayed plan is taken, whatever its schedule promised:

- every single device;
- the schedule of the method on the problem itself, which gives the bound too;
- for the default method, those of each heuristic where every op takes at least as long as its issue, with all devices
  of its process at work;
- for the default method, placements and orders near the best of these, until the gap or the limit is reached.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from dlplacer.core.errors import InputError, InternalError
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.planning.assemble import assemble, in_seconds, plan_of
from dlplacer.planning.one_device import replayed_s
from dlplacer.problem.dispatch import dispatch_of, least_step_s
from dlplacer.problem.live_memory import may_bind, memory_use
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.instance.schedule import Begin, Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import count_work, now, within
from dlplacer.solvers.methods import DEFAULT_METHOD, HEURISTICS, METHODS, SOLVERS, schedules_by, solve_from

Judge = Callable[[Sequence[int], Sequence[int]], float | None]
"""[op] → device, and all ops in order → seconds of the replayed step; None if that is no plan."""


@dataclass(frozen=True)
class SearchParams:
    """Parameters of a climb: the length of its memory, and its end.

    Attributes
    ----------
    memory
        Steps that a climb looks back: a longer memory leaves deeper valleys and takes longer to descend.
    patience
        Steps without a better length, as a multiple of the ops, after which a climb begins anew.
    again
        Share of moves that are followed by another one before the replay.
    """

    memory: int = 50
    patience: int = 100
    again: float = 0.3


PARAMS = SearchParams()


class ReplayedSearch:
    """Climbs, each from the best placement and order so far, disturbed more where the last climb found nothing.

    Late acceptance hill climbing (Burke and Bykov 2017): a move takes a run of the order to another device, or an op to
    another place in the order. It is accepted if the replay is no longer than the current one, or than the one of so
    many steps ago: there is no temperature to set.
    """

    def __init__(self, problem: Problem, judge: Judge, seed: int) -> None:
        self.problem, self.random = problem, random.Random(seed)
        self._judge, self._known = judge, dict[tuple[int, ...], float | None]()
        self._is_ordered = problem.options.contention == "link"
        self._process = dispatch_of(problem.topology).process
        self.reads = [[arc.source for arc in arcs] for arcs in problem.arcs_into]
        self.readers = [[arc.target for arc in arcs] for arcs in problem.arcs_from]

    def judge(self, device: Sequence[int], order: Sequence[int]) -> float | None:
        """Seconds of the replayed step; None if that is no plan."""
        # Without contended links the order within each process decides alone. Walks on few ops meet plans again.
        kept = order if self._is_ordered else sorted(order, key=lambda op: self._process[device[op]])
        key = (*device, *kept)
        if key not in self._known:
            self._known[key] = self._judge(device, order)
        return self._known[key]

    def run(self, device: Sequence[int], order: Sequence[int], is_over: Callable[[], bool]) -> None:
        """Search from a plan until it is over; the judge keeps the best."""
        best = list(device), list(order), self.judge(device, order)
        kicks = 0
        while not is_over():
            current = list(best[0]), list(best[1])
            for _ in range(kicks):
                self._move(*current)
            found = self._climb(*current, is_over)
            if found[2] is not None and (best[2] is None or found[2] < best[2]):
                best, kicks = found, 0
            else:
                kicks = kicks % (2 * self.problem.op_count) + 1

    def _climb(
        self, device: list[int], order: list[int], is_over: Callable[[], bool]
    ) -> tuple[list[int], list[int], float | None]:
        length = best = self.judge(device, order) or math.inf
        best_device, best_order = device, order
        memory, idle, step = [length] * PARAMS.memory, 0, 0
        while idle < PARAMS.patience * self.problem.op_count and not is_over():
            new_device, new_order = device.copy(), order.copy()
            self._move(new_device, new_order)
            while self.random.random() < PARAMS.again:
                self._move(new_device, new_order)
            found = self.judge(new_device, new_order)
            slot, idle, step = step % PARAMS.memory, idle + 1, step + 1
            if found is not None and (found <= length or found <= memory[slot]):
                device, order, length = new_device, new_order, found
                if length < best:
                    best, best_device, best_order, idle = length, device, order, 0
            memory[slot] = min(memory[slot], length)
        return best_device, best_order, None if math.isinf(best) else best

    def _move(self, device: list[int], order: list[int]) -> None:
        if self.random.random() < 0.5:
            self._to_device(device, order)
        else:
            self._to_place(order)

    def _to_device(self, device: list[int], order: Sequence[int]) -> None:
        """Take those ops of a run of the order that share a device to another one, with their groups."""
        first, count = self.random.randrange(len(order)), len(order)
        last = first + int(count ** self.random.random())
        here, target = device[order[first]], self.random.randrange(self.problem.device_count)
        moved = [op for op in order[first:last] if device[op] == here]
        for op in moved:
            group = self.problem.group_of[op]
            together = (op,) if group is None else self.problem.groups[group]
            if all(target in self.problem.allowed[each] for each in together):
                for each in together:
                    device[each] = target

    def _to_place(self, order: list[int]) -> None:
        """Move an op to another place between its producers and its first reader."""
        place = self.random.randrange(len(order))
        op = order[place]
        reads, readers = set(self.reads[op]), set(self.readers[op])
        low, high = place, place
        while low and order[low - 1] not in reads:
            low -= 1
        while high + 1 < len(order) and order[high + 1] not in readers:
            high += 1
        if low < high:
            del order[place]
            order.insert(self.random.randint(low, high), op)


Solver = Callable[[Problem, Budget], Outcome]

_REPLAYED_OP_S = 1e-4
"""Seconds of work for an op of a replay."""

_STARTS_SHARE, _SOLVE_SHARE = 0.5, 0.5
"""Of the time, for heuristics; of what they leave, for the problem without dispatch. The rest is for the search."""

_SAME = 1e-9
"""Relative difference of two sums of the same times."""


class Candidates:
    """The best plan so far of those that were replayed; it does not say how it was made."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bound = 0
        self.makespan_s = math.inf
        self._best: tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]] | None = None
        self._may_overflow = problem.options.memory == "sum" or may_bind(problem)
        self._least_s = least_step_s(problem, dispatch_of(problem.topology))

    @property
    def best(self) -> Plan | None:
        """The best plan with its bound."""
        return None if self._best is None else plan_of(self.problem, *self._best, Outcome(None, self.bound), "", 0, {})

    @property
    def found(self) -> bool:
        """True once there is a plan."""
        return self._best is not None

    def offer(self, schedule: ProblemSchedule | None) -> None:
        """Replay placement and order of a schedule, of this problem or one with other times."""
        if schedule is None:
            return
        self.judge(schedule.device, schedule.order)
        if schedule.problem is self.problem and schedule.transfers is not None:
            self._keep(*in_seconds(self.problem, schedule))

    def judge(self, device: Sequence[int], order: Sequence[int]) -> float | None:
        """Seconds of a placement replayed in an order, which is kept if it is the best; None if it is no plan."""
        problem = self.problem
        if any(problem.delay[arc.size][device[arc.source]][device[arc.target]] is None for arc in problem.arcs):
            return None
        count_work(_REPLAYED_OP_S * problem.op_count)
        return self._keep(*replay(problem, device, order))

    def raise_bound(self, ticks: int) -> None:
        """Keep the higher bound of the problem without dispatch."""
        self.bound = max(self.bound, ticks)

    def closed(self, gap: float) -> bool:
        """True if the best plan is within a gap of its bound."""
        bound_s = max(float(self.bound * self.problem.tick_s), self._least_s)
        return self.found and self.makespan_s - bound_s <= max(gap, _SAME) * self.makespan_s

    def _keep(self, ops: tuple[ScheduledOp, ...], transfers: tuple[Transfer, ...]) -> float | None:
        # Ops that wait may let tensors live longer than there is memory for.
        if self._may_overflow and any(
            use.capacity_bytes is not None and use.peak_bytes > use.capacity_bytes
            for use in memory_use(self.problem, ops, transfers).values()
        ):
            return None
        length_s = max(entry.end_s for entry in ops)
        if length_s < self.makespan_s:
            self.makespan_s, self._best = length_s, (ops, transfers)
        return length_s


def best_plan(problem: Problem, method: str, budget: Budget, begin: Begin | None = None) -> tuple[Plan | None, Outcome]:
    """The best plan of a method, None if it finds none, and its outcome.

    Raises
    ------
    InternalError
        If the bound is above the schedule.
    """
    objective = problem.options.objective
    solve = SOLVERS[objective][method] if begin is None else partial(solve_from, begin)
    if dispatch_of(problem.topology).delays:
        solve = _single if method == "single" else solve
        candidates = best_under_dispatch(problem, solve, budget, combine=method == DEFAULT_METHOD)
        return candidates.best, Outcome(None, candidates.bound)
    outcome = solve(problem, budget)
    found = outcome.schedule
    if found is None:
        return None, outcome
    if objective == "makespan" and outcome.lower_bound > found.makespan:
        raise InternalError(
            f"the lower bound of {outcome.lower_bound} ticks is above the makespan of {found.makespan} "
            "ticks of a schedule; please report it",
            bound_ticks=outcome.lower_bound,
            device=list(found.device),
            start_ticks=list(found.start),
        )
    return assemble(problem, outcome, found, method, 0.0, {}), outcome


def _single(problem: Problem, budget: Budget) -> Outcome:
    """The single device that is best when it waits for its process: another one may be best when none does."""
    best = min(singles(problem), key=partial(replayed_s, problem), default=None)
    return replace(METHODS["single"](problem, budget), schedule=best)


def best_under_dispatch(problem: Problem, solve: Solver, budget: Budget, *, combine: bool) -> Candidates:
    """The candidates of a method, with the best of them and its bound.

    Parameters
    ----------
    combine
        True if the plan may be taken from single devices, heuristics and a local search too: the default method's may.
    """
    candidates = Candidates(problem)
    tick_s = float(problem.tick_s)

    def report(makespan: int | None, bound: int) -> None:
        candidates.raise_bound(bound)
        budget.report(round(candidates.makespan_s / tick_s) if candidates.found else None, candidates.bound)

    if combine:
        for schedule in singles(problem):
            if not (budget.stop.is_set() and candidates.found):
                candidates.offer(schedule)
        report(None, 0)
        if candidates.closed(budget.gap):
            return candidates
        _offer_starts(candidates, budget)
    found = solve(problem, _share(replace(budget, report=report), _SOLVE_SHARE if combine else 1.0))
    candidates.offer(found.schedule)
    candidates.raise_bound(found.lower_bound)
    if combine:
        report(None, candidates.bound)
        _search(candidates, budget, report)
    return candidates


def _offer_starts(candidates: Candidates, budget: Budget) -> None:
    """Offer a schedule of each heuristic, of the problem with floors if there is one, in a share of the time."""
    until = now() + _STARTS_SHARE * budget.left_s
    problem = candidates.problem if budget.stop.is_set() else surrogate(candidates.problem) or candidates.problem

    def is_over() -> bool:
        return budget.stop.is_set() or now() > until

    def ask(method: str) -> None:
        for schedule in schedules_by(method, problem):
            candidates.offer(schedule)
            if schedule is not None:
                return

    for method in HEURISTICS:
        # One whose package is not installed is left out.
        with suppress(InputError):
            within(is_over, partial(ask, method))


def _share(budget: Budget, share: float) -> Budget:
    return replace(budget, deadline=budget.deadline - (1 - share) * budget.left_s)


def _search(candidates: Candidates, budget: Budget, report: Callable[[int | None, int], None]) -> None:
    """Look for better plans near the best one, or for any, until the gap or the limit is reached."""

    def judge(device: Sequence[int], order: Sequence[int]) -> float | None:
        before_s = candidates.makespan_s
        found = candidates.judge(device, order)
        if candidates.makespan_s < before_s:
            report(None, candidates.bound)
        return found

    search = ReplayedSearch(candidates.problem, judge, budget.seed)
    begin = _as_simulated(candidates) if candidates.found else _anywhere(candidates.problem)
    search.run(*begin, lambda: not budget.left_s or candidates.closed(budget.gap))


def _anywhere(problem: Problem) -> tuple[list[int], list[int]]:
    """A placement that may be no plan, and the ops in an order."""
    device = [min(allowed) for allowed in problem.allowed]
    for group in problem.groups:
        shared = set(problem.allowed[group[0]]).intersection(*(problem.allowed[op] for op in group))
        for op in group:
            device[op] = min(shared)
    return device, list(problem.topological)


def surrogate(problem: Problem) -> Problem | None:
    """The problem with every op as long as its issue, where all devices of the process are at work.

    None if that hardly changes the work of the ops. It is no relaxation, as ops that were issued ahead do not wait
    behind a long one; its schedules are simulated.
    """
    graph, dispatch = problem.graph, dispatch_of(problem.topology)
    floors: dict[str, float] = {}
    for here, device in enumerate(problem.topology.devices):
        floor_s = dispatch.seconds[here] * dispatch.sharing(here)
        floors[device.type] = min(floor_s, floors.get(device.type, floor_s))
    ops = tuple(_raised(op, floors) for op in graph.ops)
    before_s, after_s = (sum(op.time_on(kind) or 0.0 for op in each for kind in floors) for each in (graph.ops, ops))
    if after_s < 1.01 * before_s:
        return None
    return build_problem(replace(graph, ops=ops), problem.topology, problem.options, problem.reached_s)


def _raised(op: Op, floors: Mapping[str, float]) -> Op:
    times = {kind: op.time_on(kind) for kind in floors}
    raised = {
        kind: max(time_s, floors[kind]) if time_s else time_s for kind, time_s in times.items() if time_s is not None
    }
    return replace(op, time_s=raised)


def _as_simulated(candidates: Candidates) -> tuple[list[int], list[int]]:
    """[op] → device in the best plan; all ops by start."""
    plan, problem = candidates.best, candidates.problem
    assert plan is not None
    home, ops = problem.topology.device_index, problem.graph.ops
    times = [(plan.scheduled[op.id].start_s, plan.scheduled[op.id].end_s) for op in ops]
    return [home[plan.placement[op.id]] for op in ops], sorted(problem.topological, key=times.__getitem__)
