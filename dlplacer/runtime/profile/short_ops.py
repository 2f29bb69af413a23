"""Times of short ops, which cores that share an interpreter cannot run at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.processes.process_choice import PROCESSES
from dlplacer.runtime.profile.beside_processes import times_beside_processes
from dlplacer.runtime.profile.dispatch_time import turn_time_s
from dlplacer.runtime.profile.op_times import Profiler, Times, profiled_in_turn
from dlplacer.runtime.profile.statistic import OpTimes

_IN_CACHE_S = 100e-6
"""Below that a core reads at most a megabyte or so, which its own cache holds."""


@dataclass(frozen=True, slots=True)
class PlanningTimes:
    """What a plan is made with.

    Attributes
    ----------
    of_ops
        Device type → op id → typical seconds. Of several cores whose ops are short on average, beside processes that
        keep the others busy (`times_beside_processes`); of others side by side, as `without_turns` has them.
    contention_factor
        As `OpGraph.contention_factors`, where several cores were timed.
    """

    of_ops: Times
    contention_factor: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def times_for_planning(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Callable[[str, float], None] = lambda what, share: None,
) -> PlanningTimes:
    """Op times on these devices, all at work at the same time.

    On cores the heap is reserved for all of them first, so that the tensors of all lie in large pages. A core whose
    tensors lie in small ones takes 1.4 times as long for VGG-19, whose large layers wait for memory.

    Parameters
    ----------
    on_step
        Hears before each step what is done, and which share of the steps has been taken.
    """
    if in_host_memory(devices):
        # What is freed leaves gaps: a part more than the devices.
        reserve_heap((1 + len(devices)) * sum(op.footprint_bytes for op in captured.graph.ops))

    def report(done: int, total: int) -> None:
        on_step(f"step {done + 1} of {total}", done / total)

    share = len(devices) > 1 and in_host_memory(devices)
    counts = (len(devices), 1) if share else (len(devices),)
    together, *others = profiled_in_turn(Profiler(job, captured, devices), counts, steps, warmup, report)
    if not others:
        return PlanningTimes(together)
    (alone,) = others
    if all(_are_short(times) for times in alone.values()):
        found = times_beside_processes(job, captured, devices, steps)
        if found is not None:
            (kind,) = alone
            factors = {"threads": _longer_by(together[kind], alone[kind]), "processes": _longer_by(found[1], found[0])}
            return PlanningTimes({kind: found[1]}, {kind: factors})
    times = without_turns(together, alone, len(devices) * turn_time_s(devices))
    return PlanningTimes(
        times,
        {
            kind: {"threads": _longer_by(together[kind], of_ops), "processes": _longer_by(times[kind], of_ops)}
            for kind, of_ops in alone.items()
        },
    )


def without_turns(
    together: Mapping[str, Mapping[str, float]], alone: Mapping[str, Mapping[str, float]], shortest_s: float
) -> Times:
    """Device type → op id → seconds: times side by side, but without the waits for the interpreter.

    Side by side an op waits for the interpreter, which is no time of the op: a simulation adds that where other devices
    work beside it (`dlplacer.problem.dispatch`). What longer ops lose to their neighbours besides is memory bandwidth
    and cache, which they will lose in a plan too. An op of less than `shortest_s` is all wait. One that takes longer
    waits for a thread to wake, however long it is: 12 us in Inception, 35 in recurrent nets, 50 in a small transformer,
    whose ops side by side took three times as long. So that wait is what ops lose in the middle that are too short to
    lose to memory.

    Parameters
    ----------
    together, alone
        The same ops, timed with all devices at work and with one.
    """
    kept: Times = {}
    for kind, times in together.items():
        single = alone[kind]
        lost = [times[op] - time_s for op, time_s in single.items() if shortest_s <= time_s < _IN_CACHE_S]
        wait_s = max(0.0, median(lost)) if lost else 0.0
        kept[kind] = {
            op: single[op] if single[op] < shortest_s else max(min(single[op], time_s), time_s - wait_s)
            for op, time_s in times.items()
        }
    return kept


def _are_short(times: OpTimes) -> bool:
    """Whether threads lose to the interpreter what matters, as `ProcessTrial` has it."""
    return sum(times.values()) < PROCESSES.large_op_s * len(times)


def _longer_by(times: OpTimes, alone: OpTimes) -> float:
    alone_s = sum(alone.values())
    return max(1.0, sum(times.values()) / alone_s) if alone_s else 1.0
