"""Epochs to the target accuracy, E of eq. 1 of Pal et al. 2019, and their files, ``dlplacer.epochs/1``."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, refuse
from dlplacer.files.fields import FileModel, Table
from dlplacer.machines.costs.gradient_codecs import CODECS


@dataclass(frozen=True)
class CriticalBatch:
    """The epochs E(B) = E_min (1 + B ÷ B_crit) of McCandlish et al. 2018, An empirical model of large-batch training.

    `minimum_epochs`: E_min, the epochs of a tiny batch. `critical`: B_crit, the batch that needs 2 E_min epochs,
    in the unit of the batches; infinite if epochs do not grow. `residuals`: Fitted ÷ measured epochs − 1 for
    every point of a fit, by batch.
    """

    minimum_epochs: float
    critical: float
    residuals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("minimum_epochs", "critical"):
            if not getattr(self, name) > 0:
                raise InputError(f"critical batch: {name} is {getattr(self, name)}; it must be positive")

    def epochs(self, batch: float) -> float:
        """The epochs that a batch of this size needs."""
        if not batch > 0:
            raise InputError(f"a batch of {batch}; it must be positive")
        return self.minimum_epochs * (1 + batch / self.critical)

    def to_dict(self) -> dict[str, Any]:
        """The form as JSON; the critical batch is None if epochs do not grow with the batch."""
        critical = None if math.isinf(self.critical) else self.critical
        residuals = list(self.residuals)
        return {"minimum_epochs": self.minimum_epochs, "critical_mini_batches": critical, "residuals": residuals}


def fit_critical_batch(points: Sequence[tuple[float, float]]) -> CriticalBatch:
    """The critical-batch form closest to (batch, epochs) points, by least squares of the relative errors.

    E is linear in B, so the fit is a line. The form needs a slope of at least 0 and a positive value at zero. So a
    negative slope becomes 0, and a value at zero that is not positive becomes tiny.

    Raises InputError if there are fewer than two different batches, or a value is not positive.
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

    # E_min (1 + B ÷ B_crit) is linear in B; errors are relative, because epochs have about the same relative error.
    rows = [[1 / epochs, batch / epochs] for batch, epochs in ordered]
    (intercept, slope), _ = nnls(rows, [1.0] * len(rows))
    largest = ordered[-1][0]
    # If epochs are proportional to B, E_min and so B_crit = E_min ÷ slope would be 0; a tiny E_min keeps the form.
    intercept = max(float(intercept), 1e-9 * float(slope) * largest)
    model = CriticalBatch(intercept, intercept / float(slope) if slope > 0 else float("inf"))
    return replace(model, residuals=tuple(model.epochs(batch) / epochs - 1 for batch, epochs in ordered))


@dataclass(frozen=True)
class EpochsTable:
    """Epochs measured at some batches.

    Between two batches epochs are interpolated linearly, which is exact for the critical-batch form. Below the smallest
    batch, the epochs of that batch are used: a safe estimate, because epochs grow with the batch. Above the largest
    batch, epochs are unknown.

    `points`: Mini-batches per step → epochs; None if training does not converge with this batch or any larger one.
    """

    points: Mapping[float, float | None]

    def __post_init__(self) -> None:
        if not any(epochs is not None for epochs in self.points.values()):
            raise InputError("the table of epochs has no entry with a number; give at least one")
        for batch, epochs in self.points.items():
            if not batch > 0 or (epochs is not None and not epochs > 0):
                raise InputError(f"epochs table: {epochs} epochs at {batch:g} mini-batches; both must be positive")
        if self._unreached < self.largest:
            raise InputError(
                f"epochs table: nothing converges at {self._unreached:g} mini-batches, but something does at "
                f"{self.largest:g}; remove one of them"
            )

    @property
    def largest(self) -> float:
        """The largest batch that converges, in mini-batches."""
        return self._known[-1][0]

    @property
    def _unreached(self) -> float:
        """The smallest batch that does not converge; infinite if there is none."""
        return min((batch for batch, epochs in self.points.items() if epochs is None), default=math.inf)

    @cached_property
    def _known(self) -> list[tuple[float, float]]:
        return sorted((batch, epochs) for batch, epochs in self.points.items() if epochs is not None)

    def knows(self, workers: float) -> bool:
        """True if the table covers this number of mini-batches per step, even if training does not converge with it."""
        return workers <= self.largest or workers >= self._unreached

    def epochs(self, workers: float) -> float | None:
        """Epochs with this number of mini-batches per step; None if training does not converge or nothing is known."""
        known = self._known
        if workers <= known[0][0]:
            return known[0][1]
        for (low, before), (high, after) in pairwise(known):
            if workers <= high:
                return before + (after - before) * (workers - low) / (high - low)
        return None

    def fit(self) -> CriticalBatch | None:
        """The critical-batch form fitted to the table, in mini-batches; None if it has fewer than two points."""
        return fit_critical_batch(self._known) if len(self._known) > 1 else None


