"""Statistical efficiency in closed form: epochs grow linearly with the batch beyond a critical size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlplacer.core.errors import InputError


@dataclass(frozen=True)
class CriticalBatch:
    """E(B) = E_min (1 + B ÷ B_crit): the form of McCandlish et al., An empirical model of large-batch training, 2018.

    Attributes
    ----------
    minimum_epochs
        E_min: what a tiny batch would need.
    critical
        B_crit: the batch that needs twice as many, in the unit of the batches asked for; infinite where epochs do not
        grow.
    """

    minimum_epochs: float
    critical: float

    def __post_init__(self) -> None:
        for name in ("minimum_epochs", "critical"):
            if not getattr(self, name) > 0:
                raise InputError(f"critical batch: {name} is {getattr(self, name)}; it must be positive")

    def epochs(self, batch: float) -> float:
        """Epochs that a batch of this size needs.

        Raises
        ------
        InputError
            If the batch is not positive.
        """
        if not batch > 0:
            raise InputError(f"a batch of {batch}; it must be positive")
        return self.minimum_epochs * (1 + batch / self.critical)


@dataclass(frozen=True)
class CriticalBatchFit:
    """A fitted `CriticalBatch` and how well it meets the points.

    Attributes
    ----------
    residuals
        Fitted ÷ given − 1, per point in order of batch.
    """

    model: CriticalBatch
    residuals: tuple[float, ...]

    @property
    def largest_residual(self) -> float:
        """The largest of the relative errors, without its sign."""
        return max(map(abs, self.residuals))

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the critical batch is None where epochs do not grow with the batch."""
        critical = None if math.isinf(self.model.critical) else self.model.critical
        return {
            "minimum_epochs": self.model.minimum_epochs,
            "critical_mini_batches": critical,
            "residuals": list(self.residuals),
        }

    def __str__(self) -> str:
        """One line for people."""
        grows = "do not grow with the batch"
        if not math.isinf(self.model.critical):
            grows = f"{self.model.minimum_epochs:.3g} (1 + N / {self.model.critical:.4g})"
        return f"critical-batch form {grows}, residuals up to {100 * self.largest_residual:.2g} %"


def fit_critical_batch(points: Sequence[tuple[float, float]]) -> CriticalBatchFit:
    """The critical-batch form closest to (batch, epochs), by least squares of the relative errors.

    E is linear in B, so the fit is a line; where its slope or its value at zero would be negative it is held at 0 or
    close to it, as the form demands.

    Raises
    ------
    InputError
        If there are fewer than two different batches, or a value is not positive.
    """
    ordered = sorted(points)
    if len({batch for batch, _ in ordered}) < 2:
        raise InputError(
            f"{len(ordered)} points for a critical-batch fit; give epochs at two different batches or more"
        )
    for batch, epochs in ordered:
        if not (batch > 0 and epochs > 0):
            raise InputError(f"point ({batch}, {epochs}) of a critical-batch fit; batch and epochs must be positive")
    from scipy.optimize import nnls

    # E_min (1 + B ÷ B_crit) is linear in B; relative errors, as epochs are counted with an error of about one in E.
    rows = [[1 / epochs, batch / epochs] for batch, epochs in ordered]
    (intercept, slope), _ = nnls(rows, [1.0] * len(rows))
    largest = ordered[-1][0]
    # Epochs proportional to B leave no E_min, and B_crit = E_min ÷ slope would be 0: a tiny one keeps the form.
    intercept = max(float(intercept), 1e-9 * float(slope) * largest)
    model = CriticalBatch(intercept, intercept / float(slope) if slope > 0 else float("inf"))
    return CriticalBatchFit(model, tuple(model.epochs(batch) / epochs - 1 for batch, epochs in ordered))
