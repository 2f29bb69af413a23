"""Which schedules keep to the memory over time; how heuristics, which count sums, can be led to one that does."""

from collections.abc import Callable, Iterator

from dlplacer.problem.live_memory import TensorLifetime, may_bind, peaks
from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import Traffic
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule

_SHARES = (1.0, 0.5, 0.75, 0.25, 1.5)
"""Shares of outputs and workspace that surrogates count as footprint, the most likely first: with all of it a schedule
that fits is sure to fit, with less more of them are found. The list was never tuned."""

Admission = Callable[[Schedule], bool]


def admission(problem: Problem, instance: Instance) -> Admission:
    """Whether a schedule of the problem's instance keeps every device's memory at all times.

    Under ``memory: sum`` all do, as the sum is a rule of the instance itself.
    """
    traffic = instance.traffic
    if traffic is None or not may_bind(problem):
        return lambda schedule: True

    def admits(schedule: Schedule) -> bool:
        used = live_peaks(problem, traffic, schedule)
        return all(room is None or size <= room for size, room in zip(used, problem.capacity_bytes, strict=True))

    return admits


def live_peaks(problem: Problem, traffic: Traffic, schedule: Schedule) -> list[int]:
    """[device] → peak of what is alive in a schedule."""
    device, start = schedule.device, schedule.start
    end = [start[op] + (problem.duration[op][device[op]] or 0) for op in range(problem.op_count)]
    lifetimes = [
        TensorLifetime(
            traffic.requests[send.request].source,
            traffic.requests[send.request].size,
            traffic.requests[send.request].keepers,
            tuple(
                (segment.target, begin, begin + segment.ticks)
                for segment, begin in zip(send.route, send.start, strict=True)
            ),
            traffic.requests[send.request].tensor,
        )
        for send in schedule.transfers
    ]
    return peaks(problem, device, start, end, lifetimes)


def surrogates(problem: Problem) -> Iterator[Instance]:
    """Surrogates: instances whose footprints count shares of what is alive for a while only.

    They are no relaxations: their schedules are offered to the problem itself.
    """
    if may_bind(problem):
        for share in _SHARES:
            yield build_instance(problem, share)
