"""The plan for a machine whose devices wait for the processes that issue their ops.

Dispatch only delays ops, so every plan with dispatch is also a plan without dispatch. Bounds without dispatch therefore
hold, and `dlplacer.problem.dispatch.least_step_s` adds another. The solvers ignore dispatch. So these candidates are
replayed with dispatch. The shortest replayed plan wins, whatever the lengths of the schedules:

- every single device, for the default method;
- the schedule of the method on the problem itself, which also gives the bound;
- for the default method, a schedule of each heuristic with op times raised to the issue time under a fully busy
  process;
- for the default method, placements and orders near the best of these, until the gap or the limit is reached.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

from dlplacer.core.errors import InputError, InternalError
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.planning.assemble import assemble, plan_of
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
"""Seconds of work counted for each op of a replay."""

_STARTS_SHARE, _WALK_SHARE = 0.5, 0.25
"""Share of the time for heuristics, and share of the remaining time for walks from the best plan."""

_MEMORY, _PATIENCE, _AGAIN = 50, 100, 0.3
"""History length of a walk, idle steps per op before it restarts, and probability that another move follows a move."""

_SAME = 1e-9
"""Largest relative difference between two float sums of the same times."""


def best_plan(problem: Problem, method: str, budget: Budget, begin: Begin | None = None) -> tuple[Plan | None, Outcome]:
    """The best plan of a method, or None, and the outcome of the method.

    Raises InternalError if the bound is above the schedule's makespan.
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
    """The search for the best replayed plan."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget = problem, budget
        self.bound, self.makespan_s = 0, math.inf
        self.best: tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]] | None = None
        self.least_s = least_step_s(problem, dispatch_of(problem.topology))
        self.may_overflow = problem.options.memory == "sum" or may_bind(problem)

    def run(self, method: str, solve: Callable[[Problem, Budget], Outcome]) -> tuple[Plan | None, Outcome]:
        """The best plan of a method and its bound; the default method also tries single devices, heuristics, walks."""
        is_default, problem, budget = method == DEFAULT_METHOD, self.problem, self.budget
        for schedule in singles(problem) if is_default else ():
            if self.best is None or not budget.stop.is_set():
                self.offer(schedule)
        if is_default and not self._is_closed():
            self._offer_starts()
        if not (is_default and self._is_closed()):
            share = _WALK_SHARE if is_default else 0.0
            part = replace(budget, deadline=budget.deadline - share * budget.left_s, report=self._hear)
            outcome = METHODS[method](problem, part) if method == "single" else solve(problem, part)
            if method == "single":
                # With dispatch another device may be the best, because ops wait for their process.
                best = min(singles(problem), key=partial(replayed_s, problem), default=None)
                outcome = replace(outcome, schedule=best)
            self.offer(outcome.schedule)
            self._hear(None, outcome.lower_bound)
            if is_default and self.best is not None:
                self._walk()
        outcome = Outcome(None, self.bound)
        return None if self.best is None else plan_of(problem, *self.best, outcome, "", 0, {}), outcome

    def offer(self, schedule: ProblemSchedule | None) -> None:
        """Replay placement and order of a schedule, which may be for other op times, and keep the best plan."""
        if schedule is not None:
            self._judge(schedule.device, schedule.order)

    def _judge(self, device: Sequence[int], order: Sequence[int]) -> float:
        """Seconds of a placement replayed in an order; infinite if it is not a plan."""
        problem = self.problem
        if any(problem.delay[arc.size][device[arc.source]][device[arc.target]] is None for arc in problem.arcs):
            return math.inf
        count_work(_REPLAYED_OP_S * problem.op_count)
        return self._keep(*replay(problem, device, order))

    def _keep(self, ops: tuple[ScheduledOp, ...], transfers: tuple[Transfer, ...]) -> float:
        # Waiting ops extend the lives of tensors, which may then exceed the memory.
        if self.may_overflow and any(
            use.capacity_bytes is not None and use.peak_bytes > use.capacity_bytes
            for use in memory_use(self.problem, ops, transfers).values()
        ):
            return math.inf
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
        """Offer a schedule of each heuristic, with floors on op times if they matter, in a share of the time."""
        stop, until = self.budget.stop, now() + _STARTS_SHARE * self.budget.left_s
        problem = self.problem if stop.is_set() else _with_floors(self.problem) or self.problem

        def ask(method: str) -> None:
            for schedule in schedules_by(method, problem):
                self.offer(schedule)
                if schedule is not None:
                    return

        for method in HEURISTICS:
            # A heuristic whose package is not installed is left out.
            with suppress(InputError):
                within(lambda: stop.is_set() or now() > until, partial(ask, method))

    def _walk(self) -> None:
        """Search from the best plan until the gap or the limit, and restart from it after many steps without success.

        Late acceptance hill climbing (Burke and Bykov 2017): a move is accepted if the replay is no longer than the
        current one, or than the one of `_MEMORY` steps ago. Each restart begins with one more move than the last.
        """
        random, count, kicks = Random(self.budget.seed), self.problem.op_count, 0
        while self.budget.left_s and not self._is_closed() and self.best is not None:
            home, times = self.problem.topology.device_index, {entry.op: entry for entry in self.best[0]}
            entries = [times[op.id] for op in self.problem.graph.ops]
            device = [home[entry.device] for entry in entries]
            order = sorted(self.problem.topological, key=lambda op: (entries[op].start_s, entries[op].end_s))
            begun_s, step, idle, moves = self.makespan_s, 0, 0, kicks
            length = math.inf if kicks else begun_s
            memory = [length] * _MEMORY
            while idle < _PATIENCE * count and self.budget.left_s and not self._is_closed():
                tried = device.copy(), order.copy()
                for _ in range(moves + 1):
                    self._move(random, *tried)
                moves = 0
                while random.random() < _AGAIN:
                    self._move(random, *tried)
                found = self._judge(*tried)
                slot, step, idle = step % _MEMORY, step + 1, idle + 1
                if found <= max(length, memory[slot]):
                    idle = idle if found >= length else 0
                    (device, order), length = tried, found
                memory[slot] = min(memory[slot], length)
            kicks = 0 if self.makespan_s < begun_s else kicks % (2 * count) + 1

    def _move(self, random: Random, device: list[int], order: list[int]) -> None:
        """Move a device's ops in part of the order, with their groups, to another device, or an op within the order."""
        problem, place = self.problem, random.randrange(len(order))
        op = order[place]
        if random.random() < 0.5:
            last, target = place + int(len(order) ** random.random()), random.randrange(problem.device_count)
            here = device[op]
            for each in [each for each in order[place:last] if device[each] == here]:
                group = problem.group_of[each]
                together = (each,) if group is None else problem.groups[group]
                if all(target in problem.allowed[one] for one in together):
                    for one in together:
                        device[one] = target
            return
        reads = {arc.source for arc in problem.arcs_into[op]}
        readers = {arc.target for arc in problem.arcs_from[op]}
        low = next((at + 1 for at in range(place - 1, -1, -1) if order[at] in reads), 0)
        high = next((at - 1 for at in range(place + 1, len(order)) if order[at] in readers), len(order) - 1)
        order.insert(random.randint(low, high), order.pop(place))


def _with_floors(problem: Problem) -> Problem | None:
    """The problem with every op time raised to the issue time under a fully busy process.

    None if that hardly changes the work of the ops. The raised problem is no relaxation, because an op that is issued
    during a long op need not wait; so its schedules are replayed.
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
