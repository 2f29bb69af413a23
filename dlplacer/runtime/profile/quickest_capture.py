"""The capture of a job that takes least time on the devices at hand, and the times of its ops there."""

from collections.abc import Callable, Sequence

from torch import nn

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.fused_lstm import FORWARD, FUSED_LSTM
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.profile.short_ops import PlanningTimes, times_for_planning

Report = Callable[[str, float], None]


def timed_capture(
    job: Job,
    capture: Callable[[Sequence[str]], Captured],
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Report = lambda what, share: None,
) -> tuple[Captured, PlanningTimes]:
    """A capture of the job, and its op times as `times_for_planning` has them.

    Plain PyTorch runs an LSTM on a CPU as one kernel. Step by step it is many short ops, which devices can share: that
    takes half as long where the layer is wide, as gradients of all steps are one product then, and twice as long where
    it is narrow. So on cores an LSTM is timed both ways, and kept as what takes less on one of them.

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
    return (fused, fused_times) if _seconds(fused_times) < _seconds(times) else (captured, times)


def _seconds(times: PlanningTimes) -> float:
    """All ops one after another, on the device type where that takes least."""
    return min(sum(of_ops.values()) for of_ops in times.of_ops.values())
