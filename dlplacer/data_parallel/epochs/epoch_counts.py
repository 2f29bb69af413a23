"""Epochs by batch, as measured: medians over seeds, and the file that the planner reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.files.text import write_json


@dataclass(frozen=True)
class EpochCount:
    """Epochs of one batch.

    Attributes
    ----------
    workers
        Mini-batches per step: one of every data-parallel worker.
    epochs
        Per seed, those after which the goal was reached; None where it was not within the limit.
    """

    workers: int
    epochs: tuple[float | None, ...]

    @property
    def median(self) -> float | None:
        """The median over the seeds; None if at least half of them did not get there."""
        known = sorted(each for each in self.epochs if each is not None)
        missing = len(self.epochs) - len(known)
        return None if 2 * missing >= len(self.epochs) else median([*known, *[float("inf")] * missing])


@dataclass(frozen=True)
class MeasuredEpochs:
    """What `measure_epochs` found, batch by batch.

    Attributes
    ----------
    codec
        Name of the codec that gradients went through; None for exact ones.
    period
        Steps between two exchanges.
    """

    measurements: tuple[EpochCount, ...]
    codec: str | None = None
    period: int = 1

    def points(self) -> dict[int, float | None]:
        """Mini-batches per step → median epochs.

        It ends with the first batch that does not get there: beyond it nothing counts as reachable.
        """
        found: dict[int, float | None] = {}
        for each in sorted(self.measurements, key=lambda entry: entry.workers):
            found[each.workers] = each.median
            if each.median is None:
                break
        return found

    def factor(self, exact: "MeasuredEpochs") -> float | None:
        """Epochs ÷ those with exact gradients at every step: the median over the batches that both reach."""
        ours, theirs = self.points(), exact.points()
        ratios = [
            epochs / base
            for workers, epochs in ours.items()
            if epochs is not None and (base := theirs.get(workers)) is not None
        ]
        return median(ratios) if ratios else None

    def to_dict(
        self,
        name: str = "",
        mini_batch: int | None = None,
        samples: int | None = None,
        variants: "Sequence[MeasuredEpochs]" = (),
    ) -> dict[str, Any]:
        """The content of a ``dlplacer.epochs/1`` file.

        Parameters
        ----------
        variants
            The same training with a codec, or with a period above 1: each gives a factor of epochs.

        Raises
        ------
        InputError
            If this measurement has a codec or a period of its own, or a variant has both.
        """
        if self.codec is not None or self.period != 1:
            raise InputError(
                f"epochs of codec {self.codec!r} at period {self.period} are no base; write those of exact gradients "
                "at every step, with these as variants"
            )
        known: Mapping[str, Any] = {
            "name": name,
            "mini_batch": mini_batch,
            "samples": samples,
            **_factors(self, variants),
        }
        runs = {each.label: each.by_seed() for each in (self, *variants)}
        return {
            "format": "dlplacer.epochs/1",
            **{key: value for key, value in known.items() if value},
            "source": "measured by delayed gradient updates",
            "epochs": {str(workers): value for workers, value in self.points().items()},
            "meta": {"epochs_by_seed": runs},
        }

    @property
    def label(self) -> str:
        """A short text: the codec and the period."""
        return f"{self.codec or 'none'}, every {self.period} steps" if self.period > 1 else self.codec or "none"

    def by_seed(self) -> dict[str, list[float | None]]:
        """Mini-batches per step → epochs of every seed."""
        return {str(each.workers): list(each.epochs) for each in self.measurements}

    def write(self, path: str | Path, **about: Any) -> None:
        """Write the file; `about` as for `to_dict`."""
        write_json(Path(path), self.to_dict(**about))


def _factors(exact: MeasuredEpochs, variants: Sequence[MeasuredEpochs]) -> dict[str, dict[str, float]]:
    codecs, periods = {}, {}
    for each in variants:
        factor = each.factor(exact)
        if each.codec is not None and each.period != 1:
            raise InputError(
                f"epochs of codec {each.codec!r} at period {each.period}: a factor belongs to one of them; measure "
                "each by itself"
            )
        if factor is not None and each.codec is not None:
            codecs[each.codec] = factor
        elif factor is not None and each.period != 1:
            periods[str(each.period)] = factor
    return {"codec_factor": codecs, "period_factor": periods}
