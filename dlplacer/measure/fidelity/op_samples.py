"""Op times of a plan's devices, sampled in steps alone and steps side by side that alternate with the plan's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.measure.fidelity.alternation import MOST_UNTIMED, untimed_steps
from dlplacer.measure.fidelity.step_profiler import PlainStep, StepProfiler
from dlplacer.runtime.profile.op_times import StepSample
from dlplacer.runtime.profile.statistic import OpTimes, typical

SMALL_OP_S = 5e-5
"""Threads of one interpreter gain nothing from ops shorter than this: each holds the interpreter's lock for a part of
its time, and what is left to run beside others is no longer than handing the lock over."""
# Below this mean time of an op, what recording costs (two readings of a clock, and no segments) shows in a step.
_SHORT_OP_S = 2e-4
_LONGEST_RECORDING_S = 6e-6
"""1.6 µs where cores are quick, 3.3 where they are slow."""


@dataclass(frozen=True)
class AloneSample:
    """A step on one device while the others idle.

    Attributes
    ----------
    number
        Of the round in which it was taken.
    plain
        The step as it runs when nothing is recorded, from the same round.
    """

    number: int
    recorded: StepSample
    plain: PlainStep

    @property
    def host_s(self) -> float:
        """Seconds of a step in which no op runs. What recording adds to them is as long as what a small model has."""
        return self.recorded.host_s if self.plain.host_s is None else self.plain.host_s

    @property
    def recording_s(self) -> float:
        """Seconds by which recording lengthens an op; no more than it can, as steps also differ by chance."""
        per_op = (_total(self.recorded.op_times_s) - _ops_s(self.plain, self.recorded)) / max(
            1, len(self.recorded.op_times_s)
        )
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
        Seconds of a step alone in which no op ran; the mean of the rounds less an eighth at either end.
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
    together_plain: list[list[PlainStep]] = field(default_factory=list)
    _round: int = 0

    @property
    def own(self) -> list[int]:
        """Positions of the used devices of this process."""
        return [position for position in self.turns if position is not None]

    def untimed_alone(self) -> None:
        """The step that `step_alone` would take; nothing is kept."""
        position = self._turn()
        if position is not None:
            self.profiler.recorded_steps([position])

    def step_alone(self) -> None:
        """A step on the device whose turn it is, kept."""
        position = self._turn()
        if position is not None:
            (recorded,) = self.profiler.recorded_steps([position])
            plain = _as_recorded(recorded)
            if self._has_short_ops(recorded):
                (plain,) = self._settled_plain_steps([position], recorded.wall_s)
            self.alone.setdefault(position, []).append(AloneSample(self._round, recorded, plain))
        self._round += 1

    def untimed_together(self) -> None:
        """A step on all used devices at the same time; nothing is kept."""
        if self.own:
            self.profiler.recorded_steps(self.own)

    def step_together(self) -> None:
        """A step on all used devices at the same time, kept."""
        recorded = self.profiler.recorded_steps(self.own) if self.own else []
        self.together.append(recorded)
        if any(self._has_short_ops(sample, len(self.turns)) for sample in recorded):
            longest_s = max(sample.wall_s for sample in recorded)
            self.together_plain.append(self._settled_plain_steps(self.own, longest_s))
        else:
            self.together_plain.append([*map(_as_recorded, recorded)])

    def _settled_plain_steps(self, positions: Sequence[int], step_s: float) -> list[PlainStep]:
        """A step that is not recorded, behind others of its kind, as recorded steps run other functions.

        As many as precede a plan's own step that takes as long; in a group of processes the same number on all, or the
        last steps of some would have no others beside them.
        """
        for _ in range(MOST_UNTIMED if None in self.turns else untimed_steps(step_s)):
            self.profiler.plain_steps(positions)
        return self.profiler.plain_steps(positions)

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
        # Without what recording costs, of which `_last_together` is free already.
        clean = {at: [_without_recording(each, found) for each in found] for at, found in alone.items()}
        usual_alone = {at: typical(found) for at, found in clean.items()}
        several = len(self.turns) > 1
        if several:
            steps = [with_shared_waits(usual_alone, each) for each in self._last_together(count)]
        else:
            steps = _one_by_one(alone, clean, count)
        usual_together = {at: typical([each[at] for each in steps]) for at in alone}
        if not several:
            usual_alone = usual_together

        def planned(times: Mapping[int, OpTimes]) -> dict[str, float]:
            return {op: times[at][op] for op, at in here.items() if at in times}

        first = self._round - count
        timed = [
            (each.number - first, each.plain.wall_s, _total(times), at)
            for at, found in alone.items()
            for each, times in zip(found, clean[at], strict=True)
            if each.number >= first
        ]
        host_s = [each.host_s for found in alone.values() for each in found]
        return OwnTimes(
            [planned(each) for each in steps],
            planned(usual_alone),
            planned(usual_together),
            trimmed_mean(host_s) if host_s else 0.0,
            [(number, plain_s) for number, plain_s, _, _ in timed],
            [_total(steps[number][at]) / alone_s for number, _, alone_s, at in timed if alone_s] if several else [],
        )

    def _last_alone(self, count: int) -> dict[int, list[AloneSample]]:
        """Position → its samples of the last rounds, at least one."""
        first = self._round - count
        return {
            position: [sample for sample in samples if sample.number >= first] or samples[-1:]
            for position, samples in self.alone.items()
        }

    def _last_together(self, count: int) -> list[dict[int, OpTimes]]:
        """[sample] → position → op times side by side, as long together as a step that is not recorded."""
        shares = self._plain_shares(count)
        return [
            {
                at: {op: seconds * shares[at] for op, seconds in sample.op_times_s.items()}
                for at, sample in zip(self.own, samples, strict=True)
            }
            for samples in self.together[-count:]
        ]

    @staticmethod
    def _has_short_ops(sample: StepSample, slower: float = 1.0) -> bool:
        return sample.wall_s < slower * _SHORT_OP_S * len(sample.op_times_s)

    def _plain_shares(self, count: int) -> dict[int, float]:
        """Position → the ops of a step side by side that is not recorded ÷ of one that is; the median of all rounds.

        Where threads fight over an interpreter, recording lengthens the fight, not only the ops.
        """
        rounds = list(zip(self.together_plain[-count:], self.together[-count:], strict=True))
        return {
            at: min(1.0, median(_plain_share(plain[number], samples[number]) for plain, samples in rounds))
            for number, at in enumerate(self.own)
        }


def with_shared_waits(alone: Mapping[int, OpTimes], together: Mapping[int, OpTimes]) -> dict[int, OpTimes]:
    """Position → op → seconds side by side, where all short ops wait equally long for the interpreter they share.

    A thread that hands the interpreter's lock over gets it back late, or at once: in one step the ops of one device
    have nearly all the waiting, in the next those of another, and in a plan ops have other neighbours anyway. What
    lasts is how much they wait together.
    """
    short = [(at, op) for at, times in alone.items() for op, seconds in times.items() if seconds < SMALL_OP_S]
    if not short:
        return dict(together)
    mean_s = sum(together[at][op] - alone[at][op] for at, op in short) / len(short)
    found = {at: dict(times) for at, times in together.items()}
    for at, op in short:
        found[at][op] = max(0.0, alone[at][op] + mean_s)
    return {**found}


def _without_recording(sample: AloneSample, others: Sequence[AloneSample]) -> dict[str, float]:
    """Op → seconds without what recording each costs, by the median of a device's samples."""
    recording_s = median(each.recording_s for each in others)
    return {op: max(0.0, seconds - recording_s) for op, seconds in sample.recorded.op_times_s.items()}


