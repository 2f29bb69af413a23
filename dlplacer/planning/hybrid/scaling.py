"""Scaling efficiency SE_N = T_1 ÷ T_N: closed forms, their fit to measured step times, and what follows from them.

Lemmas 3.1 and 3.2 of Zou et al. 2017 tell the devices for a speedup, and the servers that hide an exchange.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from dlplacer.core.errors import InfeasibleError, InputError

MOST_WORKERS = 10**18
"""More devices are none, and their products with times would leave the range of floats."""


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
class RingOverhead:
    """SE_N = 1 ÷ (1 + ρ (N − 1)/N + λ (N − 1)): a ring all-reduce that hides behind nothing.

    `bandwidth`: ρ = 2 β · bytes ÷ T_1, which saturates. `latency`: λ = 2 α ÷ T_1, which does not; with ρ = 0 and λ = R
    ÷ (1 + R) this is Lemma 3.1 of Zou et al. 2017.
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


ScalingEfficiency: TypeAlias = ConstantEfficiency | RingOverhead
"""The closed forms of the scaling efficiency of plain data parallelism that the planner asks for."""


def require_workers(workers: int) -> None:
    """Raise InputError unless there is a worker, and no more than there can be."""
    if workers < 1:
        raise InputError(f"{workers} workers; there must be at least 1")
    if workers > MOST_WORKERS:
        raise InputError(f"10^{len(str(workers)) - 1} workers or more; there may be at most {MOST_WORKERS:g}")


_LEAST_SHARE = 0.75
"""Steps of a busy machine differ by a tenth or two from run to run; strong scaling, a likely mistake, halves them."""


@dataclass(frozen=True)
class ScalingFit:
    """The form of the scaling efficiency through measured step times.

    `residuals`: Fitted ÷ measured − 1 of the step times, in order of devices.
    """

    model: RingOverhead
    single_s: float
    residuals: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """The field ``scaling_fit`` of ``dlplacer hybrid --json``."""
        return {**vars(self.model), "single_s": self.single_s, "residuals": list(self.residuals)}

    def __str__(self) -> str:
        latency = f" + {self.model.latency:.3g} (N - 1)" if self.model.latency else ""
        return (
            f"1 / (1 + {self.model.bandwidth:.3g} (N - 1) / N{latency}), residuals up to "
            f"{100 * max(map(abs, self.residuals)):.2g} %"
            + ("" if len(self.residuals) > 3 else "; so few points fix the form: measure more device counts to test it")
        )


def fit_scaling(points: Sequence[tuple[int, float]]) -> ScalingFit:
    """The `RingOverhead` closest to (devices, step seconds), by least squares of the relative errors.

    Two device counts fix T_1 and the bandwidth alone; three or more the latency too.

    Raises InputError if there are fewer than two different device counts, a value is not positive, or steps get much
    shorter with more devices.
    """
    from scipy.optimize import nnls

    ordered = sorted(points)
    counts = len({workers for workers, _ in ordered})
    for workers, step_s in ordered:
        require_workers(workers)
        if counts < 2 or not 0 < step_s < math.inf:
            raise InputError(
                f"step of {step_s} s on {workers} devices, one of {counts} device counts; give two counts or more, and "
                "positive seconds"
            )
    slowest = ordered[0]
    for workers, step_s in ordered:
        if step_s < _LEAST_SHARE * slowest[1]:
            raise InputError(
                f"a step takes {step_s:g} s on {workers} devices and {slowest[1]:g} s on {slowest[0]}: every worker "
                "keeps its mini-batch, so that a step does not get shorter; give seconds per step of one mini-batch "
                "per device, or measure again"
            )
        slowest = max(slowest, (workers, step_s), key=lambda point: point[1])
    # Divided by the measured time, so that all points weigh alike: runs vary by a share of their time, not by seconds.
    rows = [[1 / step_s, (1 - 1 / workers) / step_s, (workers - 1) / step_s] for workers, step_s in ordered]
    solution, _ = nnls([row[: 2 if counts == 2 else 3] for row in rows], [1.0] * len(rows))
    single_s, *overheads_s = map(float, solution)
    if not single_s > 0:
        raise InputError(
            "the step times grow faster than any number of devices explains; measure them again, one device included"
        )
    model = RingOverhead(*(overhead_s / single_s for overhead_s in overheads_s))
    fitted = (single_s / model.efficiency(workers) / step_s - 1 for workers, step_s in ordered)
    return ScalingFit(model, single_s, tuple(fitted))


