"""What a core pays to read what another core has just written: it lies in the other's cache."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.profile.statistic import settled

# From what a core's first cache holds to what no core's own cache holds any more: beyond, everybody reads from the
# shared cache or from memory, and nothing is added.
_SIZES_BYTES = tuple(2**power for power in range(12, 25))
_REPETITIONS = 16


@dataclass(frozen=True)
class RemoteReads:
    """Seconds that the first read of a tensor takes longer where another core has made it.

    Attributes
    ----------
    sizes_bytes, extra_s
        Sizes, ascending, and the seconds that were measured with them; between neighbours in proportion.
    """

    sizes_bytes: Sequence[int] = (1,)
    extra_s: Sequence[float] = (0.0,)

    def seconds(self, size_bytes: int) -> float:
        """For a tensor of this size."""
        at = bisect_left(self.sizes_bytes, size_bytes)
        if at == 0:
            return self.extra_s[0] * size_bytes / self.sizes_bytes[0]
        if at == len(self.sizes_bytes):
            return self.extra_s[-1]
        below, above = self.sizes_bytes[at - 1 : at + 1]
        share = (size_bytes - below) / (above - below)
        return (1 - share) * self.extra_s[at - 1] + share * self.extra_s[at]


def remote_reads(devices: Sequence[RuntimeDevice]) -> RemoteReads:
    """Measured between the first two cores; nothing where devices are not cores: their tensors are copied."""
    if len(devices) < 2 or not in_host_memory(devices):
        return RemoteReads()
    first, second = devices[:2]
    return RemoteReads(_SIZES_BYTES, [_extra_s(first, second, size) for size in _SIZES_BYTES])


def _extra_s(first: RuntimeDevice, second: RuntimeDevice, size_bytes: int) -> float:
    """Seconds that `second` needs longer for a tensor that `first` has changed than for one that it has itself."""
    tensor = torch.zeros(size_bytes // 4)
    # An op that writes as much as it reads, as most do: it hides more of the wait than a sum would.
    times: dict[RuntimeDevice, list[float]] = {first: [], second: []}
    for _ in range(_REPETITIONS):
        for writer, found in times.items():
            writer.submit(lambda: tensor.add_(1)).result()
            found.append(second.submit(lambda: _timed(lambda: torch.relu(tensor))).result())
    return max(0.0, settled(times[first]) - settled(times[second]))


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