def _one_by_one(
    alone: Mapping[int, Sequence[AloneSample]], clean: Mapping[int, Sequence[OpTimes]], count: int
) -> list[dict[int, OpTimes]]:
    """The steps alone of the only used device; as many without ops in a process that has another device.

    Each is as long as the step of its round that was not recorded.
    """
    steps: list[dict[int, OpTimes]] = []
    for at, found in clean.items():
        for sample, times in zip(alone[at], found, strict=True):
            share = _ops_s(sample.plain, sample.recorded) / (_total(times) or 1.0)
            steps.append({at: {op: seconds * share for op, seconds in times.items()}})
    return steps or [{} for _ in range(count)]


def _as_recorded(sample: StepSample) -> PlainStep:
    return PlainStep(sample.wall_s, sample.host_s)


def _ops_s(plain: PlainStep, recorded: StepSample) -> float:
    """Seconds of the ops of a step that is not recorded."""
    return max(0.0, plain.wall_s - (recorded.host_s if plain.host_s is None else plain.host_s))


def _plain_share(plain: PlainStep, recorded: StepSample) -> float:
    total_s = _total(recorded.op_times_s)
    return _ops_s(plain, recorded) / total_s if total_s else 1.0


def _total(times: OpTimes) -> float:
    return sum(times.values())
