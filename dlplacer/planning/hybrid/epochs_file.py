"""Files that say how many epochs a batch needs: ``dlplacer.epochs/1``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.files.fields import FileModel, Table, built, count_key_mistakes, load_model
from dlplacer.planning.hybrid.epochs import CriticalBatch, EpochsTable, StatisticalEfficiency

VERSION = 1
Positive = Annotated[float, Field(gt=0, le=1e12)]
"""More epochs are none, and their product with times would leave the range of floats."""
Whole = Annotated[int, Field(ge=1, lt=2**63)]


class CriticalBatchFields(FileModel):
    """The critical-batch form by its parameters."""

    minimum_epochs: Positive
    critical_batch: Annotated[float, Field(ge=1e-9)]


class EpochsFile(FileModel):
    """What the file may say.

    ``by`` tells what the keys of ``epochs`` and ``critical_batch`` count: data-parallel ``devices`` of one mini-batch
    each, or samples of the global ``batch``, which needs ``mini_batch``.
    """

    format: str
    name: str = ""
    source: str = ""
    meta: Table
    by: Literal["devices", "batch"] = "devices"
    mini_batch: Whole | None = None
    samples: Whole | None = None
    epochs: dict[str, Positive | None] | None = None
    critical_batch: CriticalBatchFields | None = None
    codec_factor: Annotated[dict[str, Positive], Field(default_factory=dict)]
    period_factor: Annotated[dict[str, Positive], Field(default_factory=dict)]

    def mistakes(self) -> Iterator[str]:
        """What is wrong between fields."""
        if (self.epochs is None) == (self.critical_batch is None):
            yield "epochs: give either 'epochs' or 'critical_batch'"
        if self.by == "batch" and self.mini_batch is None:
            yield "mini_batch: required where 'by' is \"batch\"; it turns samples into workers"
        yield from count_key_mistakes("epochs", self.epochs or {}, self.by)
        yield from count_key_mistakes("period_factor", self.period_factor, "steps")


@dataclass(frozen=True)
class EpochsData:
    """The content of a file.

    Attributes
    ----------
    mini_batch
        Samples per worker and step, or None.
    samples
        Samples of the data set, or None.
    """

    efficiency: StatisticalEfficiency
    mini_batch: int | None = None
    samples: int | None = None
    name: str = ""

    def require_mini_batch(self, samples: int | None) -> None:
        """Raise InputError where a step takes another number of samples than the epochs were measured with."""
        if self.mini_batch is not None and samples not in (None, self.mini_batch):
            raise InputError(
                f"the epochs are for mini-batches of {self.mini_batch}, the graph is for {samples}; capture the model "
                f"with {self.mini_batch} samples, or give the epochs of {samples}"
            )


def one_batch() -> EpochsData:
    """Epochs of one worker alone, whose batch stays as it is: they cancel, and nothing is known of other batches."""
    return EpochsData(StatisticalEfficiency(EpochsTable({1: 1.0})))


def read_epochs(path: str | Path) -> EpochsData:
    """The statistical efficiency in a file.

    Raises
    ------
    InputError
        If the file cannot be read.
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(Path(path), EpochsFile, "epochs", VERSION)
    return built(str(path), _data, content)


def _data(content: EpochsFile) -> EpochsData:
    unit = float(content.mini_batch or 1) if content.by == "batch" else 1.0
    base: Any
    if content.critical_batch is not None:
        base = CriticalBatch(content.critical_batch.minimum_epochs, content.critical_batch.critical_batch / unit)
    else:
        base = EpochsTable({int(key) / unit: epochs for key, epochs in (content.epochs or {}).items()})
    periods = {int(key): factor for key, factor in content.period_factor.items()}
    efficiency = StatisticalEfficiency(base, content.codec_factor, periods)
    return EpochsData(efficiency, content.mini_batch, content.samples, content.name)
