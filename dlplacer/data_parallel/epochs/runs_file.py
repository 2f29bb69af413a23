"""What was measured so far, so that a measurement that was interrupted goes on: ``dlplacer.epoch-runs/1``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.files.fields import FileModel, ListOf, Table, load_model
from dlplacer.files.text import write_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class EpochRun:
    """One training: which one it is, without its outcome.

    Attributes
    ----------
    workers
        Mini-batches per step.
    """

    workers: int
    seed: int
    codec: str | None = None
    period: int = 1


class _RunFields(FileModel):
    workers: Annotated[int, Field(ge=1)]
    seed: int
    codec: str | None = None
    period: Annotated[int, Field(ge=1)] = 1
    epochs: Annotated[float, Field(gt=0)] | None = None
    max_epochs: Annotated[int, Field(ge=1)]


class _RunsFile(FileModel):
    format: str
    training: str
    meta: Table
    runs: ListOf[_RunFields]


@dataclass
class FinishedRuns:
    """The finished trainings in a file, which is written anew, atomically, with every one that is added.

    Attributes
    ----------
    path
        None keeps them in memory alone.
    training
        What was trained and until when; another training does not go on from the file.
    """

    path: Path | None
    training: str
    found: dict[EpochRun, tuple[float | None, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str | Path | None, training: str) -> "FinishedRuns":
        """Those that the file has; none if there is no file yet.

        Raises
        ------
        InputError
            If the file is of another training, or cannot be read.
        FileFormatError
            With every mistake and its path.
        """
        runs = cls(None if path is None else Path(path), training)
        if runs.path is None or not runs.path.exists():
            return runs
        content = load_model(runs.path, _RunsFile, "epoch-runs", VERSION)
        if content.training != training:
            raise InputError(
                f"{runs.path} holds runs of {content.training!r}, and this is {training!r}; give another checkpoint, "
                "or remove the file"
            )
        for each in content.runs:
            runs.found[EpochRun(each.workers, each.seed, each.codec, each.period)] = each.epochs, each.max_epochs
        return runs

    def knows(self, run: EpochRun, max_epochs: int) -> bool:
        """Whether a run needs no more training: it got there, or it was given at least as many epochs."""
        if run not in self.found:
            return False
        epochs, limit = self.found[run]
        return epochs is not None or limit >= max_epochs

    def epochs(self, run: EpochRun, max_epochs: int) -> float | None:
        """Epochs of a finished run; None if it took more than the limit."""
        epochs, _ = self.found[run]
        return epochs if epochs is not None and epochs <= max_epochs else None

    def add(self, run: EpochRun, epochs: float | None, max_epochs: int) -> None:
        """A run has ended; the file says so when this returns."""
        self.found[run] = epochs, max_epochs
        if self.path is not None:
            rows = [
                {
                    "workers": each.workers,
                    "seed": each.seed,
                    "codec": each.codec,
                    "period": each.period,
                    "epochs": reached,
                    "max_epochs": limit,
                }
                for each, (reached, limit) in self.found.items()
            ]
            write_json(self.path, {"format": f"dlplacer.epoch-runs/{VERSION}", "training": self.training, "runs": rows})
