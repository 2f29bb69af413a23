"""What a measured breakdown of a training run implies: speedups, communication share, weak-scaling efficiency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError


@dataclass(frozen=True)
class Breakdown:
    """A row of the paper's table 3.

    Attributes
    ----------
    iterations
        Until the target accuracy.
    batches_per_iteration
        Mini-batches that an iteration processes over all workers.
    shares
        Part of the time by what it was spent on, summing to 1.
    """

    time_s: float
    iterations: int
    batches_per_iteration: int
    shares: Mapping[str, float]

    @property
    def communication_share(self) -> float:
        """Parts whose name starts with ``gpu-gpu`` or ``cpu-gpu``."""
        return sum(share for name, share in self.shares.items() if name.startswith(("gpu-gpu", "cpu-gpu")))

    @property
    def batches(self) -> int:
        """Mini-batches until the target accuracy."""
        return self.iterations * self.batches_per_iteration

    @property
    def batch_s(self) -> float:
        """Seconds per mini-batch."""
        return self.time_s / self.batches

    def seconds(self, part: str) -> float:
        """Seconds spent on a part."""
        return self.time_s * self.shares[part]


def weak_scaling_efficiency(times_s: Sequence[float]) -> tuple[float, ...]:
    """Time on the fewest cores, the first, ÷ time on each count; the work per core is the same.

    Raises
    ------
    InputError
        If a time is not positive.
    """
    for time_s in times_s:
        if not time_s > 0:
            raise InputError(f"a run of {time_s:g} s; times of a weak scaling must be positive")
    return tuple(times_s[0] / time_s for time_s in times_s)
