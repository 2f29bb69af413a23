"""What handing a tensor over in shared memory takes, where devices are processes."""

import time
from dataclasses import dataclass

import torch

from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.slot import TensorSlot
from dlplacer.runtime.profile.statistic import settled

_SMALL_BYTES, _LARGE_BYTES = 64, 2**20
_REPETITIONS = 64
_SIDE = 64


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Seconds of a core that hands a tensor over to another process, or takes it.

    Attributes
    ----------
    write
        The line of writing a tensor, which copies it; what `process_link` finds has the bytes' way to the other core.
    read_s
        Looking at one that is there.
    wait_s
        What else a hand-over takes in a step: `dlplacer.runtime.profile.process_link`.
    step_s
        What a step takes longer, besides its hand-overs, since another process is asked and answers.
    """

    write: AlphaBeta
    read_s: float
    wait_s: float = 0.0
    step_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds for which each of both cores is busy with a small tensor, as in `dlplacer.problem.as_processes`."""
        return self.line.latency_s / 2

    @property
    def line(self) -> AlphaBeta:
        """The line of a hand-over from the end of one op to the start of another."""
        return AlphaBeta(self.write.latency_s + self.read_s + self.wait_s, self.write.s_per_byte)


def slot_times() -> SlotTimes:
    """Timed between other work, as in a step."""
    small, read_s = _times_s(_SMALL_BYTES)
    large, _ = _times_s(_LARGE_BYTES)
    return SlotTimes(AlphaBeta(small, max(0.0, large - small) / (_LARGE_BYTES - _SMALL_BYTES)), read_s)


def _times_s(size_bytes: int) -> tuple[float, float]:
    """Seconds of writing and of reading a tensor of this size."""
    slot = TensorSlot("timed", SharedMemory(TensorSlot.size_bytes(size_bytes)), size_bytes)
    tensor, matrix = torch.zeros(size_bytes // 4), torch.zeros(_SIDE, _SIDE)
    written, read = [], []
    for run in range(1, _REPETITIONS + 1):
        torch.mm(matrix, matrix)
        begin = time.perf_counter()
        slot.put(tensor, run)
        written.append(time.perf_counter() - begin)
        torch.mm(matrix, matrix)
        begin = time.perf_counter()
        slot.get(run, lambda: None)
        read.append(time.perf_counter() - begin)
    return settled(written), settled(read)
