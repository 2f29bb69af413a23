"""The segment phase: series solved in rounds of growing work, then suffixes, then series with their traffic.

With link contention a link direction carries one transfer at a time inside each series.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeAlias

from ortools.sat.python import cp_model

from dlplacer.problem.route_table import Traffic, TransferRequest
from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.decode.machine_code import is_kept
from dlplacer.solvers.decomposition.segments import GraphSegment, find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import raise_suffix_bounds, search_series
from dlplacer.solvers.heuristics.list_rules import by_rank, construct, heft, list_schedule
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.ilp.solver_thread import solved_in_thread
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import now
from dlplacer.solvers.local_search.anneal import ANNEALING_CODE, anneal_schedule


@dataclass(frozen=True)
class TransferSearchParams:
    """The effort for series with their traffic.

    Attributes
    ----------
    advance_share, bound_share
        Shares of the time that is left for proving series, and for the bounds of the whole.
    work, large_work, large_from, growth
        Deterministic seconds of CP-SAT per series in the first round, less in chains of so many ops; and the factor for
        every further one.
    slacks
        Shares by which a series may take longer than its best schedule in favour of less traffic: first none.
    low_traffic_work, most_s, anew
        Deterministic seconds of CP-SAT for each communication-minimising subproblem, seconds should these fail, and
        the share of known answers that are asked for again.
    far, near
        Shares by which the best schedule that the series make up may be above the best plan, without low traffic and
        with it: what ops outside all segments make longer, other placements of the segments do not mend.
    patience
        Rounds in a row that may bring nothing.
    closing, again_s, anneal_gap
        For a series that comes again and again: the share by which it may take longer to end where it began, seconds of
        annealing, and the gap from which these are spent.
    """

    advance_share: float = 0.5
    bound_share: float = 0.05
    work: float = 0.4
    large_work: float = 0.1
    large_from: int = 20_000
    growth: float = 3.0
    slacks: tuple[float, ...] = (0.0, 0.01, 0.03)
    low_traffic_work: float = 0.12
    most_s: float = 5.0
    anew: float = 0.25
    far: float = 0.25
    near: float = 0.1
    patience: int = 2
    closing: float = 0.005
    again_s: float = 0.5
    anneal_gap: float = 0.01


PARAMS = TransferSearchParams()


def search_with_transfers(
    chain: SegmentChain, traffic: Traffic, incumbent: Incumbent, bounds: Bounds, stop_at: float
) -> Bounds:
    """Solve the series of a chain with their traffic, in rounds of growing work; the bounds that follow.

    Their best schedules make up schedules of the whole: the search ends when several rounds in a row have brought
    nothing. Where routes are many, the bounds are those without contention.

    Parameters
    ----------
    chain
        Of series without their traffic, searched before.
    traffic
        Of the whole.
    """
    chain, budget = chain.with_traffic(), incumbent.budget
    low_traffic = LowTraffic(chain, traffic)
    work, idle = PARAMS.large_work if chain.instance.op_count >= PARAMS.large_from else PARAMS.work, 0
    while idle < PARAMS.patience and budget.left_s and (asked := now()) < stop_at and not incumbent.closed:
        reached = incumbent.bound, incumbent.best
        # What a layer that comes 2,000 times was solved for is put together, too, when its share is over.
        chain.budget = chain.budget_of(budget.left_s if chain.repeats else min(stop_at - asked, budget.left_s))
        advance_until = asked + PARAMS.advance_share * (stop_at - asked)
        while chain.open and now() < advance_until and budget.left_s:
            # A series that takes longer with its traffic costs the whole as much, so they come before combinations.
            before = chain.open_ticks
            chain.advance(work, advance_until, partial(search_series, with_transfers=True))
            work *= PARAMS.growth
            if chain.repeats and chain.open_ticks == before:
                break
        if traffic.routes.complete:
            bounds = chain.raised(bounds, PARAMS.bound_share * budget.left_s)
            incumbent.raise_bound(bounds.makespan)
        near = chain.repeats or _offer(incumbent, chain.candidates(), PARAMS.far)
        for slack in PARAMS.slacks:
            near = near and _offer(incumbent, low_traffic.schedules(slack), PARAMS.near)
        if not near:
            return bounds
        idle = idle + 1 if reached == (incumbent.bound, incumbent.best) else 0
    return bounds


def _offer(incumbent: Incumbent, schedules: Iterable[Schedule], margin: float) -> bool:
    """Offer schedules; True if one of them is at most this share above the best."""
    near = False
    for schedule in schedules:
        incumbent.offer(schedule)
        near = near or incumbent.best is None or schedule.makespan <= (1 + margin) * incumbent.best.makespan
    return near


_Cost: TypeAlias = tuple[int, int, int]
"""Block of a series, device, and the ticks that it costs on links outside the series to have it there."""

_Question: TypeAlias = tuple[Instance, frozenset[tuple[int, int]], tuple[_Cost, ...]]
"""Series, block → device where that is decided, costs."""


class LowTraffic:
    """Schedules of the whole from those of its series that send least: *communication-minimising subproblems*.

    Many placements give a series its best time. They differ in what else has to be sent: tensors that later segments
    read, and inputs of ops outside all segments. Where a link carries one transfer at a time, that traffic delays the
    segments. A series that comes again and again, as that of a layer does, ends where the next one begins.
    """

    def __init__(self, chain: SegmentChain, traffic: Traffic) -> None:
        self.chain, self.instance, self.traffic = chain, chain.instance, traffic
        self.passes = 0
        self.random = Random(chain.budget.seed)
        self.known: dict[_Question, Schedule] = {}
        self.inside = {op for segment in chain.segments for op in segment.ops}
        self.made: dict[int, list[TransferRequest]] = {}
        for request in traffic.requests:
            self.made.setdefault(request.source, []).append(request)

    def schedules(self, slack: float) -> Iterator[Schedule]:
        """Schedules in which no series takes longer than its best time and a share of it; each pass has a new seed.

        Equal series between equal surroundings are asked once a pass.
        """
        self.passes += 1
        self.assigned = [-1] * len(self.instance.members)
        parts, answers = list[tuple[Schedule, range]](), dict[_Question, Schedule]()
        for series in self.chain.series:
            best = self.chain.incumbents[series.instance].best
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
        instance, decided, _ = question
        if self.chain.comes_again(instance):
            return self._closed(instance, dict(decided), best)
        known = self.known.get(question)
        if known is None or known.makespan > upper or self.random.random() < PARAMS.anew:
            known = self.known[question] = self._solve(question, upper) or best
        return known

    def _solve(self, question: _Question, upper: int) -> Schedule | None:
        """A schedule of at most so many ticks that sends least; None where none is found."""
        instance, decided, outside = question
        # Earlier series have named the devices, so they are no longer interchangeable.
        model, variables = build_model(instance, self.chain.bounds[instance], upper, None, True, symmetric=False)
        for number, device in decided:
            model.add(variables.place[number][device] == 1)
        terms = [(one.used, sum(segment.ticks for segment in one.route)) for one in variables.optional_transfers]
        terms += [(variables.place[number][device], cost) for number, device, cost in outside]
        model.minimize(cp_model.LinearExpr.weighted_sum([term for term, _ in terms], [cost for _, cost in terms]))
        budget = self.chain.budget
        seconds = min(PARAMS.most_s, budget.left_s)
        solver = new_solver(budget.workers, budget.seed + self.passes, seconds, PARAMS.low_traffic_work)
        if solved_in_thread(solver, model, seconds, budget.stop.is_set):
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
        """The best schedule that keeps to what is decided: that of the last pass, or a better one from another seed.

        It is one that list rules make of its order, as they do where series are put together.
        """
        kept = instance.limited({number: (device,) for number, device in decided.items()})
        key = instance, frozenset(decided.items()), ()
        budget = replace(self.chain.budget_of(self.chain.budget.left_s), seed=self.chain.budget.seed + self.passes)
        incumbent = Incumbent(budget)
        incumbent.raise_bound(self.chain.incumbents[instance].bound)
        if all(best.device[instance.members[number][0]] == device for number, device in decided.items()):
            incumbent.offer(best)
        for start in (construct(kept, list_schedule), construct(kept, heft)):
            incumbent.offer(start)
        found = incumbent.best
        worth = found is not None and found.makespan - incumbent.bound > PARAMS.anneal_gap * found.makespan
        if worth and is_kept(ANNEALING_CODE):
            anneal_schedule(kept, incumbent, PARAMS.again_s)
        if incumbent.best is not None:
            several = [self.known.get(key), *_in_order(kept, incumbent.best)]
            self.known[key] = min(filter(None, several), key=lambda schedule: schedule.makespan)
        return self.known.get(key)


def _in_order(instance: Instance, schedule: Schedule) -> list[Schedule | None]:
    """The schedules that list rules make of the devices and the order of a schedule."""
    late = [-start for start in schedule.start]
    for op in reversed(instance.order):
        late[op] = max((late[op], *(late[target] for target, _ in instance.successors[op])))
    devices = [schedule.device[ops[0]] for ops in instance.members]
    return [rule(instance, by_rank(instance, late), devices) for rule in (heft, list_schedule)]


@dataclass(frozen=True)
class SegmentParams:
    """The effort for segments; shares are of the time that is left.

    Attributes
    ----------
    largest_whole
        Up to so many ops a graph that does not fall apart is one segment.
    share, transfer_share, bound_share, find_share
        For series without transfers, then with them, for the bounds of the whole after a round, and to find segments.
    work, growth
        Deterministic seconds of CP-SAT per series in the first round, and the factor for every further one.
    again_work
        Work up to which series are searched without transfers where one comes again and again, as a layer does.
    """

    largest_whole: int = 250
    share: float = 0.5
    work: float = 0.1
    growth: float = 4.0
    again_work: float = 0.2
    transfer_share: float = 0.6
    bound_share: float = 0.1
    find_share: float = 0.25


def segments_of(
    instance: Instance, bounds: Bounds, seconds: float, params: SegmentParams = SegmentParams()
) -> list[GraphSegment]:
    """The segments between cut ops of what leads to the op that is done last; none if it does not fall apart.

    Parameters
    ----------
    seconds
        What the phase and all later ones have.
    """
    followers = [op for op in range(instance.op_count) if op not in instance.sources]
    if not followers:
        return []
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    segments = find_segments(instance, last, params.find_share * seconds)
    return segments if len(segments) > 1 or instance.op_count <= params.largest_whole else []


def solve_segments(
    instance: Instance,
    segments: list[GraphSegment],
    bounds: Bounds,
    incumbent: Incumbent,
    params: SegmentParams = SegmentParams(),
) -> Bounds:
    """Solve the segments between cut ops, in rounds of growing work; the bounds of the whole follow from theirs."""
    if not segments:
        return bounds
    budget = incumbent.budget
    stop_at = now() + params.share * budget.left_s
    chain = SegmentChain.of(instance, segments, budget)
    work = params.work
    # Where links are contended and a series comes again and again, its schedules with transfers are worth more.
    hurry = instance.traffic is not None and any(chain.comes_again(series.instance) for series in chain.open)
    while len(chain.segments) > 1 and budget.left_s:
        ends = not chain.open or now() > stop_at or (hurry and work > params.again_work)
        if ends or not hurry:
            # The bounds of a hundred thousand ops take two seconds, as long as a round of one layer's series.
            bounds = chain.raised(bounds, params.bound_share * budget.left_s)
            incumbent.raise_bound(bounds.makespan)
        for schedule in () if hurry else chain.candidates():
            incumbent.offer(schedule)
        if incumbent.closed or ends or (not hurry and now() > stop_at):
            break
        chain.advance(work, stop_at, search_series)
        work *= params.growth
    if len(chain.segments) > 1 and not incumbent.closed:
        bounds = raise_suffix_bounds(chain, bounds, incumbent)
    if instance.traffic is not None and len(chain.segments) > 1 and budget.left_s:
        stop_at = now() + params.transfer_share * budget.left_s
        bounds = search_with_transfers(chain, instance.traffic, incumbent, bounds, stop_at)
    return bounds
