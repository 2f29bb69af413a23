"""Communication-minimising subproblems: of the best schedules of each series the one that sends least.

Many placements give a segment its best time. They differ in what else has to be sent: tensors that later segments read,
and inputs of ops outside all segments. Where a link carries one transfer at a time, that traffic delays the segments.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

from ortools.sat.python import cp_model

from dlplacer.problem.transfers import Traffic, TransferRequest
from dlplacer.solvers.decomposition.segments import Series
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import anneal_series
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_rules import heft, list_schedule
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.ilp.solver_thread import solved_in_thread
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

_MOST_S = 5.0
"""Seconds per series, should the deterministic limit fail."""

_CLOSING, _AGAIN_S = 0.005, 0.5
"""For a series that comes again and again: the share by which it may take longer to end where it began, and seconds of
annealing."""

_ANEW = 0.25
"""The share of known answers that are asked for again: a pass over Inception's 65 series takes 3 to 4.5 s without any,
and 1 s with the others."""

_Cost: TypeAlias = tuple[int, int, int]
"""Block of a series, device, and the ticks that it costs on links outside the series to have it there."""

_Question: TypeAlias = tuple[Instance, frozenset[tuple[int, int]], tuple[_Cost, ...]]
"""Series, block → device where that is decided, costs."""


Answers: TypeAlias = dict[_Question, Schedule]
"""Placements of series, by the blocks decided and the costs outside."""


def low_traffic(chain: SegmentChain, slack: float, work: float, seed: int, known: Answers) -> list[Schedule]:
    """Schedules of the whole in which no series takes more than its best time and a share of it in slack.

    Parameters
    ----------
    work
        Deterministic seconds of CP-SAT for each series.
    seed
        Of several placements that cost the same, each seed may give another.
    known
        Answers of earlier seeds with the same slack; this one's are added. Some of the series are asked again, at
        random: those may differ, and all that follow them.
    """
    traffic = chain.instance.traffic
    if traffic is None:
        return []
    low, parts = _LowTraffic(chain, traffic, seed, known), []
    same = tuple(range(chain.instance.device_count))
    for series in chain.series:
        found = low.place(series, slack, work) if chain.budget.left_s else None
        if found is None:
            return []
        parts.append((found, same))
    return list(chain.combined(parts))


class _LowTraffic:
    """The devices of blocks so far, and the cost in ticks on links that they give the next placement.

    Equal series between equal surroundings are asked once: of 2,000 equal layers there are as many as devices on which
    one may begin.
    """

    def __init__(self, chain: SegmentChain, traffic: Traffic, seed: int, known: Answers) -> None:
        self.chain, self.traffic, self.seed = chain, traffic, seed
        self.known, self.random = known, Random(seed)
        self.instance = chain.instance
        self.answers: Answers = {}
        self.assigned = [-1] * len(self.instance.members)
        self.inside = {op for segment in chain.segments for op in segment.ops}
        self.made: dict[int, list[TransferRequest]] = {}
        for request in traffic.requests:
            self.made.setdefault(request.source, []).append(request)

    def place(self, series: Series, slack: float, work: float) -> Schedule | None:
        """The schedule of a series that costs least, its blocks assigned; None if none is known.

        When time is up it is the best one that is known, whatever it sends.
        """
        best = self.chain.incumbents[series.instance].best
        if best is None:
            return None
        ops = self._positions(series)
        found = self._cheapest(series, ops, best, slack, work) if self.chain.budget.left_s else best
        for op, position in ops.items():
            if self.assigned[self.instance.block[op]] < 0:
                self.assigned[self.instance.block[op]] = found.device[position]
        return found

    def _positions(self, series: Series) -> dict[int, int]:
        """Op of the whole → its position in a series."""
        return {op: place for part, first in self.chain.spans(series) for place, op in enumerate(part.ops, first)}

    def _cheapest(self, series: Series, ops: dict[int, int], best: Schedule, slack: float, work: float) -> Schedule:
        block = series.instance.block
        decided: dict[int, int] = {}
        for op, position in ops.items():
            here = self.assigned[self.instance.block[op]]
            if here in series.instance.allowed[position]:
                decided.setdefault(block[position], here)
        question = series.instance, frozenset(decided.items()), tuple(self._outside(ops, series))
        if question not in self.answers:
            self.answers[question] = self._answer(question, best, best.makespan + int(slack * best.makespan), work)
        return self.answers[question]

    def _answer(self, question: _Question, best: Schedule, upper: int, work: float) -> Schedule:
        """One that is known, or a new one: of a series that comes again and again each is better than the last."""
        instance, decided, _ = question
        if self.chain.comes_again(instance) and not self.chain.incumbents[instance].closed:
            return self._closed(instance, dict(decided), best)
        known = self.known.get(question)
        if known is None or known.makespan > upper or self.random.random() < _ANEW:
            known = self._solve(question, best, upper, work)
            if known is None:
                known = self._closed(instance, dict(decided), best) if self.chain.comes_again(instance) else best
            self.known[question] = known
        return known

    def _solve(self, question: _Question, best: Schedule, upper: int, work: float) -> Schedule | None:
        """A schedule that takes no longer and sends least; None where none is found.

        One that comes again ends where some other is known to begin, if it can: else the next takes longer.
        """
        instance, decided, outside = question
        # Earlier series have named the devices, so they are no longer interchangeable.
        model, variables = build_model(instance, self.chain.bounds[instance], upper, None, True, symmetric=False)
        for number, device in decided:
            model.add(variables.place[number][device] == 1)
        terms = [(one.used, sum(segment.ticks for segment in one.route)) for one in variables.optional_transfers]
        terms += [(variables.place[number][device], cost) for number, device, cost in outside]
        if self.chain.comes_again(instance):
            several = [known for asked, known in self.known.items() if asked[0] == instance and known.makespan <= upper]
            begins, last = {known.device[0] for known in (best, *several)}, variables.place[instance.block[-1]]
            terms += [(there, upper) for device, there in last.items() if device not in begins]
        model.minimize(cp_model.LinearExpr.weighted_sum([term for term, _ in terms], [cost for _, cost in terms]))
        budget = self.chain.budget
        seconds = min(_MOST_S, budget.left_s)
        solver = new_solver(budget.workers, self.seed, seconds, work)
        if solved_in_thread(solver, model, seconds, budget.stop.is_set):
            return read_schedule(variables, instance, solver.boolean_value, solver.value)
        return None

    def _closed(self, instance: Instance, decided: dict[int, int], best: Schedule) -> Schedule:
        """For a series that comes again and again, a schedule that ends on the device on which the next one begins.

        That which begins and ends on the device that is decided, or that of the best schedule, unless it takes much
        longer than one that may end anywhere.
        """
        first, last = (instance.block[op] for op in (0, instance.op_count - 1))
        decided.setdefault(first, best.device[0])
        returns = {last: decided[first]} if decided[first] in instance.allowed[-1] else {}
        several = (self._improved(instance, kept, best) for kept in (returns | decided, decided))
        found = [schedule for schedule in several if schedule is not None]
        least = min((schedule.makespan for schedule in found), default=0)
        return next((schedule for schedule in found if schedule.makespan <= (1 + _CLOSING) * least), best)

    def _improved(self, instance: Instance, decided: dict[int, int], best: Schedule) -> Schedule | None:
        """The best schedule that keeps to what is decided: that of the last time, or a better one from another seed."""
        kept = instance.limited({number: (device,) for number, device in decided.items()})
        known = self.chain.returning.setdefault((instance, frozenset(decided.items())), [])
        budget = replace(self.chain.budget_of(self.chain.budget.left_s), seed=self.seed + len(known))
        incumbent = Incumbent(budget)
        incumbent.raise_bound(self.chain.incumbents[instance].bound)
        if all(best.device[instance.members[number][0]] == device for number, device in decided.items()):
            incumbent.offer(best)
        for found in (*known[-1:], construct(kept, list_schedule), construct(kept, heft)):
            incumbent.offer(found)
        anneal_series(kept, incumbent, _AGAIN_S)
        known += [] if incumbent.best is None else [incumbent.best]
        return incumbent.best

    def _outside(self, ops: dict[int, int], series: Series) -> Iterator[_Cost]:
        """Arcs from assigned ops into the series, and from both to ops outside all segments."""
        for op, position in ops.items():
            block, allowed = series.instance.block[position], series.instance.allowed[position]
            for source, _ in self.instance.predecessors[op]:
                if source not in ops:
                    for request in self._sent(source, op):
                        yield from self._apart(block, allowed, source, request.size)
            for reader, _ in self.instance.successors[op]:
                if reader not in self.inside:
                    own = min((request.size for request in self._sent(op, reader)), default=0)
                    for other, _ in self.instance.predecessors[reader]:
                        if other not in ops:
                            sizes = [request.size for request in self._sent(other, reader)]
                            yield from self._apart(block, allowed, other, min([own, *sizes]))

    def _sent(self, source: int, reader: int) -> list[TransferRequest]:
        return [request for request in self.made.get(source, ()) if reader in request.readers]

    def _apart(self, block: int, allowed: Sequence[int], other: int, size: int) -> Iterator[_Cost]:
        """The cost of being apart from another op."""
        there = self.assigned[self.instance.block[other]]
        for device in allowed:
            if there not in (-1, device) and self.traffic.routes.joined(size, there, device):
                yield block, device, sum(segment.ticks for segment in self.traffic.routes.quickest(size, there, device))
