"""Epochs for 1, 2, 4 … workers, measured on one device, with any framework and model."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.files.fields import FileModel, ListOf, Table
from dlplacer.files.text import write_json

Progress = Callable[[int, int, int, float], None]
"""Receives the number of workers, the seed, the number of finished epochs and the metric."""

Training = Callable[..., Iterator[float]]
"""(workers, seed) → the metric after every epoch of a training from scratch with this number of workers."""


@dataclass(frozen=True)
class EpochCount:
    """Epochs of every seed with `workers` mini-batches per step; None for a seed that missed the goal."""

    workers: int
    epochs: tuple[float | None, ...]

    @property
    def median(self) -> float | None:
        """The median over the seeds; None if at least half of the seeds did not reach the goal."""
        known = sorted(each for each in self.epochs if each is not None)
        missing = len(self.epochs) - len(known)
        return None if 2 * missing >= len(self.epochs) else median([*known, *[float("inf")] * missing])


@dataclass(frozen=True)
class MeasuredEpochs:
    """The result of `measure_epochs` for every batch size, with one codec (None: exact gradients) and one period."""

    measurements: tuple[EpochCount, ...]
    codec: str | None = None
    period: int = 1

    def points(self) -> dict[int, float | None]:
        """Mini-batches per step → median epochs.

        The smallest batch size that misses the goal is the last entry; larger sizes count as missing the goal too.
        """
        found: dict[int, float | None] = {}
        for each in sorted(self.measurements, key=lambda entry: entry.workers):
            found[each.workers] = each.median
            if each.median is None:
                break
        return found

    def factor(self, exact: "MeasuredEpochs") -> float | None:
        """Median over batch sizes of epochs ÷ epochs of `exact`; None if no batch size has epochs in both."""
        theirs = exact.points()
        pairs = [(epochs, theirs.get(workers)) for workers, epochs in self.points().items()]
        ratios = [epochs / base for epochs, base in pairs if epochs is not None and base is not None]
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
            The same training with a codec, or with a period above 1; each gives a factor for epochs.
        """
        for each in (self, *variants):
            if (each is self) != (each.codec is None and each.period == 1) or (each.codec and each.period != 1):
                raise InputError(
                    f"epochs of codec {each.codec!r} at period {each.period}: write exact gradients at period "
                    "1; a variant has a codec or a period above 1, not both"
                )
        factors = [(each, each.factor(self)) for each in variants]
        known: dict[str, Any] = {
            "name": name,
            "mini_batch": mini_batch,
            "samples": samples,
            "codec_factor": {each.codec: factor for each, factor in factors if each.codec and factor},
            "period_factor": {str(each.period): factor for each, factor in factors if not each.codec and factor},
        }
        return {
            "format": "dlplacer.epochs/1",
            **{key: value for key, value in known.items() if value},
            "source": "measured by delayed gradient updates",
            "epochs": {str(workers): value for workers, value in self.points().items()},
            "meta": {"epochs_by_seed": {each.label: each.by_seed() for each in (self, *variants)}},
        }

    @property
    def label(self) -> str:
        """A short text with the codec and the period."""
        return f"{self.codec or 'none'}, every {self.period} steps" if self.period > 1 else self.codec or "none"

    def by_seed(self) -> dict[str, list[float | None]]:
        """Mini-batches per step → epochs of every seed."""
        return {str(each.workers): list(each.epochs) for each in self.measurements}

    def write(self, path: str | Path, **about: Any) -> None:
        """Write the file; `about` holds arguments of `to_dict`."""
        write_json(Path(path), self.to_dict(**about))


class EpochRun(NamedTuple):
    """The identity of one training, without its result; `workers` is the number of mini-batches per step."""

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
    FORMAT = "dlplacer.epoch-runs/1"
    format: str
    training: str
    meta: Table
    runs: ListOf[_RunFields]


class _FinishedRuns:
    """The finished trainings, in a ``dlplacer.epoch-runs/1`` file that is rewritten after each training."""

    def __init__(self, path: str | Path | None, training: str) -> None:
        self._path = None if path is None else Path(path)
        self._training = training
        self._found: dict[EpochRun, tuple[float | None, int]] = {}
        if self._path is None or not self._path.exists():
            return
        content = _RunsFile.load(self._path)
        if content.training != training:
            raise InputError(
                f"{path} holds runs of {content.training!r}, and this is {training!r}; give another checkpoint, "
                "or remove the file"
            )
        for each in content.runs:
            run = EpochRun(each.workers, each.seed, each.codec, each.period)
            self._found[run] = each.epochs, each.max_epochs

    def knows(self, run: EpochRun, max_epochs: int) -> bool:
        """True if a run needs no more training: it reached the goal, or trained for at least `max_epochs`."""
        epochs, limit = self._found.get(run, (None, 0))
        return epochs is not None or limit >= max_epochs

    def epochs(self, run: EpochRun, max_epochs: int) -> float | None:
        """Epochs of a finished run; None if it took more than the limit."""
        epochs, _ = self._found[run]
        return epochs if epochs is not None and epochs <= max_epochs else None

    def add(self, run: EpochRun, epochs: float | None, max_epochs: int) -> None:
        """Add a finished run, and write it to the file before returning."""
        self._found[run] = epochs, max_epochs
        if self._path is not None:
            rows = [
                {**each._asdict(), "epochs": reached, "max_epochs": limit}
                for each, (reached, limit) in self._found.items()
            ]
            content = {"format": _RunsFile.FORMAT, "training": self._training, "runs": rows}
            write_json(self._path, content)


