"""``module:callable`` as a training whose epochs are measured, here or in another process."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dlplacer.api.jobs import imported, user_code
from dlplacer.core.errors import InputError


@dataclass(frozen=True)
class NamedTraining:
    """A training by its name, so that other processes import it for themselves.

    The callable is the training itself, taking the number of workers and the seed, or makes one when it is called
    without arguments.
    """

    entry: str

    @property
    def name(self) -> str:
        """For a checkpoint."""
        return self.entry

    def resolved(self) -> Callable[..., Iterator[float]]:
        """The training function that the user named.

        Raises
        ------
        InputError
            If the name leads to nothing that trains.
        """
        found = imported(self.entry)
        if _takes(found, 1, 0):
            return found
        if _takes(found):
            with user_code(f"{self.entry!r} cannot be built"):
                made: Callable[..., Iterator[float]] = found()
            if callable(made) and _takes(made, 1, 0):
                return made
        raise InputError(
            f"{self.entry!r} is no training: it must take the number of workers and a seed and yield a metric after "
            "every epoch, or return something that does, as dlplacer.data_parallel.EmulatedWorkers"
        )

    def __call__(self, workers: int, seed: int, /, **options: Any) -> Iterator[float]:
        """The metric after every epoch."""
        training = self.resolved()
        with user_code(f"{self.entry!r} failed with {workers} workers"):
            yield from training(workers, seed, **options)


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a metric: at most, or at least, a value."""

    most: float | None = None
    least: float | None = None

    @property
    def name(self) -> str:
        """For a checkpoint, whose epochs are those until this goal."""
        return f"at least {self.least:g}" if self.most is None else f"at most {self.most:g}"

    def __call__(self, metric: float) -> bool:
        """NaN never is."""
        return (self.most is not None and metric <= self.most) or (self.least is not None and metric >= self.least)


def _takes(function: Callable[..., Any], *arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True
