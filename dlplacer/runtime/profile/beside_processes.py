"""Op times beside processes that work on the other cores: what cores share besides an interpreter."""

import time
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
from dlplacer.runtime.profile.statistic import OpTimes, quartiles, typical

_WARM_ROUNDS = 2
_AT_LEAST_S, _AT_MOST_S = 2.0, 8.0
"""A virtual machine's cores may be slow for a second or so, and then not: steps are taken for as long as that, and
longer while they do not agree."""
_SURE = 0.02
"""On how much longer an op takes: the spread of single steps between quartiles is this times the root of their
number."""


def times_beside_processes(
    job: Job, captured: Captured, devices: Sequence[RuntimeDevice], steps: int
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Op → typical seconds on the first device, while the others idle and beside processes that take the step on them.

    None where devices cannot be processes. Both kinds of steps alternate, each behind one that is not timed.

    Parameters
    ----------
    steps
        Least number of steps of each kind.
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

    alone: list[OpTimes] = []
    beside: list[OpTimes] = []
    longer: list[float] = []
    begin = time.monotonic()
    with closing(BusyCores(cores, step)) as neighbours:
        try:
            while len(longer) < _WARM_ROUNDS + steps or not _are_enough(
                longer[_WARM_ROUNDS:], time.monotonic() - begin
            ):
                alone.append(timed())
                with neighbours.busy(range(1, len(cores))):
                    beside.append(timed())
                longer.append(sum(beside[-1].values()) / sum(alone[-1].values()))
        except RunError:  # the system makes no process: plans will not run so either
            return None
    return typical(alone[_WARM_ROUNDS:]), typical(beside[_WARM_ROUNDS:])


def _are_enough(longer: Sequence[float], spent_s: float) -> bool:
    """Whether so many steps beside neighbours ÷ steps alone, taken in so many seconds, agree."""
    if spent_s < _AT_LEAST_S:
        return False
    low, high = quartiles(longer)
    return spent_s > _AT_MOST_S or high - low <= _SURE * len(longer) ** 0.5
