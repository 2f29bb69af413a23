"""Op times of a plan's devices, sampled in steps alone and steps side by side that alternate with the plan's own."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dlplacer.measure.fidelity.step_profiler import StepProfiler
from dlplacer.runtime.profile.op_times import StepSample
from dlplacer.runtime.profile.statistic import OpTimes, typical

# Below this mean time of an op, what recording costs (two readings of a clock, and no segments) shows in a step.
_SHORT_OP_S = 2e-4
_LONGEST_RECORDING_S = 3e-6


@dataclass(frozen=True)
class AloneSample:
    """A step on one device while the others idle.

    Attributes
    ----------
    number
        Of the round in which it was taken.
    plain_s
        The step as it runs when nothing is recorded, from the same round.
    """

    number: int
    recorded: StepSample
    plain_s: float

    @property
    def recording_s(self) -> float:
        """Seconds by which recording lengthens an op; no more than it can, as steps also differ by chance."""
        per_op = (self.recorded.wall_s - self.plain_s) / max(1, len(self.recorded.op_times_s))
        return min(_LONGEST_RECORDING_S, max(0.0, per_op))


@dataclass(frozen=True)
class OwnTimes:
    """What one process found of its ops, as it travels to the others.

    Attributes
    ----------
    samples
        [sample] → op → seconds side by side, with what recording costs.
    alone, together
        Op → typical seconds, without and with the other devices at work.
    host_s
        Seconds of a step alone in which no op ran.
    plain_s
        Number of a round, and the seconds of the unrecorded step alone in it, for the rounds in which it was its turn.
    contention
        Op times side by side ÷ alone, for the same rounds.
    """

    samples: list[dict[str, float]]
    alone: dict[str, float]
    together: dict[str, float]
    host_s: float
    plain_s: list[tuple[int, float]]
    contention: list[float]

    def sent(self) -> list[object]:
        """The fields in order."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


@dataclass
class OpSampler:
    """Takes the samples of this process.

    The devices take turns at being alone, one in each round: one step of all of them alone would take as long as the
    devices are many. In a group of processes all processes call the same methods, and one of them has the turn.

    Parameters
    ----------
    turns
        The used devices of all processes in order: the position in this process's profiler, None for another process's.
    """

    profiler: StepProfiler
    turns: Sequence[int | None]
    alone: dict[int, list[AloneSample]] = field(default_factory=dict)
    together: list[list[StepSample]] = field(default_factory=list)
    _round: int = 0

    @property
    def own(self) -> list[int]:
        """Positions of the used devices of this process."""
        return [position for position in self.turns if position is not None]

    def untimed_alone(self) -> None:
        """The step that `step_alone` would take; nothing is kept."""
        position = self._turn()
        if position is not None:
            self.profiler.plain_step(position)

    def step_alone(self) -> None:
        """A step on the device whose turn it is, kept."""
        position = self._turn()
        if position is not None:
            (recorded,) = self.profiler.recorded_steps([position])
            plain_s = recorded.wall_s
            if recorded.wall_s < _SHORT_OP_S * len(recorded.op_times_s):
                begin = time.perf_counter()
                self.profiler.plain_step(position)
                plain_s = time.perf_counter() - begin
            self.alone.setdefault(position, []).append(AloneSample(self._round, recorded, plain_s))
        self._round += 1

    def untimed_together(self) -> None:
        """A step on all used devices at the same time; nothing is kept."""
        if self.own:
            self.profiler.recorded_steps(self.own)

    def step_together(self) -> None:
        """A step on all used devices at the same time, kept."""
        self.together.append(self.profiler.recorded_steps(self.own) if self.own else [])

    @property
    def complete(self) -> bool:
        """Whether every used device of all processes has been alone."""
        return self._round >= len(self.turns)

    def _turn(self) -> int | None:
        return self.turns[self._round % len(self.turns)]

    def own_times(self, count: int, position: Mapping[str, int], placement: Mapping[str, str]) -> OwnTimes:
        """What the last rounds say of the ops of this process.

        Parameters
        ----------
        position
            Device of the plan → its position in the profiler.
        placement
            Op → device of the plan.
        """
        here = {op: position[device] for op, device in placement.items() if device in position}
        alone = self._last_alone(count)
        recording_s = {at: median(each.recording_s for each in found) for at, found in alone.items()}
        steps = self._last_together(count, alone)
        usual_alone = {at: typical([each.recorded.op_times_s for each in found]) for at, found in alone.items()}
        usual_together = {at: typical([each[at] for each in steps]) for at in alone}

        def planned(times: Mapping[int, OpTimes]) -> dict[str, float]:
            return {op: max(0.0, times[at][op] - recording_s[at]) for op, at in here.items() if at in times}

        host_s = [each.recorded.host_s for found in alone.values() for each in found]
        timed = [(each, at) for at, found in alone.items() for each in found if each.number >= self._round - count]
        first = self._round - count
        return OwnTimes(
            [planned(each) for each in steps],
            planned(usual_alone),
            planned(usual_together),
            median(host_s) if host_s else 0.0,
            [(each.number - first, each.plain_s) for each, _ in timed],
            [_total(steps[each.number - first][at]) / _total(each.recorded.op_times_s) for each, at in timed]
            if len(self.turns) > 1
            else [],
        )

    def _last_alone(self, count: int) -> dict[int, list[AloneSample]]:
        """Position → its samples of the last rounds, at least one."""
        first = self._round - count
        return {
            position: [sample for sample in samples if sample.number >= first] or samples[-1:]
            for position, samples in self.alone.items()
        }

    def _last_together(self, count: int, alone: Mapping[int, Sequence[AloneSample]]) -> list[dict[int, OpTimes]]:
        """[sample] → position → op times; where one device is used, its steps alone."""
        if len(self.turns) > 1:
            return [
                {position: sample.op_times_s for position, sample in zip(self.own, samples, strict=True)}
                for samples in self.together[-count:]
            ]
        kept = [each.recorded.op_times_s for samples in alone.values() for each in samples]
        return [{self.own[0]: times} for times in kept] if self.own else [{} for _ in range(count)]


def _total(times: OpTimes) -> float:
    return sum(times.values())
