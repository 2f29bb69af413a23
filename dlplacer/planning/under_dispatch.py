"""The plan for a machine whose devices wait for the processes that issue their ops.

Dispatch only delays. A plan under it is a plan of the problem without it, where every start may be earlier, so every
bound of that problem holds; `dlplacer.problem.dispatch.least_step_s` adds another. The solvers know of neither. So
candidates are simulated with dispatch, and the shortest simulated plan is taken, no matter what its schedule promised:

- every single device;
- what the method finds where every op takes at least as long as its issue, with all devices of its process at work;
- what the method finds on the problem itself, which gives the bound too;
- for the default method, what each heuristic finds on both;
- for the default method, the best of these with all ops of a device, or one op, moved to another device, as long as
  that helps. Where the result gains next to nothing on a single device, it is that.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import pairwise, permutations
from typing import NamedTuple

from dlplacer.check import violations
from dlplacer.core.errors import InputError
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Topology
from dlplacer.planning.assemble import in_seconds, plan_of
from dlplacer.problem.as_processes import are_processes
from dlplacer.problem.dispatch import Dispatch, dispatch_of
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import within

Solver = Callable[[Problem, Budget], Outcome]


class Heuristic(NamedTuple):
    """What makes one schedule of a problem after another, None for what is no plan, and seconds it loads before."""

    schedules: Callable[[Problem], Iterator[ProblemSchedule | None]]
    loads_s: float = 0.0


@dataclass(frozen=True)
class DispatchParams:
    """How the time is divided.

    Attributes
    ----------
    heuristics_share, heuristics_s, short_share
        Of the time, for all heuristics, or so many seconds up to another share: what the default method makes of their
        schedules is shorter without dispatch, and may be longer with it. Eleven of them take 0.5 to 2 s on 50 ops in
        memory that is short, where cores are slow.
    in_vain_share
        Of the time, for them while there is no plan.
    surrogate_share
        Of the time, for the problem with floors; the rest, and what that leaves, is for the problem itself. A guess.
    worth_it
        Least growth of the work by the floors for which that is done.
    finish_share
        Of the time, for moving devices' ops and single ones in the best plan.
    most_moves
        Of single ops, after each round of moving those of devices: simulating 2,000 ops takes some 20 ms.
    least_gain
        What a plan of the default method on several devices must gain over one device to be preferred: simulated steps
        are off by about as much, and one device cannot disappoint.
    turns_gain
        As much more where the ops are nothing but turns at the interpreter, in proportion: steps of a small transformer
        were planned 5 to 8 % shorter on two threads than on one, and took 3 to 4 % longer.
    """

    heuristics_share: float = 0.2
    heuristics_s: float = 1.5
    short_share: float = 0.6
    in_vain_share: float = 0.8
    surrogate_share: float = 0.6
    worth_it: float = 0.01
    finish_share: float = 0.1
    most_moves: int = 300
    least_gain: float = 0.02
    turns_gain: float = 0.1


PARAMS = DispatchParams()

_LAST = object()


class Candidates:
    """The best plan so far of those that were simulated; it does not say how it was made."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bound = 0
        self.best: Plan | None = None

    def offer(self, schedule: ProblemSchedule | None) -> bool:
        """Simulate placement and order of a schedule, of this problem or one with other times; whether it is best."""
        if schedule is None:
            return False
        found = self.offer_on(schedule.device, schedule.order)
        if schedule.problem is self.problem and schedule.transfers is not None:
            found = self._keep(*in_seconds(self.problem, schedule)) or found
        return found

    def offer_on(self, device: Sequence[int], order: Sequence[int]) -> bool:
        """Simulate a placement in an order; whether it is best. A placement without routes is none."""
        problem = self.problem
        if any(problem.delay[arc.size][device[arc.source]][device[arc.target]] is None for arc in problem.arcs):
            return False
        return self._keep(*replay(problem, device, order))

    def raise_bound(self, ticks: int) -> None:
        """Keep the higher bound of the problem without dispatch."""
        if ticks > self.bound:
            self.bound = ticks
            if self.best is not None:
                self.best = self._plan(self.best.ops, self.best.transfers, ticks)

    def prefer_one_device(self) -> None:
        """Go back to the best single device where the best plan hardly gains on it."""
        alone = Candidates(self.problem)
        alone.raise_bound(self.bound)
        for schedule in singles(self.problem):
            alone.offer(schedule)
        if alone.best is None or self.best is None:
            return
        least = 1 + PARAMS.least_gain + PARAMS.turns_gain * _turns_share(self.problem, alone.best)
        if alone.best.makespan_s < least * comparable_s(self.best):
            self.best = alone.best

    def closed(self, gap: float) -> bool:
        """Whether the best plan is within a gap of its bound."""
        return self.best is not None and self.best.gap <= gap

    def _keep(self, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer]) -> bool:
        length_s = max(entry.end_s for entry in ops)
        if self.best is not None and length_s >= self.best.makespan_s:
            return False
        # Delays may let tensors live longer than there is memory for, and ops moved to a device may not fit there: that
        # comes before the bound, which such a plan may well beat.
        if violations(self._plan(ops, transfers, 0)):
            return False
        self.best = self._plan(ops, transfers, self.bound)
        return True

    def _plan(self, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer], bound: int) -> Plan:
        return plan_of(self.problem, ops, transfers, Outcome(None, bound), "", 0.0, {})


