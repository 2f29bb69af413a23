"""Schedules that fit in memory over time, and surrogates for heuristics that only sum memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dlplacer.core.plan import ScheduledOp, Transfer
from dlplacer.problem.live_memory import may_bind, memory_use
from dlplacer.problem.problem import Problem
from dlplacer.problem.simulate import realise
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule

_ROUNDS = 6
"""Most attempts, each on a surrogate tightened by the excess of the schedule before; a chain needs one or two."""


def admission(problem: Problem, instance: Instance) -> Callable[[Schedule], bool]:
    """A test of whether a schedule fits in every device's memory at all times; always true under ``memory: sum``."""
    return lambda schedule: not any(overflow(problem, instance, schedule))


def overflow(problem: Problem, instance: Instance, schedule: Schedule) -> list[int]:
    """[device] → bytes by which its peak of live tensors exceeds its memory, with the schedule timed in seconds."""
    if instance.traffic is None or not may_bind(problem):
        return [0] * instance.device_count
    # This test is ten times faster: if all tensors that are ever on a device fit at once, the live ones fit.
    count, most = problem.op_count, [0] * instance.device_count
    for op, here in enumerate(schedule.device[:count]):
        most[here] += problem.resident_bytes[op] + problem.output_bytes[op] + problem.workspace_bytes[op]
    for send in schedule.transfers:
        for segment in send.route:
            most[segment.target] += problem.sizes_bytes[instance.traffic.requests[send.request].size]
    if all(room is None or size <= room for size, room in zip(most, problem.capacity_bytes, strict=True)):
        return [0] * instance.device_count
    return excess_bytes(problem, *realise(problem, schedule.device[:count], schedule.start[:count], schedule.transfers))


def excess_bytes(problem: Problem, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer]) -> list[int]:
    """[device] → bytes by which the peak of a plan's ops and transfers exceeds its memory."""
    used = ((use.peak_bytes, use.capacity_bytes) for use in memory_use(problem, ops, transfers).values())
    return [0 if room is None else max(0, size - room) for size, room in used]


def attempts(
    problem: Problem, instance: Instance, rule: Callable[[Instance], Schedule | None]
) -> Iterator[tuple[Schedule | None, Instance, bool]]:
    """(schedule of a rule or None, its instance, whether it fits in memory), up to the first that fits.

    If a schedule exceeds the memory of some devices, the rule runs on a surrogate that lacks at least the excess,
    because temporary tensors, copies included, are about as large in the next schedule. A surrogate is no relaxation:
    its schedules are offered to the problem itself.
    """
    surrogate = instance
    for _ in range(_ROUNDS):
        found = rule(surrogate)
        if found is not None and found.makespan >= FAR:
            found = None  # communicating ops lie on devices that no route joins
        excess = [] if found is None else overflow(problem, surrogate, found)
        admitted = found is not None and not any(excess)
        yield found, surrogate, admitted
        if admitted or found is None:
            return
        surrogate = tightened(surrogate, [found.device[ops[0]] for ops in surrogate.members], excess)


def tightened(surrogate: Instance, place: Sequence[int], excess: Sequence[int]) -> Instance:
    """The surrogate with each overfull device's memory cut to the bytes that `place` uses there, less the excess."""
    taken = [0] * surrogate.device_count
    for here, size in zip(place, surrogate.footprint, strict=True):
        taken[here] += size
    capacity = tuple(
        min(taken[device] if room is None else room, taken[device]) - excess[device] if excess[device] else room
        for device, room in enumerate(surrogate.capacity)
    )
    return replace(surrogate, capacity=capacity)