def measure_epochs(
    train: Training,
    batches: Sequence[int],
    *,
    reached: Callable[[float], bool] | None = None,
    max_epochs: int = 100,
    seeds: Sequence[int] = (0,),
    checkpoint: str | Path | None = None,
    codec: str | None = None,
    period: int = 1,
    on_progress: Progress = lambda workers, seed, epoch, metric: None,
) -> MeasuredEpochs:
    """Train with every batch size until the goal is reached, and count the epochs.

    Parameters
    ----------
    train
        `EmulatedWorkers` for a torch model, or a function that runs the rounds of an epoch with `delayed_updates`. With
        a codec or a period it also gets ``codec=`` and ``period=``. It decides all else that depends on the batch size:
        for example, Pal et al. 2019 scale the learning rate linearly with the number of workers.
    batches
        Batch sizes to train with, in mini-batches per step: numbers of data-parallel workers.
    reached
        Metric → True at the goal, such as ``lambda loss: loss <= 6.1``; None if the training ends by itself.
    max_epochs
        Most epochs of a training; a batch size that needs more counts as not converging.
    seeds
        Seeds, with one training each; the planner uses the median.
    checkpoint
        A file with every finished training, written atomically; a killed measurement resumes from it. One file may hold
        several codecs and periods. It identifies trainings and goals by their ``name``, or else by the names of their
        functions.
    codec, period
        Measure with encoded gradients, or with an exchange only every `period` steps.
    on_progress
        Called after every epoch.

    Raises
    ------
    InputError
        If the training function yields nothing or does not accept a codec or period, an argument is out of range, or
        the checkpoint belongs to another training or goal.
    """
    least = {"workers": min(batches, default=0), "max_epochs": max_epochs, "period": period, "seeds": len(seeds)}
    for name, value in least.items():
        if value < 1:
            raise InputError(f"{name}: {value}; measuring epochs needs at least 1")
    options = options_of(train, codec, period)
    runs = _FinishedRuns(checkpoint, named(train) + ("" if reached is None else f" until {named(reached)}"))
    wanted = [EpochRun(count, seed, codec, period) for count in batches for seed in seeds]
    waiting = [run for run in dict.fromkeys(wanted) if not runs.knows(run, max_epochs)]
    once = partial(_train, train, options, reached, max_epochs)
    for run in waiting:
        runs.add(run, once(on_progress, run), max_epochs)
    counts = (
        EpochCount(count, tuple(runs.epochs(run, max_epochs) for run in wanted if run.workers == count))
        for count in dict.fromkeys(batches)
    )
    return MeasuredEpochs(tuple(counts), codec, period)


def _train(
    train: Training,
    options: dict[str, Any],
    reached: Callable[[float], bool] | None,
    max_epochs: int,
    on_progress: Progress,
    run: EpochRun,
) -> float | None:
    """Epochs of one training; None if it did not reach the goal."""
    done = 0
    for metric in train(run.workers, run.seed, **options):
        done += 1
        on_progress(run.workers, run.seed, done, metric)
        if reached is not None and reached(metric):
            return float(done)
        # A training that ends by itself at the goal may end right after the last epoch.
        if done >= max_epochs + (reached is None):
            return None
    if done and reached is None:
        return float(done)
    raise InputError(
        f"the training function ended after {done} epochs with {run.workers} workers without reaching the goal; let it "
        f"run for max_epochs = {max_epochs}"
    )


def named(called: Callable[..., Any]) -> str:
    """The ``name`` of a callable that has one, else its module and function."""
    own = getattr(called, "func", called)  # of a partial
    kind = type(own)
    function = f"{getattr(own, '__module__', kind.__module__)}:{getattr(own, '__qualname__', kind.__qualname__)}"
    return str(getattr(called, "name", function))


def options_of(train: Training, codec: str | None, period: int) -> dict[str, Any]:
    """The arguments of a training in addition to workers and seed."""
    options: dict[str, Any] = {} if codec is None and period == 1 else {"codec": codec, "period": period}
    try:
        inspect.signature(train).bind(1, 0, **options)
    except TypeError as error:
        takes = "".join(f", {name}=..." for name in options)
        raise InputError(
            f"the training {named(train)} cannot be called as train(workers, seed{takes}): {error}; take these "
            "arguments, or use dlplacer.data_parallel.EmulatedWorkers"
        ) from error
    except ValueError:  # Some builtins have no signature.
        pass
    return options
