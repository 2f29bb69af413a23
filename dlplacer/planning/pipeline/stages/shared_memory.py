"""Splits in which the stages of a device fit into its memory together, where schedules give a device several."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dlplacer.planning.pipeline.stages.stage_split import SplitProblem, StageSplit, best_split

_FIRST_SHARES = tuple(tenths / 10 for tenths in range(1, 10))
"""Of a device's memory, for its first stage; the others have equal parts of the rest."""

_ROUNDS = 3


def fitting_split(problem: SplitProblem) -> tuple[StageSplit | None, bool]:
    """The best split that was found to fit, and whether there is none better.

    Dynamic programming looks at one stage after another (`best_split`), so that memory which two stages share couples
    them. Where the best split for stages one by one fits together, it is the best of all. Else every stage gets a part
    of its device's memory, so that what fits by stage fits together; some parts are tried, and what the best split
    leaves free is given to one of its stages or another.
    """
    split = best_split(problem)
    if split is None or fits_together(problem, split):
        return split, True
    tried = [found for rooms in _rooms(problem, split) if (found := _within(problem, rooms)) is not None]
    best = min(tried, key=_worth, default=None)
    for _ in range(_ROUNDS if best is not None else 0):
        assert best is not None
        around = [found for rooms in _loosened(problem, best) if (found := _within(problem, rooms)) is not None]
        better = min([best, *around], key=_worth)
        if _worth(better) >= _worth(best):
            break
        best = better
    return best, False


def needs_bytes(problem: SplitProblem, split: StageSplit) -> list[float]:
    """[stage] → the memory that it takes."""
    borders = (0, *split.borders)
    return [float(problem.memory_bytes(stage)[borders[stage], borders[stage + 1]]) for stage in range(problem.stages)]


def fits_together(problem: SplitProblem, split: StageSplit) -> bool:
    """True if every device has room for all of its stages."""
    needs = needs_bytes(problem, split)
    return all(
        device.memory_bytes is None or sum(needs[rank :: len(problem.chain.devices)]) <= device.memory_bytes
        for rank, device in enumerate(problem.chain.devices)
    )


def _within(problem: SplitProblem, rooms_bytes: Sequence[float]) -> StageSplit | None:
    found = best_split(replace(problem, rooms_bytes=tuple(rooms_bytes)))
    return found if found is not None and fits_together(problem, found) else None


def _rooms(problem: SplitProblem, split: StageSplit) -> Iterator[list[float]]:
    """As the leanest split needs, in proportions as the best one for stages one by one does, then some for all."""
    ranks, needs = len(problem.chain.devices), needs_bytes(problem, split)
    yield _leanest_bytes(problem)
    yield [
        _capacity(problem, stage) * (need / (sum(needs[stage % ranks :: ranks]) or 1.0))
        for stage, need in enumerate(needs)
    ]
    others = problem.stages // ranks - 1
    for first in _FIRST_SHARES:
        yield [
            _capacity(problem, stage) * (first if stage < ranks else (1 - first) / others)
            for stage in range(problem.stages)
        ]


def _leanest_bytes(problem: SplitProblem) -> list[float]:
    """[stage] → its memory in the split that takes the least of all devices, each in shares of its own."""
    total = np.full(problem.cuts.count, np.inf)
    total[0] = 0.0
    came_from = []
    for stage in range(problem.stages):
        share = problem.memory_bytes(stage) / max(1.0, _capacity(problem, stage))
        table = total[:, None] + np.where(np.isfinite(problem.stage_s(stage)), share, np.inf)
        came_from.append(table.argmin(axis=0))
        total = table.min(axis=0)
    borders = [problem.cuts.count - 1]
    for stage in range(problem.stages - 1, 0, -1):
        borders.append(int(came_from[stage][borders[-1]]))
    return needs_bytes(problem, StageSplit(tuple(reversed(borders)), 0.0, 0.0))


def _loosened(problem: SplitProblem, split: StageSplit) -> Iterator[list[float]]:
    """What a split needs, and what is free on each device besides for its first stage, for its second, and so on."""
    ranks, needs = len(problem.chain.devices), needs_bytes(problem, split)
    free = [_capacity(problem, rank) - sum(needs[rank::ranks]) for rank in range(ranks)]
    for taking in range(problem.stages // ranks):
        yield [need + (free[stage % ranks] if stage // ranks == taking else 0.0) for stage, need in enumerate(needs)]


def _capacity(problem: SplitProblem, stage: int) -> float:
    room_bytes = problem.device(stage).memory_bytes
    return float("inf") if room_bytes is None else float(room_bytes)


def _worth(split: StageSplit) -> tuple[float, float]:
    return split.bottleneck_s, split.sum_s
