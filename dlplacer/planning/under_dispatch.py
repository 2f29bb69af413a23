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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
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

_REPLAYED_OP_S = 1e-4
"""Seconds of work for an op of a replay."""

_STARTS_SHARE, _SOLVE_SHARE = 0.5, 0.5
"""Of the time, for heuristics; of what they leave, for the problem without dispatch. The rest is for the search."""

_SAME = 1e-9
"""Relative difference of two sums of the same times."""

_MEMORY, _PATIENCE, _AGAIN = 50, 100, 0.3
"""Steps that a climb looks back: more leave deeper valleys and take longer to descend. Steps without a better length,
as a multiple of the ops, after which a climb begins anew. Share of moves that another one follows before the replay."""


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
        return _ReplayedSearch(problem, budget).run(method, solve)
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


class _ReplayedSearch:
    """The best plan so far of those that were replayed, and climbs from it, disturbed more after one in vain.

    Late acceptance hill climbing (Burke and Bykov 2017): a move takes a run of the order to another device, or an op to
    another place in the order. It is accepted if the replay is no longer than the current one, or than the one of so
    many steps ago: there is no temperature to set.
    """

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget, self.random = problem, budget, random.Random(budget.seed)
        self.bound, self.makespan_s = 0, math.inf
        self.best: tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]] | None = None
        self.dispatch = dispatch_of(problem.topology)
        self.least_s = least_step_s(problem, self.dispatch)
        self.may_overflow = problem.options.memory == "sum" or may_bind(problem)
        self.known: dict[tuple[int, ...], float | None] = {}
        self.reads = [{arc.source for arc in arcs} for arcs in problem.arcs_into]
        self.readers = [{arc.target for arc in arcs} for arcs in problem.arcs_from]

    def run(self, method: str, solve: Callable[[Problem, Budget], Outcome]) -> tuple[Plan | None, Outcome]:
        """The best plan of a method, of the default one with single devices, heuristics and climbs; and its bound."""
        is_default, problem, budget = method == DEFAULT_METHOD, self.problem, self.budget
        for schedule in singles(problem) if is_default else ():
            if self.best is None or not budget.stop.is_set():
                self.offer(schedule)
        if not (is_default and self._is_closed()):
            if is_default:
                self._offer_starts()
            share = 1 - (_SOLVE_SHARE if is_default else 1.0)
            part = replace(budget, deadline=budget.deadline - share * budget.left_s, report=self._hear)
            outcome = METHODS[method](problem, part) if method == "single" else solve(problem, part)
            if method == "single":
                # Another device than the best one without dispatch may be the best when it waits for its process.
                best = min(singles(problem), key=partial(replayed_s, problem), default=None)
                outcome = replace(outcome, schedule=best)
            self.offer(outcome.schedule)
            self._hear(None, outcome.lower_bound)
            if is_default:
                self._climb_on()
        outcome = Outcome(None, self.bound)
        return None if self.best is None else plan_of(problem, *self.best, outcome, "", 0, {}), outcome

    def offer(self, schedule: ProblemSchedule | None) -> None:
        """Replay placement and order of a schedule, of this problem or one with other times."""
        if schedule is not None:
            self.judge(schedule.device, schedule.order)
            if schedule.problem is self.problem and schedule.transfers is not None:
                self._keep(*in_seconds(self.problem, schedule))

    def judge(self, device: Sequence[int], order: Sequence[int]) -> float | None:
        """Seconds of a placement replayed in an order, which is kept if it is the best; None if it is no plan."""
        problem, process = self.problem, self.dispatch.process
        # Without contended links the order within each process decides alone. Walks on few ops meet plans again.
        is_ordered = problem.options.contention == "link"
        key = (*device, *(order if is_ordered else sorted(order, key=lambda op: process[device[op]])))
        if key not in self.known:
            self.known[key] = None
            if all(problem.delay[arc.size][device[arc.source]][device[arc.target]] is not None for arc in problem.arcs):
                count_work(_REPLAYED_OP_S * problem.op_count)
                self.known[key] = self._keep(*replay(problem, device, order))
        return self.known[key]

    def _keep(self, ops: tuple[ScheduledOp, ...], transfers: tuple[Transfer, ...]) -> float | None:
        # Ops that wait may let tensors live longer than there is memory for.
        if self.may_overflow and any(
            use.capacity_bytes is not None and use.peak_bytes > use.capacity_bytes
            for use in memory_use(self.problem, ops, transfers).values()
        ):
            return None
        length_s = max(entry.end_s for entry in ops)
        if length_s < self.makespan_s:
            self.makespan_s, self.best = length_s, (ops, transfers)
            self._hear(None, self.bound)
        return length_s

    def _hear(self, _makespan: int | None, bound: int) -> None:
        """Keep the higher bound of the problem without dispatch, and report it with the best replayed plan."""
        self.bound = max(self.bound, bound)
        found = None if self.best is None else round(self.makespan_s / float(self.problem.tick_s))
        self.budget.report(found, self.bound)

    def _is_closed(self) -> bool:
        """True if the best plan is within the gap of its bound."""
        bound_s = max(float(self.bound * self.problem.tick_s), self.least_s)
        gap = max(self.budget.gap, _SAME)
        return self.best is not None and self.makespan_s - bound_s <= gap * self.makespan_s

    def _offer_starts(self) -> None:
        """Offer a schedule of each heuristic, of the problem with floors if there is one, in a share of the time."""
        stop, until = self.budget.stop, now() + _STARTS_SHARE * self.budget.left_s
        problem = self.problem if stop.is_set() else _with_floors(self.problem) or self.problem

        def ask(method: str) -> None:
            for schedule in schedules_by(method, problem):
                self.offer(schedule)
                if schedule is not None:
                    return

        for method in HEURISTICS:
            # One whose package is not installed is left out.
            with suppress(InputError):
                within(lambda: stop.is_set() or now() > until, partial(ask, method))

    def _climb_on(self) -> None:
        """Climb from the best plan, or from any placement, until the gap or the limit is reached."""
        problem = self.problem
        if self.best is not None:
            home, times = problem.topology.device_index, {entry.op: entry for entry in self.best[0]}
            entries = [times[op.id] for op in problem.graph.ops]
            device = [home[entry.device] for entry in entries]
            order = sorted(problem.topological, key=lambda op: (entries[op].start_s, entries[op].end_s))
        else:
            groups = [*problem.groups, *((op,) for op in range(problem.op_count) if problem.group_of[op] is None)]
            shared = {
                op: min(set.intersection(*(set(problem.allowed[o]) for o in ops))) for ops in groups for op in ops
            }
            device, order = [shared[op] for op in range(problem.op_count)], list(problem.topological)
        length, kicks = self.judge(device, order), 0
        while self.budget.left_s and not self._is_closed():
            kicked = device.copy(), order.copy()
            for _ in range(kicks):
                self._move(*kicked)
            *climbed, found = self._climb(*kicked)
            if found is not None and (length is None or found < length):
                (device, order), length, kicks = climbed, found, 0
            else:
                kicks = kicks % (2 * problem.op_count) + 1

    def _climb(self, device: list[int], order: list[int]) -> tuple[list[int], list[int], float | None]:
        length = best = self.judge(device, order) or math.inf
        best_device, best_order = device, order
        memory, idle, step = [length] * _MEMORY, 0, 0
        while idle < _PATIENCE * self.problem.op_count and self.budget.left_s and not self._is_closed():
            new_device, new_order = device.copy(), order.copy()
            self._move(new_device, new_order)
            while self.random.random() < _AGAIN:
                self._move(new_device, new_order)
            found = self.judge(new_device, new_order)
            slot, idle, step = step % _MEMORY, idle + 1, step + 1
            if found is not None and (found <= length or found <= memory[slot]):
                device, order, length = new_device, new_order, found
                if length < best:
                    best, best_device, best_order, idle = length, device, order, 0
            memory[slot] = min(memory[slot], length)
        return best_device, best_order, None if math.isinf(best) else best

    def _move(self, device: list[int], order: list[int]) -> None:
        """Take the ops of a run that share a device to another, with their groups; or an op to another place."""
        place, count = self.random.randrange(len(order)), len(order)
        if self.random.random() < 0.5:
            last = place + int(count ** self.random.random())
            here, target = device[order[place]], self.random.randrange(self.problem.device_count)
            for op in [op for op in order[place:last] if device[op] == here]:
                group = self.problem.group_of[op]
                together = (op,) if group is None else self.problem.groups[group]
                if all(target in self.problem.allowed[each] for each in together):
                    for each in together:
                        device[each] = target
            return
        op, low, high = order[place], place, place
        while low and order[low - 1] not in self.reads[op]:
            low -= 1
        while high + 1 < count and order[high + 1] not in self.readers[op]:
            high += 1
        if low < high:
            del order[place]
            order.insert(self.random.randint(low, high), op)


def _with_floors(problem: Problem) -> Problem | None:
    """The problem with every op as long as its issue, where all devices of the process are at work.

    None if that hardly changes the work of the ops. It is no relaxation, as ops that were issued ahead do not wait
    behind a long one; its schedules are simulated.
    """
    graph, dispatch = problem.graph, dispatch_of(problem.topology)
    floors: dict[str, float] = {}
    for here, device in enumerate(problem.topology.devices):
        floor_s = dispatch.seconds[here] * dispatch.sharing(here)
        floors[device.type] = min(floor_s, floors.get(device.type, floor_s))

    def raised(op: Op) -> Op:
        times = {kind: time_s for kind in floors if (time_s := op.time_on(kind)) is not None}
        return replace(
            op, time_s={kind: max(time_s, floors[kind]) if time_s else 0.0 for kind, time_s in times.items()}
        )

    ops = tuple(map(raised, graph.ops))
    before_s, after_s = (sum(op.time_on(kind) or 0.0 for op in each for kind in floors) for each in (graph.ops, ops))
    if after_s < 1.01 * before_s:
        return None
    return build_problem(replace(graph, ops=ops), problem.topology, problem.options, problem.reached_s)
