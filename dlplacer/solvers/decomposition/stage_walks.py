"""Least-cost walks through the stages of a chain, for every set of devices that they use."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlplacer.solvers.decomposition.stages import DecisionStage, Ints
from dlplacer.solvers.instance.time_limit import ask_time

NEVER = 2**61
"""Above any cost of a walk."""


@dataclass(frozen=True)
class Walk:
    """A placement of all stages: block → device, ticks of the segments, and bytes and ticks of work on every device."""

    device: dict[int, int]
    ticks: int
    kept: Ints
    work: Ints


@dataclass(frozen=True)
class _Moves:
    """The states that the placements of a stage lead to from every state.

    Attributes
    ----------
    order, starts
        Placements sorted by (devices used, boundary), and where each such group of them starts.
    steps, targets, firsts
        (state, group) sorted by the state that they lead to; these states; and where each one's steps start.
    """

    order: Ints
    starts: Ints
    steps: Ints
    targets: Ints
    firsts: Ints


class StageWalks:
    """The dynamic program over (a device was returned to, set of devices used so far, device of the boundary).

    A walk *returns* if it comes back to a device that it has left, or if a stage uses several devices. One that does
    not gives every device one run of stages.
    """

    def __init__(self, stages: Sequence[DecisionStage], device_count: int) -> None:
        self.stages = stages
        self.device_count = device_count
        self.shape = 2, 1 << device_count, device_count
        known: dict[tuple[int, bytes], _Moves] = {}
        self._moves = []
        for stage in stages:
            # (0, 1) is a placement of two blocks, or two placements of one.
            key = len(stage.blocks), stage.choices.tobytes()
            if key not in known:
                known[key] = self._moves_of(stage)
            self._moves.append(known[key])
        self._costs: list[Ints] = []
        self._values: list[Ints] = []

    def least(self, path: int, kept: Ints, work: Ints) -> Ints:
        """[returns][set of devices] → the least cost of a walk that uses exactly these; `NEVER` if there is none.

        Parameters
        ----------
        path, kept, work
            Prices of a tick of the segments, and [device] → those of a byte and of a tick of work.
        """
        value = np.full(self.shape, NEVER, np.int64)
        value[0, 0, 0] = 0
        self._costs, self._values = [], [value]
        for stage, moves in zip(self.stages, self._moves, strict=True):
            ask_time()
            cost = path * stage.ticks + stage.kept @ kept + stage.work @ work
            self._costs.append(cost)
            reached = np.full(self.shape, NEVER, np.int64)
            steps = self._steps(moves, cost)
            reached.ravel()[moves.targets] = np.minimum(np.minimum.reduceat(steps, moves.firsts), NEVER)
            self._values.append(reached)
        return np.asarray(self._values[-1].min(axis=2))

    def walk(self, returns: int, used: int) -> Walk:
        """The walk that `least` has last found for a set of devices."""
        state = int(np.ravel_multi_index((returns, used, int(self._values[-1][returns, used].argmin())), self.shape))
        device: dict[int, int] = {}
        ticks, kept, work = 0, np.zeros(self.device_count, np.int64), np.zeros(self.device_count, np.int64)
        for number in range(len(self.stages) - 1, -1, -1):
            stage, moves, cost = self.stages[number], self._moves[number], self._costs[number]
            place = int(np.searchsorted(moves.targets, state))
            ends = moves.firsts[place + 1] if place + 1 < len(moves.firsts) else len(moves.steps)
            steps = self._steps(moves, cost, self._values[number])[moves.firsts[place] : ends]
            step = int(moves.steps[moves.firsts[place] + int(steps.argmin())])
            state, group = divmod(step, len(moves.starts))
            before = state % self.device_count
            until = moves.starts[group + 1] if group + 1 < len(moves.starts) else len(moves.order)
            members = moves.order[moves.starts[group] : until]
            chosen = int(members[cost[before, members].argmin()])
            device.update(zip(stage.blocks, stage.choices[chosen].tolist(), strict=True))
            ticks += int(stage.ticks[before, chosen])
            kept += stage.kept[before, chosen]
            work += stage.work[chosen]
        return Walk(device, ticks, kept, work)

    def _steps(self, moves: _Moves, cost: Ints, value: Ints | None = None) -> Ints:
        """Costs after every step, in the order of `moves.steps`."""
        least = np.minimum.reduceat(cost[:, moves.order], moves.starts, axis=1)
        value = self._values[-1] if value is None else value
        return np.asarray((value[:, :, :, None] + least[None, None]).ravel()[moves.steps])

    def _moves_of(self, stage: DecisionStage) -> _Moves:
        devices = self.device_count
        keys = stage.used * devices + stage.last
        order = np.argsort(keys, kind="stable")
        groups, starts = np.unique(keys[order], return_index=True)
        used, last = groups // devices, groups % devices
        returned, before, here, group = np.indices((*self.shape, len(groups)))
        others = used[group] & ~(1 << here)
        several = (used[group] & (used[group] - 1)) != 0
        returns = (returned == 1) | several | ((others & before) != 0)
        target = (returns * self.shape[1] + (before | used[group])) * devices + last[group]
        steps = np.argsort(target.ravel(), kind="stable")
        targets, firsts = np.unique(target.ravel()[steps], return_index=True)
        return _Moves(order, starts, steps, targets, firsts)
