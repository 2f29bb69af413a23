"""Op times beside processes that work on the other cores: what cores share besides an interpreter."""

from collections.abc import Callable, Sequence
from contextlib import closing

from dlplacer.core.errors import RunError
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes.busy_cores import BusyCores
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.support import why_no_processes
from dlplacer.runtime.profile.op_times import Profiler
from dlplacer.runtime.profile.statistic import OpTimes, typical

_WARM_ROUNDS = 2


def times_beside_processes(
    job: Job, captured: Captured, devices: Sequence[RuntimeDevice], steps: int
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Op → typical seconds on the first device, while the others idle and beside processes that take the step on them.

    None where devices cannot be processes. Both kinds of steps alternate, each behind one that is not timed.
    """
    cores = [device for device in devices if isinstance(device, CpuDevice)]
    if why_no_processes(devices) is not None:
        return None

    def step(device: InlineDevice) -> Callable[[], object]:
        return Profiler(job, captured, [device]).step

    profiler = Profiler(job, captured, cores[:1])

    def timed() -> OpTimes:
        profiler.step()
        return profiler.step()[0].op_times_s

    alone, beside = [], []
    with closing(BusyCores(cores, step)) as neighbours:
        try:
            for _ in range(_WARM_ROUNDS + steps):
                alone.append(timed())
                with neighbours.busy(range(1, len(cores))):
                    beside.append(timed())
        except RunError:  # the system makes no process: plans will not run so either
            return None
    return typical(alone[_WARM_ROUNDS:]), typical(beside[_WARM_ROUNDS:])
