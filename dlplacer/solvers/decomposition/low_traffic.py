"""Schedules of the whole from those of its series that send least: *communication-minimising subproblems*.

Many placements give a series its best time. They differ in what else has to be sent: tensors that later segments read,
and inputs of ops outside all segments. Where a link carries one transfer at a time, that traffic delays the segments. A
series that comes again and again, as that of a layer does, ends where the next one begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from ortools.sat.python import cp_model

from dlplacer.problem.route_table import Traffic, TransferRequest
from dlplacer.solvers.heuristics.list_rules import construct, heft, list_schedule
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.ilp.solver_thread import solve_in_thread
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.local_search.anneal import ANNEALING_CODE, anneal_schedule
from dlplacer.solvers.local_search.compile_ahead import compiled_in_time

if TYPE_CHECKING:
    from dlplacer.solvers.decomposition.series import SegmentChain


@dataclass(frozen=True)
class LowTrafficParams:
    """The effort for a subproblem.

    Attributes
    ----------
    work, most_s
        Deterministic seconds of CP-SAT, and seconds should these fail.
    anew
        The share of known answers that are asked for again.
    closing, again_s, anneal_gap
        For a series that comes again and again: the share by which it may take longer to end where it began, seconds of
        annealing, and the gap from which these are spent.
    """

    work: float = 0.12
    most_s: float = 5.0
    anew: float = 0.25
    closing: float = 0.005
    again_s: float = 0.5
    anneal_gap: float = 0.01


PARAMS = LowTrafficParams()

_Cost: TypeAlias = tuple[int, int, int]
"""Block of a series, device, and the ticks that it costs on links outside the series to have it there."""

_Question: TypeAlias = tuple[Instance, frozenset[tuple[int, int]], tuple[_Cost, ...]]
"""Series, block → device where that is decided, costs."""


class LowTraffic:
    """The subproblems of a chain whose series have traffic, asked once for equal series between equal surroundings."""

    def __init__(self, chain: "SegmentChain", traffic: Traffic) -> None:
        self.chain, self.instance, self.traffic = chain, chain.instance, traffic
        self.passes = 0
        self.random = Random(chain.budget.seed)
        self.known: dict[_Question, Schedule] = {}
        self.inside = {op for segment in chain.segments for op in segment.ops}
        self.made: dict[int, list[TransferRequest]] = {}
        for request in traffic.requests:
            self.made.setdefault(request.source, []).append(request)

    def schedules(self, slack: float) -> Iterator[Schedule]:
        """Schedules in which no series takes longer than its best time and a share of it; each pass has a new seed."""
        self.passes += 1
        self.assigned = [-1] * len(self.instance.members)
        parts, answers = list[tuple[Schedule, Sequence[int]]](), dict[_Question, Schedule]()
        for series in self.chain.series:
            best = self.chain.known[series.instance].incumbent.best
            if best is None or not self.chain.budget.left_s:
                return
            ops = {op: at for part, first in self.chain.spans(series) for at, op in enumerate(part.ops, first)}
            question = self._question(series.instance, ops)
            if question not in answers:
                answers[question] = self._answer(question, best, best.makespan + int(slack * best.makespan))
            for op, position in ops.items():
                if self.assigned[self.instance.block[op]] < 0:
                    self.assigned[self.instance.block[op]] = answers[question].device[position]
            parts.append((answers[question], range(self.instance.device_count)))
        yield from self.chain.combined(parts)

    def _question(self, instance: Instance, ops: Mapping[int, int]) -> _Question:
        decided: dict[int, int] = {}
        for op, position in ops.items():
            here = self.assigned[self.instance.block[op]]
            if here in instance.allowed[position]:
                decided.setdefault(instance.block[position], here)
        return instance, frozenset(decided.items()), tuple(self._outside(ops, instance))

    def _answer(self, question: _Question, best: Schedule, upper: int) -> Schedule:
        if self.chain.comes_again(question[0]):
            return self._closed(question[0], dict(question[1]), best)
        known = self.known.get(question)
        if known is None or known.makespan > upper or self.random.random() < PARAMS.anew:
            known = self.known[question] = self._solve(question, upper) or best
        return known

    def _solve(self, question: _Question, upper: int) -> Schedule | None:
        """A schedule of at most so many ticks that sends least; None where none is found."""
        instance, decided, outside = question
        # Earlier series have named the devices, so they are no longer interchangeable.
        model, variables = build_model(instance, self.chain.known[instance].bounds, upper, symmetric=False)
        for number, device in decided:
            model.add(variables.place[number][device] == 1)
        terms = [(one.used, sum(segment.ticks for segment in one.route)) for one in variables.optional_transfers]
        terms += [(variables.place[number][device], cost) for number, device, cost in outside]
        model.minimize(cp_model.LinearExpr.weighted_sum([term for term, _ in terms], [cost for _, cost in terms]))
        budget = self.chain.budget
        seconds = min(PARAMS.most_s, budget.left_s)
        solver = new_solver(budget.workers, budget.seed + self.passes, seconds, PARAMS.work)
        if solve_in_thread(solver, model, seconds, budget.stop.is_set) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return read_schedule(variables, instance, solver.boolean_value, solver.value)
        return None

    def _outside(self, ops: Mapping[int, int], instance: Instance) -> Iterator[_Cost]:
        """Costs of arcs from assigned ops into the series, and from both to ops outside all segments."""
        for op, position in ops.items():
            block, allowed = instance.block[position], instance.allowed[position]
            for source, _ in self.instance.predecessors[op]:
                if source not in ops:
                    for size in self._sent(source, op):
                        yield from self._apart(block, allowed, source, size)
            for reader, _ in self.instance.successors[op]:
                if reader not in self.inside:
                    own = min(self._sent(op, reader), default=0)
                    for other, _ in self.instance.predecessors[reader]:
                        if other not in ops:
                            yield from self._apart(block, allowed, other, min([own, *self._sent(other, reader)]))

    def _sent(self, source: int, reader: int) -> list[int]:
        return [request.size for request in self.made.get(source, ()) if reader in request.readers]

    def _apart(self, block: int, allowed: Sequence[int], other: int, size: int) -> Iterator[_Cost]:
        """The cost of being apart from another op."""
        there = self.assigned[self.instance.block[other]]
        for device in allowed:
            if there not in (-1, device) and self.traffic.routes.joined(size, there, device):
                yield block, device, sum(segment.ticks for segment in self.traffic.routes.quickest(size, there, device))

    def _closed(self, instance: Instance, decided: dict[int, int], best: Schedule) -> Schedule:
        """A schedule that begins and ends on the device that is decided, or on that of the best schedule.

        Unless it takes much longer than one that may end anywhere.
        """
        first, last = (instance.block[op] for op in (0, instance.op_count - 1))
        decided.setdefault(first, best.device[0])
        returns = {last: decided[first]} if decided[first] in instance.allowed[-1] else {}
        several = (self._improved(instance, kept, best) for kept in (returns | decided, decided))
        found = [schedule for schedule in several if schedule is not None]
        least = min((schedule.makespan for schedule in found), default=0)
        return next((schedule for schedule in found if schedule.makespan <= (1 + PARAMS.closing) * least), best)

    def _improved(self, instance: Instance, decided: dict[int, int], best: Schedule) -> Schedule | None:
        """The best schedule found that keeps to what is decided, from another seed in each pass.

        How well copies of it follow one another is seen in the whole only, so that no pass holds to the last one's.
        """
        kept = instance.limited({number: (device,) for number, device in decided.items()})
        budget = replace(self.chain.budget_of(self.chain.budget.left_s), seed=self.chain.budget.seed + self.passes)
        incumbent = Incumbent(budget)
        incumbent.raise_bound(self.chain.known[instance].incumbent.bound)
        if all(best.device[instance.members[number][0]] == device for number, device in decided.items()):
            incumbent.offer(best)
        for start in (construct(kept, list_schedule), construct(kept, heft)):
            incumbent.offer(start)
        found = incumbent.best
        worth = found is not None and found.makespan - incumbent.bound > PARAMS.anneal_gap * found.makespan
        if worth and compiled_in_time(ANNEALING_CODE, budget.left_s, lambda: not budget.left_s):
            anneal_schedule(kept, incumbent, PARAMS.again_s)
        return incumbent.best
