"""Epochs measured by training as 1, 2, 4 … workers would, on one device: any framework, any model."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from pathlib import Path
from pickle import PicklingError
from typing import Any, Protocol

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.epochs.epoch_counts import EpochCount, MeasuredEpochs
from dlplacer.data_parallel.epochs.identity import identity
from dlplacer.data_parallel.epochs.runs_file import EpochRun, FinishedRuns

Progress = Callable[[int, int, int, float], None]
"""Called with the number of workers, the seed, the epochs done and the metric."""

DEFAULT_MAX_EPOCHS = 100


class Training(Protocol):
    """The user's training function; `dlplacer.data_parallel.EmulatedWorkers` is one for torch models."""

    def __call__(self, workers: int, seed: int, /) -> Iterator[float]:
        """Train from scratch as so many workers would; yield the metric after every epoch.

        Where a codec or a period is measured it is called with ``codec=`` and ``period=`` too. `delayed_updates` does
        the rounds of an epoch. What else changes with the batch, the learning rate above all, is this function's
        affair: the paper scales it linearly with the number of workers.
        """


def measure_epochs(
    train: Training | Callable[..., Iterator[float]],
    batches: Sequence[int],
    *,
    reached: Callable[[float], bool] | None = None,
    max_epochs: int = DEFAULT_MAX_EPOCHS,
    seeds: Sequence[int] = (0,),
    executor: Executor | None = None,
    checkpoint: str | Path | None = None,
    codec: str | None = None,
    period: int = 1,
    on_progress: Progress = lambda workers, seed, epoch, metric: None,
) -> MeasuredEpochs:
    """Train with every batch until the goal is reached, and count the epochs.

    Parameters
    ----------
    batches
        Batches to train with, in mini-batches per step: the number of data-parallel workers.
    reached
        Whether a metric is good enough, as ``lambda loss: loss <= 6.1``; None: the training ends when it is.
    max_epochs
        Where this many do not suffice, training with the batch counts as not converging.
    seeds
        One training for each; the planner takes the median.
    executor
        Any executor of `concurrent.futures`, on which the trainings run side by side; then `train` and `reached` must
        be picklable. None: one after another, here.
    checkpoint
        A file that holds every training that has ended, written atomically: a measurement that was killed goes on from
        there. One file may hold several codecs and periods.
    codec, period
        Measure with gradients that went through a codec, or with exchanges every so many steps only.
    on_progress
        After every epoch; with an executor after every training.

    Raises
    ------
    InputError
        If the training function yields nothing or knows no codec or period, an argument is out of range, or the
        checkpoint is that of another training or goal.
    """
    _require(batches, seeds, max_epochs, period)
    options = options_of(train, codec, period)
    runs = FinishedRuns.of(
        checkpoint, identity(train) + ("" if reached is None else f" until {identity(reached, with_numbers=True)}")
    )
    wanted = [EpochRun(count, seed, codec, period) for count in batches for seed in seeds]
    waiting = [run for run in dict.fromkeys(wanted) if not runs.knows(run, max_epochs)]
    if executor is None:
        for run in waiting:
            runs.add(run, _train(train, run, options, reached, max_epochs, on_progress), max_epochs)
    else:
        _side_by_side(executor, train, waiting, options, reached, max_epochs, runs, on_progress)
    counts = (
        EpochCount(count, tuple(runs.epochs(run, max_epochs) for run in wanted if run.workers == count))
        for count in dict.fromkeys(batches)
    )
    return MeasuredEpochs(tuple(counts), codec, period)


def _train(
    train: Callable[..., Iterator[float]],
    run: EpochRun,
    options: dict[str, Any],
    reached: Callable[[float], bool] | None,
    max_epochs: int,
    on_progress: Progress | None,
) -> float | None:
    """Epochs of one training; None if it did not get there."""
    done = 0
    for metric in train(run.workers, run.seed, **options):
        done += 1
        if on_progress is not None:
            on_progress(run.workers, run.seed, done, metric)
        if reached is not None and reached(metric):
            return float(done)
        if reached is not None and done >= max_epochs:
            return None
        if done > max_epochs:
            return None
    if done and reached is None:
        return float(done)
    raise InputError(
        f"the training function ended after {done} epochs with {run.workers} workers without reaching the goal; let it "
        f"go on for max_epochs = {max_epochs}"
    )


def _side_by_side(
    executor: Executor,
    train: Callable[..., Iterator[float]],
    waiting: Sequence[EpochRun],
    options: dict[str, Any],
    reached: Callable[[float], bool] | None,
    max_epochs: int,
    runs: FinishedRuns,
    on_progress: Progress,
) -> None:
    futures: dict[Future[float | None], EpochRun] = {
        executor.submit(_train, train, run, options, reached, max_epochs, None): run for run in waiting
    }
    try:
        for future in as_completed(futures):
            run = futures[future]
            epochs = future.result()
            runs.add(run, epochs, max_epochs)
            on_progress(run.workers, run.seed, max_epochs if epochs is None else int(epochs), float("nan"))
    except (PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise InputError(
            f"the training cannot be sent to another process ({error}); define it, and what says whether its goal is "
            "reached, at the top of a module"
        ) from error
    finally:
        for future in futures:
            future.cancel()


def _require(batches: Sequence[int], seeds: Sequence[int], max_epochs: int, period: int) -> None:
    if max_epochs < 1:
        raise InputError(f"max_epochs is {max_epochs}; it must be at least 1")
    if period < 1:
        raise InputError(f"period is {period}; steps between exchanges must be at least 1")
    if not batches or not seeds:
        raise InputError("measuring epochs needs at least one number of workers and one seed")
    for count in batches:
        if count < 1:
            raise InputError(f"{count} workers; there must be at least 1")


def options_of(train: Callable[..., Iterator[float]], codec: str | None, period: int) -> dict[str, Any]:
    """The arguments besides workers and seed that a training is called with.

    Raises
    ------
    InputError
        If it does not take them.
    """
    options: dict[str, Any] = {} if codec is None and period == 1 else {"codec": codec, "period": period}
    try:
        inspect.signature(train).bind(1, 0, **options)
    except TypeError as error:
        takes = "".join(f", {name}=..." for name in options)
        raise InputError(
            f"the training {identity(train)} cannot be called as train(workers, seed{takes}): {error}; take these "
            "arguments, or use dlplacer.data_parallel.EmulatedWorkers"
        ) from error
    except ValueError:  # some builtins have no signature
        return options
    return options