_SAME = 1e-12
"""Relative rounding: a speedup this close to the ceiling is the ceiling."""


@dataclass(frozen=True)
class SerialOverhead:
    """Lemma 3.1 of Zou et al. 2017: SE_N = (1 + R) ÷ (1 + N R), R = overhead ÷ compute of one device.

    Every device pays the overhead, one after another. The overhead of a ring saturates instead (`RingOverhead`).
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
        """(1 + R) ÷ R, the speedup that no number of devices reaches."""
        return (1 + self.ratio) / self.ratio if self.ratio else math.inf

    def workers_for(self, speedup: float) -> int:
        """Fewest devices that reach a speedup: G ≥ s ÷ (1 + R − s R).

        Raises InfeasibleError if no number does; names the ceiling.
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


_MOST = 10**9


def most_overhead_ratio(wanted_efficiency: float, gpus: int) -> float:
    """R = (1 − α) ÷ (α·G − 1), Lemma 3.1: the overhead per unit of computation that this efficiency on G GPUs allows.

    Raises InputError if the efficiency is not in (0, 1], or is at most 1 ÷ G, which any overhead allows.
    """
    require_workers(gpus)
    if not 0 < wanted_efficiency <= 1:
        raise InputError(f"efficiency is {wanted_efficiency:g}; it must be above 0 and at most 1 (0.8 is 80 %)")
    if wanted_efficiency * gpus <= 1:
        raise InputError(
            f"an efficiency of {wanted_efficiency:g} on {gpus} GPUs is no faster than one GPU, so any overhead allows "
            f"it; ask for more than {1 / gpus:g}"
        )
    return (1 - wanted_efficiency) / (wanted_efficiency * gpus - 1)


def fewest_channels(load_bytes: float | Fraction, channel_bytes_per_s: float, compute_s: float) -> int:
    """⌈load ÷ (rate · T_C)⌉: the fewest channels that move a load while a step computes, and at least 1.

    Numbers are taken as they print, 0.1 for a tenth, and the arithmetic is exact, so that a load that just fits does.
    The load is shared out evenly and moves during the computation of the step before (asynchronously).

    Raises InputError if the load is negative, the rate or the computation is not positive, or more than a billion
    channels are needed.
    """
    for name, value in (("channel_bytes_per_s", channel_bytes_per_s), ("compute_s", compute_s)):
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value:g}; it must be positive and finite")
    if not 0 <= load_bytes < math.inf:
        raise InputError(f"load_bytes is {load_bytes}; it must be finite and at least 0")
    exact = Fraction(str(load_bytes)) / (Fraction(str(channel_bytes_per_s)) * Fraction(str(compute_s)))
    if exact > _MOST:
        raise InputError(
            f"the load does not hide behind {compute_s:g} s of computation, even with {_MOST:,} channels of "
            f"{channel_bytes_per_s:g} bytes/s: compute longer, or load less"
        )
    return max(1, math.ceil(exact))


def fewest_servers(parameter_bytes: float, workers: int, server_bytes_per_s: float, compute_s: float) -> int:
    """N_ps = ⌈2·S_p·N_w ÷ (B_ps·T_C)⌉ of Lemma 3.2: every worker pulls and pushes all parameters in every step.

    Raises InputError if there are no workers; else as `fewest_channels` does.
    """
    require_workers(workers)
    if not 0 <= parameter_bytes < math.inf:
        raise InputError(f"parameter_bytes is {parameter_bytes:g}; it must be finite and at least 0")
    return fewest_channels(2 * workers * Fraction(str(parameter_bytes)), server_bytes_per_s, compute_s)


def transfer_s(parameter_bytes: float, workers: int, server_bytes_per_s: float, servers: int) -> float:
    """Seconds of a round of pulls and pushes over this many servers, which must not exceed the computation."""
    # Exactly, as products of sizes and rates may leave the range of floats where the quotient does not.
    return float(2 * workers * Fraction(parameter_bytes) / (servers * Fraction(server_bytes_per_s)))