def best_under_dispatch(
    problem: Problem, solve: Solver, again: Solver, budget: Budget, heuristics: Sequence[Heuristic], *, combine: bool
) -> Candidates:
    """The candidates of a method, with the best of them and its bound.

    Parameters
    ----------
    solve
        The method on the problem.
    again
        The method on a problem with other times.
    heuristics
        Quick ones, to be asked first.
    combine
        Whether the plan may be taken from single devices and device subsets too: the default method's may.
    """
    candidates = Candidates(problem)
    tick_s = float(problem.tick_s)

    def report(makespan: int | None, bound: int) -> None:
        candidates.raise_bound(bound)
        best = candidates.best
        budget.report(None if best is None else round(best.makespan_s / tick_s), candidates.bound)

    if combine:
        for schedule in singles(problem):
            candidates.offer(schedule)
        report(None, 0)
        if candidates.closed(budget.gap):
            return candidates
    last = replace(budget, deadline=budget.deadline - (PARAMS.finish_share * budget.left_s if combine else 0.0))
    floors = surrogate(problem)
    asked = _Heuristics(candidates, heuristics, [each for each in (floors, problem) if each is not None])
    began, left_s = time.monotonic(), last.left_s
    heuristics_s = max(PARAMS.heuristics_share * left_s, min(PARAMS.heuristics_s, PARAMS.short_share * left_s))
    asked.go_on(last, began + heuristics_s, began + PARAMS.in_vain_share * left_s)
    if floors is not None:
        stop_at = time.monotonic() + PARAMS.surrogate_share * last.left_s
        found = again(floors, replace(last.unreported, deadline=stop_at))
        candidates.offer(found.schedule)
    found = solve(problem, replace(last, report=report))
    candidates.offer(found.schedule)
    candidates.raise_bound(found.lower_bound)
    if candidates.best is None:
        asked.go_on(budget, budget.deadline, budget.for_first.deadline)
    if combine:
        _improve(candidates, budget)
        candidates.prefer_one_device()
    return candidates


class _Heuristics:
    """All heuristics on several problems, one schedule at a time: who has used least time comes first."""

    def __init__(self, candidates: Candidates, heuristics: Sequence[Heuristic], problems: Sequence[Problem]) -> None:
        self._candidates = candidates
        asked = [(loads_s, schedules(on)) for schedules, loads_s in heuristics for on in problems]
        self._waiting = [(used_s, number, schedules) for number, (used_s, schedules) in enumerate(asked)]
        heapify(self._waiting)

    def go_on(self, budget: Budget, until: float, in_vain_until: float) -> None:
        """Offer their schedules until a moment, or another one while there is no plan."""

        def is_over() -> bool:
            ends_at = in_vain_until if self._candidates.best is None else until
            return budget.stop.is_set() or time.monotonic() > ends_at

        while self._waiting and not is_over():
            used_s, number, schedules = heappop(self._waiting)
            asked, is_last = time.monotonic(), None
            # One whose package is not installed is left out.
            with suppress(InputError):
                is_last = within(is_over, partial(self._ask, schedules))
            if is_last is False:
                heappush(self._waiting, (used_s + time.monotonic() - asked, number, schedules))

    def _ask(self, schedules: Iterator[ProblemSchedule | None]) -> bool:
        """Whether it has no more."""
        found = next(schedules, _LAST)
        if isinstance(found, ProblemSchedule):
            self._candidates.offer(found)
        return found is _LAST


def _turns_share(problem: Problem, plan: Plan) -> float:
    """The share of a step on one device in which an op keeps others of its process from starting, 0 to 1."""
    dispatch = dispatch_of(problem.topology)
    number = {device.id: here for here, device in enumerate(problem.topology.devices)}
    held = [
        dispatch.hold_s(number[entry.device], entry.end_s - entry.start_s)
        for entry in plan.ops
        if dispatch.takes_turns(number[entry.device])
    ]
    return sum(held) / plan.makespan_s if plan.makespan_s else 0.0