@dataclass(frozen=True)
class StatisticalEfficiency:
    """Epochs of a whole strategy, which depend on its batch, its codec and its period of exchange.

    `base`: Epochs with exact gradients exchanged at every step: an `EpochsTable` or a `CriticalBatch` in mini-batches.
    `codec_factors`: Codec → measured epochs ÷ epochs without it. For other codecs the noise ratio v bounds the factor
    (`dlplacer.machines.costs.gradient_codecs`): (1 + v r) ÷ (1 + r) with r = B_crit ÷ B, or v if B_crit is unknown.
    `period_factors`: Steps between exchanges → epochs ÷ epochs with an exchange at every step; periods that are not
    listed are not considered. `elastic_factors`: The same factors for elastic averaging, whose exchange may last until
    the end of the next step.
    """

    base: EpochsTable | CriticalBatch
    codec_factors: Mapping[str, float] = field(default_factory=dict)
    period_factors: Mapping[int, float] = field(default_factory=dict)
    elastic_factors: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        factors = [("codec", *each) for each in self.codec_factors.items()]
        periods = [("period", *each) for each in self.period_factors.items()]
        periods += [("elastic period", *each) for each in self.elastic_factors.items()]
        for kind, key, factor in (*factors, *periods):
            if not 0 < factor < math.inf:
                raise InputError(f"{kind} {key!r}: the factor of epochs is {factor}; it must be positive")
        for _, period, _ in periods:
            if period < 1:
                raise InputError(f"period {period}: steps between exchanges must be at least 1")

    @property
    def periods(self) -> tuple[int, ...]:
        """Periods of exchange to consider, including 1."""
        return tuple(sorted({1, *self.period_factors}))

    def knows(self, workers: int) -> bool:
        """True if the epochs with this number of workers are known, even if training does not converge."""
        return isinstance(self.base, CriticalBatch) or self.base.knows(workers)

    def fit(self) -> CriticalBatch | None:
        """The critical-batch form fitted to a table, with its residuals; None without a table, or with one point."""
        return None if isinstance(self.base, CriticalBatch) else self.base.fit()

    def epochs(self, workers: int, codec: str = "none", period: int = 1, elastic: bool = False) -> float | None:
        """Epochs needed with `workers` workers; None if training does not converge, or nothing is known.

        Raises InputError if nothing is known about the period or the codec.
        """
        factors = self.elastic_factors if elastic else {**self.period_factors, 1: 1.0}
        if period not in factors:
            known = ", ".join(map(str, sorted(factors)))
            raise InputError(f"epochs for an exchange every {period} steps are unknown; give a factor, or use {known}")
        base = self.base.epochs(workers)
        if base is None:
            return None
        return base * self._codec_factor(codec, workers) * factors[period]

    def _codec_factor(self, codec: str, workers: int) -> float:
        if codec in self.codec_factors:
            return self.codec_factors[codec]
        if codec not in CODECS:
            known = ", ".join(CODECS)
            raise InputError(f"epochs with codec {codec!r} are unknown; give its factor, or use one of {known}")
        noise, critical = CODECS[codec], self._critical
        if critical is None or math.isinf(critical.critical):
            return noise
        share = critical.critical / workers
        return (1 + noise * share) / (1 + share)

    @cached_property
    def _critical(self) -> CriticalBatch | None:
        return self.base if isinstance(self.base, CriticalBatch) else self.fit()


Positive = Annotated[float, Field(gt=0, le=1e12)]
"""A positive number of epochs, at most 10^12, so that products with times do not overflow."""
Whole = Annotated[int, Field(ge=1, lt=2**63)]
CountKey = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,11}$")]
"""Digits of a number below 10^12; Python rejects integers of thousands of digits, and floats overflow at hundreds."""


class CriticalBatchFields(FileModel):
    """The parameters of the critical-batch form."""

    minimum_epochs: Positive
    critical_batch: Annotated[float, Field(ge=1e-9)]


