"""A checkpoint goes on with its own training and goal alone."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dlplacer.core.errors import InputError
from dlplacer.data_parallel import measure_epochs
from dlplacer.data_parallel.epochs.identity import identity

LIMIT = 0.5


def at_most(metric: float, limit: float) -> bool:
    return metric <= limit


def below(limit: float) -> Callable[[float], bool]:
    return lambda metric: metric < limit


def until(reached: Callable[[float], bool]) -> Callable[[float], bool]:
    return lambda metric: reached(metric)


@dataclass
class Within:
    limit: float

    def __call__(self, metric: float) -> bool:
        return metric <= self.limit

    def strictly(self, metric: float) -> bool:
        return metric < self.limit


def training(workers: int, seed: int, *, width: int = 8) -> Iterator[float]:
    yield from (1.0 / epoch for epoch in range(1, 100 * workers))


PAIRS: list[tuple[Callable[[], Callable[[float], bool]], Callable[[], Callable[[float], bool]]]] = [
    (lambda: below(0.5), lambda: below(0.25)),
    (lambda: until(below(0.5)), lambda: until(below(0.25))),
    (lambda: partial(operator.ge, 0.5), lambda: partial(operator.ge, 0.25)),
    (lambda: partial(at_most, limit=0.5), lambda: partial(at_most, limit=0.25)),
    (lambda: Within(0.5), lambda: Within(0.25)),
    (lambda: Within(0.5).strictly, lambda: Within(0.25).strictly),
    (lambda: Within(0.5), lambda: Within(0.5).strictly),
    (lambda: (0.5).__ge__, lambda: (0.25).__ge__),
    (lambda: lambda metric: metric <= 0.5, lambda: lambda metric: metric < 0.5),
    (lambda: lambda metric, limit=0.5: metric <= limit, lambda: lambda metric, limit=0.25: metric <= limit),
    (lambda: lambda metric: metric <= 2 * LIMIT, lambda: lambda metric: metric <= 3 * LIMIT),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_another_goal_is_another_checkpoint(
    one: Callable[[], Callable[[float], bool]], other: Callable[[], Callable[[float], bool]], tmp_path: Path
) -> None:
    path = tmp_path / "runs.json"
    first = measure_epochs(training, [1], reached=one(), checkpoint=path)
    assert measure_epochs(training, [1], reached=one(), checkpoint=path) == first
    with pytest.raises(InputError, match="holds runs of"):
        measure_epochs(training, [1], reached=other(), checkpoint=path)


def test_what_differs_from_run_to_run_is_left_out() -> None:
    text = identity(until(lambda metric: bool(object())), with_numbers=True)
    assert " at 0x" not in text
    assert identity(len) == "builtins:len"

    def calling(times: int) -> int:
        return times and calling(times - 1)

    assert "calling" in identity(calling)
