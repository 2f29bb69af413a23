"""The whole graph on one device: the baseline that every speedup is measured against."""

from dlplacer.problem.live_memory import peaks
from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.schedule import ProblemSchedule


def best_single(problem: Problem) -> ProblemSchedule | None:
    """The schedule with all ops on the device where they end first; None if they fit on no device."""
    return min(singles(problem), key=lambda schedule: schedule.makespan, default=None)


def singles(problem: Problem) -> list[ProblemSchedule]:
    """Schedules with all ops on one device, one for each device that can hold them."""
    everywhere = [
        number for number in range(problem.device_count) if all(number in allowed for allowed in problem.allowed)
    ]
    found, needs = list[ProblemSchedule](), dict[str, tuple[tuple[int, ...], int]]()
    for device in everywhere:
        kind, capacity = problem.topology.devices[device].type, problem.capacity_bytes[device]
        if kind not in needs:
            needs[kind] = _needs(problem, device)
        start, size = needs[kind]
        if capacity is None or size <= capacity:
            found.append(ProblemSchedule(problem, (device,) * problem.op_count, start))
    return found


def _needs(problem: Problem, device: int) -> tuple[tuple[int, ...], int]:
    """[op] → start tick on a device, and the peak bytes there; both are the same on all devices of its type."""
    start = [0] * problem.op_count
    now = 0
    for op in problem.topological:
        start[op] = now
        now += problem.duration[op][device] or 0
    if problem.options.memory == "sum":
        return tuple(start), sum(problem.footprint_bytes)
    # Ticks may round short ops to zero, so order alone decides which tensors are alive.
    turn = [0] * problem.op_count
    for place, op in enumerate(problem.topological):
        turn[op] = place
    kind = problem.topology.devices[device].type
    end = [now + (op.time_on(kind) != 0) for now, op in zip(turn, problem.graph.ops, strict=True)]
    return tuple(start), peaks(problem, (device,) * problem.op_count, turn, end)[device]
