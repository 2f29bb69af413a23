"""Schedules of the whole from those of its series that send least: *communication-minimising subproblems*.

Many placements give a series its best time. They differ in what they send; where a link carries one transfer at a time,
that delays other segments. A series that comes again and again, as that of a layer does, ends where the next one
begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from dlplacer.solvers.heuristics.list_rules import construct, heft, list_schedule
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedules, solve_in_thread
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.local_search.anneal import anneal_schedule
from dlplacer.solvers.local_search.compile_ahead import compiled_in_time

if TYPE_CHECKING:
    from dlplacer.solvers.decomposition.series import SegmentChain

_WORK, _MOST_S, _ANEW = 0.12, 5.0, 0.25
"""Deterministic seconds of CP-SAT for a subproblem, seconds should these fail, and the share of known answers that are
asked for again."""

_CLOSING, _AGAIN_S, _ANNEAL_GAP = 0.005, 0.5, 0.01
"""For a series that comes again and again: the share by which it may take longer to end where it began, seconds of
annealing, and the gap from which these are spent."""

_Question = tuple[Instance, frozenset[tuple[int, int]]]
"""A series, and block → device where that is decided."""


class LowTraffic:
    """The subproblems of a chain whose series have traffic, asked once for equal series with equal beginnings."""

    def __init__(self, chain: "SegmentChain") -> None:
        self.chain, self.passes, self.random = chain, 0, Random(chain.budget.seed)
        self.known: dict[_Question, Schedule] = {}

    def schedules(self, slack: float) -> Iterator[Schedule]:
        """Schedules in which no series takes longer than its best time and a share of it; each pass has a new seed."""
        self.passes += 1
        chain, block = self.chain, self.chain.instance.block
        assigned = [-1] * len(chain.instance.members)
        parts, answers = list[tuple[Schedule, Sequence[int]]](), dict[_Question, Schedule]()
        for series in chain.series:
            best = chain.known[series.instance].incumbent.best
            if best is None or not chain.budget.left_s:
                return
            ops = {op: at for part, first in chain.spans(series) for at, op in enumerate(part.ops, first)}
            decided: dict[int, int] = {}
            for op, position in ops.items():
                if assigned[block[op]] in series.instance.allowed[position]:
                    decided.setdefault(series.instance.block[position], assigned[block[op]])
            question = series.instance, frozenset(decided.items())
            if question not in answers:
                answers[question] = self._answer(question, decided, best, int((1 + slack) * best.makespan))
            for op, position in ops.items():
                if assigned[block[op]] < 0:
                    assigned[block[op]] = answers[question].device[position]
            parts.append((answers[question], range(chain.instance.device_count)))
        yield from chain.combined(parts)

    def _answer(self, question: _Question, decided: Mapping[int, int], best: Schedule, upper: int) -> Schedule:
        if self.chain.comes_again(question[0]):
            return self._closed(question[0], decided, best)
        known = self.known.get(question)
        if known is None or known.makespan > upper or self.random.random() < _ANEW:
            known = self.known[question] = self._solve(question[0], decided, upper) or best
        return known

    def _solve(self, instance: Instance, decided: Mapping[int, int], upper: int) -> Schedule | None:
        """A schedule of at most so many ticks that sends least; None if none is found."""
        model, variables = build_model(instance, self.chain.known[instance].bounds, upper)
        for number, device in decided.items():
            model.add(variables.place[number][device] == 1)
        sent = [(one.used, sum(segment.ticks for segment in one.route)) for one in variables.optional_transfers]
        model.minimize(cp_model.LinearExpr.weighted_sum([used for used, _ in sent], [ticks for _, ticks in sent]))
        budget = self.chain.budget
        seconds = min(_MOST_S, budget.left_s)
        solver = new_solver(budget.workers, budget.seed + self.passes, seconds, _WORK)
        if solve_in_thread(solver, model, seconds, budget.stop.is_set) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return read_schedules(variables, instance, solver.boolean_value, solver.value)[-1]
        return None

    def _closed(self, instance: Instance, decided: Mapping[int, int], best: Schedule) -> Schedule:
        """A schedule that begins and ends on the device that is decided, or on that of the best schedule.

        Unless it takes much longer than one that may end anywhere.
        """
        first, last = (instance.block[op] for op in (0, instance.op_count - 1))
        begun = {first: best.device[0], **decided}
        returns = {last: begun[first]} if begun[first] in instance.allowed[-1] else {}
        several = (self._improved(instance, kept, best) for kept in (returns | begun, begun))
        found = [schedule for schedule in several if schedule is not None]
        least = min((schedule.makespan for schedule in found), default=0)
        return next((schedule for schedule in found if schedule.makespan <= (1 + _CLOSING) * least), best)

    def _improved(self, instance: Instance, decided: Mapping[int, int], best: Schedule) -> Schedule | None:
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
        worth = found is not None and found.makespan - incumbent.bound > _ANNEAL_GAP * found.makespan
        if worth and compiled_in_time(budget.left_s, lambda: not budget.left_s):
            anneal_schedule(kept, incumbent, _AGAIN_S)
        return incumbent.best
