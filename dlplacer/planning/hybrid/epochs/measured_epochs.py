"""Epochs measured by delayed gradient updates: one device emulates N workers (section 4.2 of the paper).

N mini-batches go forward and backward before one update with their mean gradient, which is what N data-parallel workers
would have applied together. The training itself is the user's: any framework, any model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from dlplacer.core.errors import InputError
from dlplacer.files.text import write_json
from dlplacer.planning.hybrid.epochs.epochs import EpochsTable
from dlplacer.planning.hybrid.scaling_efficiency import require_workers

Batch = TypeVar("Batch")


class Training(Protocol):
    """The user's training function."""

    def __call__(self, workers: int, seed: int, /) -> Iterator[float]:
        """Train from scratch as so many workers would; yield the metric after every epoch.

        `delayed_updates` does the rounds of an epoch. What else changes with the batch, the learning rate above all, is
        this function's affair: the paper scales it linearly with the number of workers.
        """


def delayed_updates(
    batches: Iterable[Batch], workers: int, backward: Callable[[Batch, float], object], update: Callable[[], object]
) -> int:
    """Do one epoch as `workers` workers would; returns the number of updates.

    Parameters
    ----------
    batches
        Mini-batches of one epoch, each as large as one worker's. Those that fill no round of all workers are left out.
    backward
        Called with each mini-batch and 1 ÷ workers: adds the gradient of the loss times that factor to what has been
        accumulated.
    update
        Called after every round: applies the accumulated gradient and clears it.

    Raises
    ------
    InputError
        If an epoch has fewer mini-batches than there are workers.
    """
    require_workers(workers)
    updates, waiting = 0, []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == workers:
            # The mean over the workers' gradients, as an all-reduce leaves it: each counts 1 ÷ workers.
            for each in waiting:
                backward(each, 1 / workers)
            update()
            updates, waiting = updates + 1, []
    if not updates:
        raise InputError(
            f"{workers} workers need as many mini-batches per epoch, and there are {len(waiting)}; use fewer workers, "
            "smaller mini-batches or more data"
        )
    return updates


@dataclass(frozen=True)
class Measurement:
    """Epochs of one number of workers.

    Attributes
    ----------
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
    """What `measure_epochs` found."""

    measurements: tuple[Measurement, ...]

    def table(self) -> EpochsTable:
        """The medians as a table.

        Beyond the first number of workers that does not get there, nothing counts as reachable.
        """
        points: dict[float, float | None] = {}
        for each in sorted(self.measurements, key=lambda entry: entry.workers):
            points[each.workers] = each.median
            if each.median is None:
                break
        return EpochsTable(points)

    def to_dict(self, name: str = "", mini_batch: int | None = None, samples: int | None = None) -> dict[str, Any]:
        """The content of a ``dlplacer.epochs/1`` file."""
        epochs = {f"{workers:.0f}": value for workers, value in self.table().points.items()}
        runs = {str(each.workers): list(each.epochs) for each in self.measurements}
        known = {"name": name, "mini_batch": mini_batch, "samples": samples}
        return {
            "format": "dlplacer.epochs/1",
            **{key: value for key, value in known.items() if value},
            "source": "measured by delayed gradient updates",
            "epochs": epochs,
            "meta": {"epochs_by_seed": runs},
        }

    def write(self, path: str | Path, **about: Any) -> None:
        """Write the file; `about` as for `to_dict`."""
        write_json(Path(path), self.to_dict(**about))


def measure_epochs(
    train: Training,
    workers: Sequence[int],
    reached: Callable[[float], bool],
    *,
    max_epochs: int,
    seeds: Sequence[int] = (0,),
    on_progress: Callable[[int, int, int, float], None] = lambda workers, seed, epoch, metric: None,
) -> MeasuredEpochs:
    """Train with every number of workers until the goal is reached, and count the epochs.

    Parameters
    ----------
    reached
        Whether a metric is good enough, as ``lambda loss: loss <= 6.1``.
    max_epochs
        Where this many do not suffice, training with so many workers counts as not converging.
    seeds
        One training for each; the planner takes the median.
    on_progress
        Called with the number of workers, the seed, the epochs done and the metric.

    Raises
    ------
    InputError
        If the training function yields nothing, or an argument is out of range.
    """
    if max_epochs < 1:
        raise InputError(f"max_epochs is {max_epochs}; it must be at least 1")
    if not workers or not seeds:
        raise InputError("measuring epochs needs at least one number of workers and one seed")
    for count in workers:
        require_workers(count)

    def until_reached(count: int, seed: int) -> float | None:
        done = 0
        for metric in train(count, seed):
            done += 1
            on_progress(count, seed, done, metric)
            if reached(metric):
                return float(done)
            if done >= max_epochs:
                return None
        raise InputError(
            f"the training function ended after {done} epochs with {count} workers without reaching the goal; let it "
            f"go on for max_epochs = {max_epochs}"
        )

    return MeasuredEpochs(
        tuple(Measurement(count, tuple(until_reached(count, seed) for seed in seeds)) for count in workers)
    )
