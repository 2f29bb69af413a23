"""Scaling efficiency SE_N = T_1 ÷ T_N in closed form: how much of N devices the exchange of gradients leaves.

Every form says by how much a step grows over that of one device, T_N ÷ T_1 = 1 + overhead(N).
"""

import math
from dataclasses import dataclass
from typing import Protocol

from dlplacer.core.errors import InfeasibleError, InputError

MOST_WORKERS = 10**18
"""More devices are none, and their products with times would leave the range of floats."""

_SAME = 1e-12
"""Relative rounding: a speedup this close to the ceiling is the ceiling."""


class ScalingEfficiency(Protocol):
    """What the planner asks of a closed form."""

    def efficiency(self, workers: int) -> float:
        """SE_N of plain data parallelism over so many workers; 1 for one."""


@dataclass(frozen=True)
class ConstantEfficiency:
    """SE_N = a constant for more than one worker; 1 is the paper's assumption (section 4.3)."""

    value: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.value <= 1:
            raise InputError(f"scaling efficiency is {self.value}; it must be above 0 and at most 1")

    def efficiency(self, workers: int) -> float:
        """The constant; 1 for one worker."""
        require_workers(workers)
        return 1.0 if workers == 1 else self.value


@dataclass(frozen=True)
class SerialOverhead:
    """Lemma 3.1 of Zou et al. 2017: SE_N = (1 + R) ÷ (1 + N R), R = overhead ÷ compute of one device.

    The overhead is paid once per device, one after another. A ring's saturates instead (`RingOverhead`).
    """

    ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise InputError(f"overhead ratio R is {self.ratio}; it must be finite and at least 0")

    def efficiency(self, workers: int) -> float:
        """(1 + R) ÷ (1 + N R)."""
        require_workers(workers)
        # The same as 1 ÷ (1 + (N − 1) R ÷ (1 + R)), where no R is too large for a float.
        return 1 / (1 + (workers - 1) * (self.ratio / (1 + self.ratio)))

    @property
    def speedup_ceiling(self) -> float:
        """(1 + R) ÷ R: what no number of devices reaches."""
        return (1 + self.ratio) / self.ratio if self.ratio else math.inf

    def workers_for(self, speedup: float) -> int:
        """Fewest devices that reach a speedup: G ≥ s ÷ (1 + R − s R).

        Raises
        ------
        InfeasibleError
            If no number does; names the ceiling.
        """
        if not 1 <= speedup <= MOST_WORKERS:
            raise InputError(f"a speedup of {speedup:g}; it must be at least 1, and at most {MOST_WORKERS:g}")
        # One device has it, also where R is so large that no number of devices is any faster.
        if speedup == 1:
            return 1
        if speedup >= self.speedup_ceiling * (1 - _SAME):
            raise InfeasibleError(
                f"a speedup of {speedup:g}x at overhead ratio R = {self.ratio:g}: no number of devices reaches "
                f"(1 + R) / R = {self.speedup_ceiling:g}x; lower R (fewer bytes, a faster network, overlap)"
            )
        workers = max(1, math.floor(speedup / (1 + self.ratio - speedup * self.ratio)) - 1)
        while self.efficiency(workers) * workers < speedup * (1 - _SAME):
            workers += 1
        return workers


@dataclass(frozen=True)
class RingOverhead:
    """SE_N = 1 ÷ (1 + ρ (N − 1)/N + λ (N − 1)): a ring all-reduce that hides behind nothing.

    Attributes
    ----------
    bandwidth
        ρ = 2 β · bytes ÷ T_1, which saturates.
    latency
        λ = 2 α ÷ T_1, which does not; with ρ = 0 and λ = R ÷ (1 + R) this is Lemma 3.1.
    """

    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latency"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"ring overhead: {name} is {getattr(self, name)}; it must be finite and at least 0")

    def efficiency(self, workers: int) -> float:
        """1 ÷ (1 + ρ (N − 1)/N + λ (N − 1))."""
        require_workers(workers)
        return 1 / (1 + (workers - 1) * (self.bandwidth / workers + self.latency))


def require_workers(workers: int) -> None:
    """Raise InputError unless there is a worker, and no more than there can be."""
    if workers < 1:
        raise InputError(f"{workers} workers; there must be at least 1")
    if workers > MOST_WORKERS:
        raise InputError(f"10^{len(str(workers)) - 1} workers or more; there may be at most {MOST_WORKERS:g}")
