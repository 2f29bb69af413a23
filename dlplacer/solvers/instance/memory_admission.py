"""Schedules that keep to the memory over time, and surrogates that lead heuristics, which count sums, to one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dlplacer.problem.live_memory import TensorLifetime, may_bind, memory_use, peaks, stashes
from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import Traffic
from dlplacer.problem.simulate import realise
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import ProblemSchedule, Schedule

_ROUNDS = 6
"""Times that a surrogate is tightened by what its schedule exceeds; a chain needs one or two."""

Admission = Callable[[Schedule], bool]
Rule = Callable[[Instance], Schedule | None]


def admission(problem: Problem, instance: Instance) -> Admission:
    """True if a schedule of the problem's instance keeps every device's memory at all times.

    Under ``memory: sum`` all do, as the sum is a rule of the instance itself.
    """
    return lambda schedule: not any(overflow(problem, instance, schedule))


def overflow(problem: Problem, instance: Instance, schedule: Schedule) -> list[int]:
    """[device] → bytes by which the peak of what is alive exceeds its memory, once the schedule is in seconds.

    If memory suffices in ticks, and no op is shorter than a tick, it does in seconds (`realise`), and that takes a
    tenth of the time to see.
    """
    if instance.traffic is None or not may_bind(problem) or _fits_in_ticks(problem, instance.traffic, schedule):
        return [0] * instance.device_count
    count = problem.op_count
    ops, transfers = realise(problem, schedule.device[:count], schedule.start[:count], schedule.transfers)
    used = [entry.peak_bytes for entry in memory_use(problem, ops, transfers).values()]
    rooms = zip(used, problem.capacity_bytes, strict=True)
    return [0 if room is None else max(0, size - room) for size, room in rooms]


def _fits_in_ticks(problem: Problem, traffic: Traffic, schedule: Schedule) -> bool:
    placed = zip(problem.graph.ops, schedule.device, problem.duration, strict=False)
    if any(not row[here] and op.time_on(problem.topology.devices[here].type) for op, here, row in placed):
        return False
    lifetimes = []
    for send in schedule.transfers:
        request = traffic.requests[send.request]
        steps = zip(send.route, send.start, strict=True)
        stops = tuple((segment.target, begin, begin + segment.ticks) for segment, begin in steps)
        lifetimes.append(TensorLifetime(request.source, request.size, request.keepers, stops, request.tensor))
    plan = ProblemSchedule(problem, schedule.device[: problem.op_count], schedule.start[: problem.op_count])
    used = peaks(problem, plan.device, plan.start, plan.end, lifetimes)
    return all(room is None or size <= room for size, room in zip(used, problem.capacity_bytes, strict=True))


@dataclass(frozen=True)
class Attempt:
    """The schedule that a rule made of a surrogate.

    Attributes
    ----------
    schedule
        None where it runs out of memory.
    admitted
        Whether the schedule keeps the memory at all times.
    """

    schedule: Schedule | None
    surrogate: Instance
    admitted: bool


def attempts(problem: Problem, instance: Instance, rule: Rule) -> Iterator[Attempt]:
    """The schedules that a rule makes of the instance, and of tighter ones, one after another, up to the first plan.

    A schedule that exceeds the memory of some devices tells by how much: there the surrogate may hold so much less than
    it did in that schedule, and the rule is asked again, since what is alive for a while, copies included, is about as
    large in the next schedule. Unless the first is a plan, then once more from the surrogate that counts what is kept
    for the backward pass, which led to shorter plans of layers on unequal devices and to longer ones of Inception-V3.
    """
    for surrogate in surrogates(problem, instance):
        for turn in range(_ROUNDS):
            found = rule(surrogate)
            excess = [] if found is None else overflow(problem, surrogate, found)
            admitted = found is not None and not any(excess)
            yield Attempt(found, surrogate, admitted)
            if admitted and surrogate is instance and not turn:
                return
            if admitted or found is None:
                break
            surrogate = tightened(surrogate, [found.device[ops[0]] for ops in surrogate.members], excess)


def tightened(surrogate: Instance, place: Sequence[int], excess: Sequence[int]) -> Instance:
    """The surrogate whose devices hold less than under a placement [block] → device by what they exceed there."""
    taken = [0] * surrogate.device_count
    for here, size in zip(place, surrogate.footprint, strict=True):
        taken[here] += size
    capacity = tuple(
        min(taken[device] if room is None else room, taken[device]) - excess[device] if excess[device] else room
        for device, room in enumerate(surrogate.capacity)
    )
    return replace(surrogate, capacity=capacity)


def surrogates(problem: Problem, instance: Instance) -> Iterator[Instance]:
    """The instance, then with a barrier the one that counts with each op what is kept of its outputs behind it.

    In a training step that is nearly all that is alive at the peak. It is no relaxation: its schedules are offered to
    the problem itself.
    """
    yield instance
    kept = stashes(problem) if may_bind(problem) else []
    if kept:
        footprint = list(instance.footprint)
        for stash in kept:
            footprint[instance.block[stash.source]] += stash.size
        yield replace(instance, footprint=tuple(footprint))
