"""Schedules that keep to the memory over time, and surrogates that lead heuristics, which count sums, to one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dlplacer.problem.live_memory import may_bind, memory_use, stashes
from dlplacer.problem.problem import Problem
from dlplacer.problem.simulate import realise
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule

_FILLS = (0.4, 0.6, 0.8, 0.9, 0.98)
"""Shares to which surrogates fill the machine: they count as much of outputs and workspace as fits then."""

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
    """[device] → bytes by which the peak of what is alive exceeds its memory, once the schedule is in seconds."""
    if instance.traffic is None or not may_bind(problem):
        return [0] * instance.device_count
    count = problem.op_count
    ops, transfers = realise(problem, schedule.device[:count], schedule.start[:count], schedule.transfers)
    used = [entry.peak_bytes for entry in memory_use(problem, ops, transfers).values()]
    rooms = zip(used, problem.capacity_bytes, strict=True)
    return [0 if room is None else max(0, size - room) for size, room in rooms]


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
    """The schedules that a rule makes of the instance, then of surrogates, one after another, up to the first plan.

    Then once more up to a plan on the surrogate that counts what is kept for the backward pass, which led to shorter
    plans of layers on unequal devices and to longer ones of Inception-V3.
    """
    found = rule(instance)
    admitted = found is not None and not any(overflow(problem, instance, found))
    yield Attempt(found, instance, admitted)
    if not admitted:
        yield from _up_to_a_plan(problem, rule, surrogates(problem))
        yield from _up_to_a_plan(problem, rule, keeping_surrogates(problem))


def _up_to_a_plan(problem: Problem, rule: Rule, several: Iterable[Instance]) -> Iterator[Attempt]:
    """The rule on one surrogate after another until a schedule keeps the memory at all times.

    A schedule that exceeds the memory of some devices tells by how much: there the surrogate may hold so much less than
    it did in that schedule, and the rule is asked again, since what is alive for a while, copies included, is about as
    large in the next schedule.
    """
    for surrogate in several:
        for _ in range(_ROUNDS):
            found = rule(surrogate)
            excess = [] if found is None else overflow(problem, surrogate, found)
            admitted = found is not None and not any(excess)
            yield Attempt(found, surrogate, admitted)
            if admitted:
                return
            if found is None:
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


def keeping_surrogates(problem: Problem) -> Iterator[Instance]:
    """The surrogate that counts with each op what is kept of its outputs for the backward pass; none without barrier.

    In a training step that is nearly all that is alive at the peak.
    """
    kept = stashes(problem) if may_bind(problem) else []
    if kept:
        instance = build_instance(problem)
        footprint = list(instance.footprint)
        for stash in kept:
            footprint[instance.block[stash.source]] += stash.size
        yield replace(instance, footprint=tuple(footprint))


def surrogates(problem: Problem) -> Iterator[Instance]:
    """Surrogates: instances whose footprints count shares of what is alive for a while only.

    They are no relaxations: their schedules are offered to the problem itself. Where only copies on other devices are
    alive for a while, it is the instance itself, to be tightened. Where a device is unlimited, as a host may be, there
    is room for all at once.
    """
    if not may_bind(problem):
        return
    most = sum(problem.output_bytes) + sum(problem.workspace_bytes)
    room = sum(size or 0 for size in problem.capacity_bytes) - sum(problem.resident_bytes)
    if None in problem.capacity_bytes:
        room = most
    if not most:
        yield build_instance(problem)
        return
    for fill in _FILLS:
        share = min(1.5, fill * room / most)
        if share > 0:
            yield build_instance(problem, share)