def comparable_s(plan: Plan) -> float:
    """Seconds of a step beside which those of a plan on one device may be put: longer where several devices work.

    Ops that were timed with all devices at work take less while the others idle, by a factor that their graph may tell
    (`OpGraph.contention_factors`): all ops of a plan on one device do, and of one on several the part in which one
    works. Both take as much longer here, so that what is on one device takes what its plan says. Short ops of threads
    lose more to each other than the turns that a simulation knows of: a thread that waits for its turn has to wake.
    Processes are asked for their part of a step, and answer (`Link.process_step_s`).
    """
    processes = are_processes(plan.topology)
    factors, way = plan.graph.contention_factors, "processes" if processes else "threads"
    used = {entry.device for entry in plan.ops}
    types = {device.type for device in plan.topology.devices if device.id in used}
    factor = max((factors.get(kind, {}).get(way, 1.0) for kind in types), default=1.0)
    step_s = plan.makespan_s + (factor - 1) * _shared_s(plan)
    cores = [device for device in plan.topology.devices if device.id in used and not device.asynchronous]
    if processes and len(cores) > 1:
        step_s += max((link.process_step_s for link in plan.topology.links), default=0.0)
    return step_s


def _shared_s(plan: Plan) -> float:
    """Seconds of a plan in which several devices work at the same time."""
    changes = sorted(change for entry in plan.ops for change in ((entry.start_s, 1), (entry.end_s, -1)))
    shared_s, working = 0.0, 0
    for (time_s, change), (next_s, _) in pairwise(changes):
        working += change
        if working > 1:
            shared_s += next_s - time_s
    return shared_s


def surrogate(problem: Problem) -> Problem | None:
    """The problem with every op and transfer as long as its issue, where all devices of the process are at work.

    None if that hardly changes the work of the ops.

    It is no relaxation, as ops that were issued ahead do not wait behind a long one; its schedules are simulated.
    """
    graph, dispatch = problem.graph, dispatch_of(problem.topology)
    floors: dict[str, float] = {}
    for here, device in enumerate(problem.topology.devices):
        floor_s = dispatch.seconds[here] * dispatch.sharing(here)
        floors[device.type] = min(floor_s, floors.get(device.type, floor_s))
    ops = tuple(_raised(op, floors) for op in graph.ops)
    before_s, after_s = (sum(op.time_on(kind) or 0.0 for op in each for kind in floors) for each in (graph.ops, ops))
    if after_s < (1 + PARAMS.worth_it) * before_s:
        return None
    return build_problem(replace(graph, ops=ops), _with_issued_transfers(problem.topology, dispatch), problem.options)


def _with_issued_transfers(topology: Topology, dispatch: Dispatch) -> Topology:
    """The machine whose links take longer by what issuing a transfer costs the devices at their ends."""
    issue_s = {device.id: seconds for device, seconds in zip(topology.devices, dispatch.seconds, strict=True)}
    links = tuple(
        replace(link, latency_s=link.latency_s + issue_s.get(link.source, 0.0) + issue_s.get(link.target, 0.0))
        for link in topology.links
    )
    return replace(topology, links=links)


def _raised(op: Op, floors: Mapping[str, float]) -> Op:
    times = {kind: op.time_on(kind) for kind in floors}
    raised = {
        kind: max(time_s, floors[kind]) if time_s else time_s for kind, time_s in times.items() if time_s is not None
    }
    return replace(op, time_s=raised)


def _improve(candidates: Candidates, budget: Budget) -> None:
    """Move all ops of a device, then one block, to another device, as long as the simulated plan gets shorter."""
    problem = candidates.problem
    blocks = [*problem.groups, *((op,) for op, group in enumerate(problem.group_of) if group is None)]
    chooser = random.Random(budget.seed)
    improved = candidates.best is not None
    while improved and budget.left_s:
        improved = False
        device, order = _as_simulated(candidates)
        used = sorted(set(device))
        whole = [([op for op, here in enumerate(device) if here == moved], to) for moved, to in permutations(used, 2)]
        single = [(ops, to) for ops in blocks for to in range(problem.device_count) if to != device[ops[0]]]
        chooser.shuffle(single)
        for ops, target in (*whole, *single[: PARAMS.most_moves]):
            if not budget.left_s:
                return
            if all(target in problem.allowed[op] for op in ops):
                moved = device.copy()
                for op in ops:
                    moved[op] = target
                if candidates.offer_on(moved, order):
                    improved = True
                    device, order = _as_simulated(candidates)


def _as_simulated(candidates: Candidates) -> tuple[list[int], list[int]]:
    """[op] → device in the best plan; all ops by start."""
    plan, problem = candidates.best, candidates.problem
    assert plan is not None
    home, ops = problem.topology.device_index, problem.graph.ops
    times = [(plan.scheduled[op.id].start_s, plan.scheduled[op.id].end_s) for op in ops]
    return [home[plan.placement[op.id]] for op in ops], sorted(problem.topological, key=times.__getitem__)
