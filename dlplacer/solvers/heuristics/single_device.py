"""The whole graph on one device: the baseline that every speedup is measured against."""

from dlplacer.problem.live_memory import peaks
from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.outcome import ProblemSchedule


def best_single(problem: Problem) -> ProblemSchedule | None:
    """All ops on the device where they end first, or None where they fit on none."""
    return min(singles(problem), key=lambda schedule: schedule.makespan, default=None)


def singles(problem: Problem) -> list[ProblemSchedule]:
    """All ops on one device, for each on which they fit."""
    return [_on_device(problem, device) for device in range(problem.device_count) if _fits(problem, device)]


def _fits(problem: Problem, device: int) -> bool:
    capacity = problem.capacity_bytes[device]
    if not all(device in allowed for allowed in problem.allowed):
        return False
    if capacity is None or problem.options.memory == "sum":
        return capacity is None or sum(problem.footprint_bytes) <= capacity
    schedule = _on_device(problem, device)
    return peaks(problem, schedule.device, schedule.start, schedule.end, ())[device] <= capacity


def _on_device(problem: Problem, device: int) -> ProblemSchedule:
    start = [0] * problem.op_count
    now = 0
    for op in problem.topological:
        start[op] = now
        now += problem.duration[op][device] or 0
    return ProblemSchedule(problem, (device,) * problem.op_count, tuple(start))
