"""Communication-minimising subproblems: of the best schedules of each series the one that sends least.

Many placements give a segment its best time. They differ in what else has to be sent: tensors that later segments read,
and inputs of ops outside all segments. Where a link carries one transfer at a time, that traffic delays the segments.
"""

from collections.abc import Iterator

from ortools.sat.python import cp_model

from dlplacer.problem.transfers import Traffic, TransferRequest
from dlplacer.solvers.decomposition.segments import Series
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.ilp.variables import Variables
from dlplacer.solvers.instance.schedule import Schedule

_MOST_S = 5.0
"""Seconds per series, should the deterministic limit fail."""


def low_traffic(chain: SegmentChain, slack: float, work: float, seed: int) -> list[Schedule]:
    """Schedules of the whole in which no series takes more than its best time and a share of it in slack.

    Parameters
    ----------
    work
        Deterministic seconds of CP-SAT for each series.
    seed
        Of several placements that cost the same, each seed may give another.
    """
    traffic = chain.instance.traffic
    if traffic is None:
        return []
    low, parts = _LowTraffic(chain, traffic, seed), []
    same = tuple(range(chain.instance.device_count))
    for series in chain.series:
        found = low.place(series, slack, work) if chain.budget.left_s else None
        if found is None:
            return []
        parts.append((found, same))
    return list(chain.combined(parts))


class _LowTraffic:
    """Where blocks are so far, and what that makes the next placement cost in ticks on links."""

    def __init__(self, chain: SegmentChain, traffic: Traffic, seed: int) -> None:
        self.chain, self.traffic, self.seed = chain, traffic, seed
        self.instance = chain.instance
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
        found = self._cheapest(series, best, slack, work) if self.chain.budget.left_s else best
        for op, position in self._positions(series).items():
            if self.assigned[self.instance.block[op]] < 0:
                self.assigned[self.instance.block[op]] = found.device[position]
        return found

    def _positions(self, series: Series) -> dict[int, int]:
        """Op of the whole → its position in a series."""
        return {op: place for part, first in self.chain.spans(series) for place, op in enumerate(part.ops, first)}

    def _cheapest(self, series: Series, best: Schedule, slack: float, work: float) -> Schedule:
        ops = self._positions(series)
        upper = best.makespan + int(slack * best.makespan)
        bounds = self.chain.bounds[series.instance]
        # Earlier series have named the devices, so they are no longer interchangeable.
        model, variables = build_model(series.instance, bounds, upper, with_transfers=True, symmetric=False)
        known: dict[int, int] = {}
        for op, position in ops.items():
            block, here = series.instance.block[position], self.assigned[self.instance.block[op]]
            if here >= 0 and known.setdefault(block, here) == here and here in variables.place[block]:
                model.add(variables.place[block][here] == 1)
        inside = ((one.used, sum(segment.ticks for segment in one.route)) for one in variables.optional_transfers)
        terms = [*inside, *self._outside(ops, series, variables)]
        model.minimize(cp_model.LinearExpr.weighted_sum([term for term, _ in terms], [cost for _, cost in terms]))
        budget = self.chain.budget
        solver = new_solver(budget.workers, self.seed, min(_MOST_S, budget.left_s))
        solver.parameters.max_deterministic_time = work
        if solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return read_schedule(variables, series.instance, solver.boolean_value, solver.value)
        return best

    def _outside(
        self, ops: dict[int, int], series: Series, variables: Variables
    ) -> Iterator[tuple[cp_model.LiteralT, int]]:
        """What ops of the series read from assigned ones, and what ops outside all segments read from both."""
        for op, position in ops.items():
            literals = variables.place[series.instance.block[position]]
            for source, _ in self.instance.predecessors[op]:
                if source not in ops:
                    for request in self._sent(source, op):
                        yield from self._apart(literals, source, request.size)
            for reader, _ in self.instance.successors[op]:
                if reader not in self.inside:
                    own = min((request.size for request in self._sent(op, reader)), default=0)
                    for other, _ in self.instance.predecessors[reader]:
                        if other not in ops:
                            sizes = [request.size for request in self._sent(other, reader)]
                            yield from self._apart(literals, other, min([own, *sizes]))

    def _sent(self, source: int, reader: int) -> list[TransferRequest]:
        return [request for request in self.made.get(source, ()) if reader in request.readers]

    def _apart(
        self, literals: dict[int, cp_model.LiteralT], other: int, size: int
    ) -> Iterator[tuple[cp_model.LiteralT, int]]:
        """What it costs not to be where another op is."""
        there = self.assigned[self.instance.block[other]]
        for device, literal in literals.items():
            if there not in (-1, device) and self.traffic.routes.joined(size, there, device):
                yield literal, sum(segment.ticks for segment in self.traffic.routes.quickest(size, there, device))
