"""Which timetables keep to the memory over time; how heuristics, which count sums, can be led to one that does."""

from collections.abc import Callable, Iterator

from dlplacer.live import Journey, may_bind, peaks
from dlplacer.problem import Problem
from dlplacer.solvers.instance import Instance, build_instance
from dlplacer.solvers.timetable import Timetable
from dlplacer.traffic import Traffic

_SHARES = (1.0, 0.5, 0.75, 0.25, 1.5)

Admission = Callable[[Timetable], bool]


def admission(problem: Problem, instance: Instance) -> Admission:
    """Whether a timetable of the problem's instance keeps every device's memory at all times.

    Under ``memory: sum`` all do, as the sum is a rule of the instance itself.
    """
    traffic = instance.traffic
    if traffic is None or not may_bind(problem):
        return lambda timetable: True

    def admits(timetable: Timetable) -> bool:
        used = live_peaks(problem, traffic, timetable)
        return all(room is None or size <= room for size, room in zip(used, problem.capacity_bytes, strict=True))

    return admits


def live_peaks(problem: Problem, traffic: Traffic, timetable: Timetable) -> list[int]:
    """[device] → peak of what is alive in a timetable."""
    device, start = timetable.device, timetable.start
    end = [start[op] + (problem.duration[op][device[op]] or 0) for op in range(problem.op_count)]
    journeys = [
        Journey(
            traffic.parcels[send.parcel].source,
            traffic.parcels[send.parcel].size,
            traffic.parcels[send.parcel].keepers,
            tuple(
                (stretch.target, begin, begin + stretch.ticks)
                for stretch, begin in zip(send.way, send.start, strict=True)
            ),
            traffic.parcels[send.parcel].tensor,
        )
        for send in timetable.sends
    ]
    return peaks(problem, device, start, end, journeys)


def stricter(problem: Problem) -> Iterator[Instance]:
    """Instances whose footprints count shares of what is alive for a while only: not relaxations, but guides."""
    if may_bind(problem):
        for share in _SHARES:
            yield build_instance(problem, share)
