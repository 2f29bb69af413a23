"""Scaling efficiency SE_N = T_1 ÷ T_N: closed forms, and their fit to measured step times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dlplacer.core.errors import InputError

MOST_WORKERS = 10**18
"""More devices are none, and their products with times would leave the range of floats."""


class ScalingEfficiency(Protocol):
    """A closed form of the scaling efficiency, as the planner asks for it."""

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
class RingOverhead:
    """SE_N = 1 ÷ (1 + ρ (N − 1)/N + λ (N − 1)): a ring all-reduce that hides behind nothing.

    Attributes
    ----------
    bandwidth
        ρ = 2 β · bytes ÷ T_1, which saturates.
    latency
        λ = 2 α ÷ T_1, which does not; with ρ = 0 and λ = R ÷ (1 + R) this is Lemma 3.1 of Zou et al. 2017.
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


_LEAST_SHARE = 0.75
"""Steps of a busy machine differ by a tenth or two from run to run; strong scaling, a likely mistake, halves them."""


@dataclass(frozen=True)
class ScalingFit:
    """The form of the scaling efficiency through measured step times.

    Attributes
    ----------
    residuals
        Fitted ÷ measured − 1 of the step times, in order of devices.
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

    Raises
    ------
    InputError
        If there are fewer than two different device counts, a value is not positive, or steps get much shorter with
        more devices.
    """
    from scipy.optimize import nnls

    ordered = sorted(points)
    counts = len({workers for workers, _ in ordered})
    if counts < 2:
        raise InputError(f"{len(ordered)} points for a scaling fit; measure a step at two device counts or more")
    for workers, step_s in ordered:
        if not (workers >= 1 and 0 < step_s < math.inf):
            raise InputError(f"point ({workers} devices, {step_s} s) of a scaling fit; both must be positive")
        require_workers(workers)
    _require_growth(ordered)
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


def _require_growth(points: Sequence[tuple[int, float]]) -> None:
    """Raise InputError where a step on more devices is so much shorter that no noise explains it."""
    slowest = points[0]
    for workers, step_s in points:
        if step_s < _LEAST_SHARE * slowest[1]:
            raise InputError(
                f"a step takes {step_s:g} s on {workers} devices and {slowest[1]:g} s on {slowest[0]}: every worker "
                "keeps its mini-batch, so that a step does not get shorter; give seconds per step of one mini-batch "
                "per device, or measure again"
            )
        slowest = max(slowest, (workers, step_s), key=lambda point: point[1])
