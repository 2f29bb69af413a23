"""Times of short ops, which cores that share an interpreter cannot run at once."""

from collections.abc import Callable, Mapping, Sequence

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.profile.dispatch_time import turn_time_s
from dlplacer.runtime.profile.op_times import profile_ops


def times_for_planning(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, dict[str, float]]:
    """Device type → op id → typical seconds, on several cores as `without_turns` has them.

    On cores the heap is reserved for all of them first, so that the tensors of all lie in large pages. A core whose
    tensors lie in small ones takes 1.4 times as long for VGG-19, whose large layers wait for memory.

    Parameters
    ----------
    on_step
        Hears before each step what is done, and which share of the steps of its kind has been taken.
    """
    if in_host_memory(devices):
        # What is freed leaves gaps: a part more than the devices.
        reserve_heap((1 + len(devices)) * sum(op.footprint_bytes for op in captured.graph.ops))
    times = profile_ops(
        job, captured, devices, steps, warmup, lambda done, total: on_step(f"step {done + 1} of {total}", done / total)
    )
    if len(devices) < 2 or not in_host_memory(devices):
        return times
    alone = profile_ops(
        job, captured, devices[:1], steps, warmup, lambda done, total: on_step("one device alone", done / total)
    )
    return without_turns(times, alone, len(devices) * turn_time_s(devices))


def without_turns(
    together: Mapping[str, Mapping[str, float]], alone: Mapping[str, Mapping[str, float]], shortest_s: float
) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds: times side by side, but alone for ops that take less than `shortest_s` alone.

    Side by side such an op waits for the interpreter as often as not, which is no time of the op: a simulation adds
    that where other devices work beside it (`dlplacer.problem.dispatch`). Longer ops do not wait for turns; what they
    lose to their neighbours is memory bandwidth and cache, which they will lose in a plan too.

    Parameters
    ----------
    together, alone
        The same ops, timed with all devices at work and with one.
    """
    return {
        kind: {op: alone[kind][op] if alone[kind][op] < shortest_s else time_s for op, time_s in times.items()}
        for kind, times in together.items()
    }
