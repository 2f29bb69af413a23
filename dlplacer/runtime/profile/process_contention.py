"""What a core loses to processes that work on the others: caches, memory, and what a virtual machine makes of cores."""

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
from dlplacer.runtime.profile.statistic import interquartile_mean


def process_contention(job: Job, captured: Captured, devices: Sequence[RuntimeDevice], steps: int) -> float | None:
    """A step on the first device beside processes that take it on the others ÷ one while the others idle, at least 1.

    None where devices cannot be processes. Both kinds of steps alternate, each behind one that is not timed.
    """
    cores = [device for device in devices if isinstance(device, CpuDevice)]
    if why_no_processes(devices) is not None:
        return None

    def step(device: InlineDevice) -> Callable[[], object]:
        return Profiler(job, captured, [device]).step

    profiler = Profiler(job, captured, cores[:1])

    def ops_s() -> float:
        profiler.step()
        return sum(profiler.step()[0].op_times_s.values())

    alone_s, beside_s = [], []
    with closing(BusyCores(cores, step)) as neighbours:
        try:
            for _ in range(1 + steps):
                alone_s.append(ops_s())
                with neighbours.busy(range(1, len(cores))):
                    beside_s.append(ops_s())
        except RunError:  # the system makes no process: plans will not run so either
            return None
    usual_s = interquartile_mean(alone_s[1:])
    return max(1.0, interquartile_mean(beside_s[1:]) / usual_s) if usual_s else 1.0
