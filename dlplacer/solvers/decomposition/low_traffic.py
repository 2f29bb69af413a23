"""Schedules of the whole from those of its series that send least: *communication-minimising subproblems*.

Many placements give a series its best time. They differ in what else has to be sent: tensors that later segments read,
and inputs of ops outside all segments. Where a link carries one transfer at a time, that traffic delays the segments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from ortools.sat.python import cp_model

from dlplacer.problem.route_table import Traffic, TransferRequest
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.ilp.solver_thread import solve_in_thread
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

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
    """

    work: float = 0.12
    most_s: float = 5.0
    anew: float = 0.25


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