class EpochsFile(FileModel):
    """The fields of an epochs file.

    ``by`` is the unit of the keys of ``epochs`` and of ``critical_batch``: data-parallel ``devices`` with one
    mini-batch each, or samples of the global ``batch``, which needs ``mini_batch``.
    """

    FORMAT = "dlplacer.epochs/1"
    format: str
    name: str = ""
    source: str = ""
    meta: Table
    by: Literal["devices", "batch"] = "devices"
    mini_batch: Whole | None = None
    samples: Whole | None = None
    epochs: dict[CountKey, Positive | None] | None = None
    critical_batch: CriticalBatchFields | None = None
    codec_factor: Annotated[dict[str, Positive], Field(default_factory=dict)]
    period_factor: Annotated[dict[CountKey, Positive], Field(default_factory=dict)]
    elastic_factor: Annotated[dict[CountKey, Positive], Field(default_factory=dict)]

    def mistakes(self) -> Iterator[str]:
        """Contradictions between fields."""
        if (self.epochs is None) == (self.critical_batch is None):
            yield "epochs: give either 'epochs' or 'critical_batch'"
        if self.by == "batch" and self.mini_batch is None:
            yield "mini_batch: required if 'by' is \"batch\"; it turns samples into workers"

    def value(self) -> "EpochsData":
        """The content, in mini-batches per step."""
        unit = float(self.mini_batch or 1) if self.by == "batch" else 1.0
        base: CriticalBatch | EpochsTable
        if self.critical_batch is not None:
            base = CriticalBatch(self.critical_batch.minimum_epochs, self.critical_batch.critical_batch / unit)
        else:
            base = EpochsTable({int(key) / unit: epochs for key, epochs in (self.epochs or {}).items()})
        periods, elastic = (
            {int(key): factor for key, factor in factors.items()}
            for factors in (self.period_factor, self.elastic_factor)
        )
        efficiency = StatisticalEfficiency(base, self.codec_factor, periods, elastic)
        return EpochsData(efficiency, self.mini_batch, self.samples, self.name)


@dataclass(frozen=True)
class EpochsData:
    """The content of an epochs file."""

    efficiency: StatisticalEfficiency
    mini_batch: int | None = None
    samples: int | None = None
    name: str = ""

    def require_mini_batch(self, samples: int | None) -> None:
        """Raise InputError if `samples` is known and is not the mini-batch with which the epochs were measured."""
        if self.mini_batch is not None and samples not in (None, self.mini_batch):
            raise InputError(
                f"the epochs are for mini-batches of {self.mini_batch}, the graph is for {samples}; capture the model "
                f"with {self.mini_batch} samples, or give the epochs of {samples}"
            )


def one_batch() -> EpochsData:
    """Epochs for a fixed batch of one worker, which cancel out; the epochs of other batches are unknown."""
    return EpochsData(StatisticalEfficiency(EpochsTable({1: 1.0})))


def read_epochs(path: str | Path) -> EpochsData:
    """The content of an epochs file.

    Raises FileFormatError with every mistake and its path.
    """
    data: EpochsData = EpochsFile.read(Path(path))
    return data


EpochsLike: TypeAlias = str | PathLike[str] | Mapping[int, float | None] | EpochsData | None
"""Epochs, the path of their file, or a dict from numbers of workers to epochs; None means one fixed batch."""


def epochs_of(value: EpochsLike) -> EpochsData:
    """The epochs in a value; raises InputError if it has another type or is invalid."""
    if value is None:
        return one_batch()
    if isinstance(value, EpochsData):
        return value
    if isinstance(value, Mapping):
        for workers, epochs in value.items():
            expect("epochs", "workers", workers, Real, "a number")
            expect("epochs", f"of {workers} workers", 1 if epochs is None else epochs, Real, "a number")
        table = EpochsTable({float(workers): epochs for workers, epochs in value.items()})
        return EpochsData(StatisticalEfficiency(table))
    if isinstance(value, (str, PathLike)):
        return read_epochs(fspath(value))
    raise refuse("", "epochs", value, "the path of an epochs file, or a dict from workers to epochs: {1: 4, 64: 7}")


def epochs_of_batches(value: EpochsLike) -> Callable[[int], float | None]:
    """A function from the samples in a mini-batch to epochs; its value is always 1 if `value` is None."""
    if value is None:
        return lambda batch: 1.0
    data = epochs_of(value)
    if data.mini_batch is None:
        raise InputError(f"{value}: 'mini_batch' is missing: the samples that a unit of the table stands for")
    mini_batch, base = data.mini_batch, data.efficiency.base
    return lambda batch: base.epochs(batch / mini_batch)
