"""The capture of a job that takes least time on the devices at hand, and the times of its ops there."""

import time
from collections.abc import Callable, Sequence

from torch import nn

from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.fused_lstm import FORWARD, FUSED_LSTM
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.profile.op_times import Profiler, Times, times_for_planning

Report = Callable[[str, float], None]
_ROUNDS, _MOST_ROUNDS, _SHORT_ROUNDS_S = 3, 100, 3.0


def timed_capture(
    job: Job,
    capture: Callable[[Sequence[str]], Captured],
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Report = lambda what, share: None,
) -> tuple[Captured, Times]:
    """A capture of the job, and its op times as `times_for_planning` has them.

    Plain PyTorch runs an LSTM on a CPU as one kernel. Step by step it is many short ops, which devices can share: that
    takes half as long where the layer is wide, as gradients of all steps are one product then, and twice as long where
    it is narrow. So on cores an LSTM is timed both ways, and kept as what takes less on one of them, in steps that take
    turns: from one profile to the next a machine may drift by more than the two differ.

    Parameters
    ----------
    capture
        Captures the job with rewrites beside the usual ones.
    steps, warmup, on_step
        As for `times_for_planning`.
    """
    captured = capture(())
    times = times_for_planning(job, captured, devices, steps, warmup, on_step)
    if not (in_host_memory(devices) and any(isinstance(module, nn.LSTM) for module in job.module.modules())):
        return captured, times
    fused = capture((FUSED_LSTM,))
    if not any(code.instructions[0].target is FORWARD for code in fused.executable.of_role("call")):
        return captured, times
    fused_times = times_for_planning(job, fused, devices, steps, warmup, on_step)
    return (fused, fused_times) if step_ratio(job, fused, captured, devices[0]) < 1 else (captured, times)


def step_ratio(job: Job, one: Captured, other: Captured, device: RuntimeDevice) -> float:
    """Seconds of a step of one capture ÷ of another on a device, by the mean of rounds in which they take turns.

    In every round each takes a `Profiler.settled_step`.
    """
    profilers = [Profiler(job, captured, [device]) for captured in (one, other)]
    ratios: list[float] = []
    begin = time.monotonic()
    while len(ratios) <= _ROUNDS or (time.monotonic() < begin + _SHORT_ROUNDS_S and len(ratios) <= _MOST_ROUNDS):
        one_s, other_s = (profiler.settled_step()[0].wall_s for profiler in profilers)
        ratios.append(one_s / other_s)
    return trimmed_mean(ratios[1:])
