"""Where memory over time is so short that no heuristic finds a plan: a placement and an order that keep it.

Ops follow one another on the whole machine, and every tensor is sent just before its first reader on a device: least is
alive so, at the price of time. Simulated annealing over placements and orders then lessens the bytes by which devices
are exceeded, whatever the makespan: to find any plan is as hard as bin packing. What it finds a search goes on from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import exp
from random import Random

from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.memory_admission import overflow
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time, now


@dataclass(frozen=True)
class RoomParams:
    """Settings of the annealing; found on problems of 7 to 30 ops, never tuned.

    Attributes
    ----------
    steps
        From a random placement to the next.
    warm, cooling
        First temperature as a share of what is exceeded at first, and the factor for every step.
    moves, away
        The share of steps that move blocks, others move an op in the order; of these, that of a block away from a
        device that is exceeded.
    both
        The share of moves that move a second block too: two exchange places.
    """

    steps: int = 3000
    warm: float = 0.2
    cooling: float = 0.998
    moves: float = 0.6
    away: float = 0.5
    both: float = 0.3


PARAMS = RoomParams()


@dataclass(frozen=True)
class _Tried:
    """A placement by block and an order by rank, their schedule, and [device] → bytes by which it is exceeded."""

    place: list[int]
    rank: list[float]
    schedule: Schedule | None
    excess: list[int]

    @property
    def cost(self) -> int:
        return sum(self.excess)


def one_by_one(instance: Instance, device: Sequence[int], order: Sequence[int]) -> Schedule | None:
    """The ops in this order, one at a time on the whole machine, with what each reads sent just before it.

    By routes of least delay, one transfer after another. None where no route leads. Without traffic memory over time is
    not short, and ops run side by side.

    Parameters
    ----------
    device
        [op] → device.
    order
        All ops, each after what it reads.
    """
    traffic, now = instance.traffic, 0
    if traffic is None:
        return in_sequence(instance, device, order)
    start, sent = [0] * instance.op_count, list[ScheduledTransfer]()
    there: set[tuple[int, int]] = set()
    for op in order:
        here = device[op]
        for number in traffic.reads[op] if op < len(traffic.reads) else ():
            request = traffic.requests[number]
            source = device[request.source]
            if source == here or (number, here) in there:
                continue
            if not traffic.routes.joined(request.size, source, here):
                return None
            there.add((number, here))
            route, starts = traffic.routes.quickest(request.size, source, here), list[int]()
            for segment in route:
                starts.append(now)
                now += segment.ticks
            sent.append(ScheduledTransfer(number, here, route, tuple(starts)))
        start[op] = now
        now += instance.duration[op][here]
    return Schedule(tuple(device), tuple(start), now, tuple(sent))


def search_room(
    problem: Problem, instance: Instance, placement: Sequence[int] | None, seconds: float, seed: int
) -> Schedule | None:
    """A schedule that keeps the memory at all times, or None if none was found in time.

    What comes nearest is noted: see `missed_by`.

    Parameters
    ----------
    placement
        [op of the problem] → device, to begin with; None: at random.
    """
    stop_at, random = now() + seconds, Random(seed)
    nearest: _Tried | None = None
    begin = None
    if placement is not None:
        begin = [
            placement[ops[0]] if ops[0] < problem.op_count else instance.allowed[ops[0]][0] for ops in instance.members
        ]
    while now() < stop_at:
        found = _anneal(problem, instance, begin, random, stop_at)
        begin = None
        if nearest is None or found.cost < nearest.cost:
            nearest = found
            _note(problem, found)
        if not found.cost:
            return found.schedule
    return None


def _anneal(problem: Problem, instance: Instance, begin: list[int] | None, random: Random, stop_at: float) -> _Tried:
    """The best of one descent from a placement, or from a random one."""
    position = {op: number for number, op in enumerate(instance.order)}
    place = begin or [random.choice(instance.allowed[ops[0]]) for ops in instance.members]
    spread = 0.0 if begin else instance.op_count / 3
    rank = [position[op] + random.random() * spread for op in range(instance.op_count)]
    current = best = _tried(problem, instance, place, rank)
    temperature = PARAMS.warm * current.cost + 1
    for _ in range(PARAMS.steps):
        if not best.cost or now() > stop_at:
            break
        ask_time()
        other = _tried(problem, instance, *_moved(instance, current, random))
        if other.cost <= current.cost or random.random() < exp((current.cost - other.cost) / temperature):
            current = other
            best = min(best, current, key=lambda tried: tried.cost)
        temperature = max(1.0, temperature * PARAMS.cooling)
    return best


def _moved(instance: Instance, current: _Tried, random: Random) -> tuple[list[int], list[float]]:
    place, rank = current.place, current.rank
    if random.random() >= PARAMS.moves:
        rank = rank.copy()
        rank[random.randrange(len(rank))] = random.random() * 1.3 * len(rank)
        return place, rank
    place = place.copy()
    exceeded = [number for number, here in enumerate(place) if current.excess[here]]
    for several in (exceeded, range(len(place))):
        if several and (several is not exceeded or random.random() < PARAMS.away):
            number = random.choice(several)
            place[number] = random.choice(instance.allowed[instance.members[number][0]])
            if random.random() >= PARAMS.both:
                break
    return place, rank


def _tried(problem: Problem, instance: Instance, place: list[int], rank: list[float]) -> _Tried:
    schedule = one_by_one(instance, [place[number] for number in instance.block], _in_order(instance, rank))
    if schedule is None or schedule.makespan >= FAR:
        # Ops that no route joins: more than any excess of memory.
        everything = sum(problem.footprint_bytes) + sum(problem.output_bytes) + sum(problem.workspace_bytes)
        return _Tried(place, rank, None, [1 + everything] * instance.device_count)
    over_time = overflow(problem, instance, schedule)
    return _Tried(place, rank, schedule, [*map(max, over_time, _over_sums(instance, place))])


def _over_sums(instance: Instance, place: Sequence[int]) -> list[int]:
    """[device] → bytes by which the footprints there exceed it (eq. 13)."""
    used = [0] * instance.device_count
    for here, size in zip(place, instance.footprint, strict=True):
        used[here] += size
    rooms = zip(used, instance.capacity, strict=True)
    return [0 if room is None else max(0, size - room) for size, room in rooms]


def _in_order(instance: Instance, rank: Sequence[float]) -> list[int]:
    """All ops by rank, each after what it reads."""
    missing = [len(arcs) for arcs in instance.predecessors]
    ready = [(rank[op], op) for op, count in enumerate(missing) if not count]
    heapify(ready)
    order = list[int]()
    while ready:
        op = heappop(ready)[1]
        order.append(op)
        for target, _ in instance.successors[op]:
            missing[target] -= 1
            if not missing[target]:
                heappush(ready, (rank[target], target))
    return order


def missed_by(problem: Problem) -> tuple[int, int] | None:
    """Device and bytes by which the search that came nearest to a plan exceeded it; None where none came near."""
    found: tuple[int, int] | None = problem.derived.get(search_room)
    return found


def _note(problem: Problem, found: _Tried) -> None:
    device = max(range(len(found.excess)), key=found.excess.__getitem__)
    if found.schedule is not None and found.excess[device]:
        problem.derived[search_room] = device, found.excess[device]
