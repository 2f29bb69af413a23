"""Which of two ways of taking a step needs less time on average, found by steps that alternate."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dlplacer.core.trimmed_mean import trimmed_mean


@dataclass(frozen=True)
class TrialRules:
    """How a trial goes, and when the other way is taken.

    Attributes
    ----------
    first
        Steps of the usual way before the other is tried: who takes a few steps pays nothing, and they warm up the heap.
    untimed
        How many of them are not timed, as they compile.
    large_op_s
        Above this time per op there is no trial: threads then lose nothing that matters to the interpreter, which hands
        its lock over in 10 to 40 µs.
    warmup
        First steps of the other way, which compile and touch memory for the first time.
    pairs, most_pairs
        Fewest and most timed steps of each, alternating.
    timed_s
        Short steps alternate for that long: cores that share their machine are slower for a second at times, with one
        thread more than with two busy ones or the other way about.
    share
        The other way is taken if it needs less than this share of the time.
    """

    first: int
    untimed: int
    large_op_s: float
    warmup: int
    pairs: int
    most_pairs: int
    timed_s: float
    share: float


class AlternatingTrial:
    """Decides after some steps, which come as the user takes them.

    Parameters
    ----------
    ops
        Number of calls in a step, to tell whether they are short.

    Attributes
    ----------
    chosen
        Whether the other way is taken; None before the choice. It can be set from outside, too.
    """

    def __init__(self, ops: int, rules: TrialRules, chosen: bool | None = None) -> None:
        self.chosen = chosen
        self._ops, self._rules = max(1, ops), rules
        self._usual: list[float] = []
        self._other: list[float] = []

    @property
    def wants_other(self) -> bool:
        """Whether the next step is to be taken the other way."""
        if self.chosen is not None:
            return self.chosen
        return self.has_begun and len(self._timed_other) <= len(self._timed_usual)

    @property
    def has_begun(self) -> bool:
        """Whether the first steps are done."""
        return len(self._usual) >= self._rules.first

    @property
    def per_op_s(self) -> float:
        """Median seconds of the first steps, per op."""
        return median(self._usual[self._rules.untimed : self._rules.first]) / self._ops

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Mean of a step of the usual way, and of the other; None if they were not compared.

        By means, as training will go: two chains of short ops are 1.6 to 1.8 times as fast with processes. While cores
        changed their speed by half within a second they got threads in 8 of 12 runs by first deciles (for threads that
        wait for each other one quick core is enough), in 2 by medians, in none by means.
        """
        return self._seconds if self._timed_other else None

    def took(self, other: bool, seconds: float) -> None:
        """Note a whole step."""
        if self.chosen is not None:
            return
        rules = self._rules
        (self._other if other else self._usual).append(seconds)
        if not self._other and self.has_begun and self.per_op_s > rules.large_op_s:
            self.chosen = False
        # Steps of several threads may come in any order: as many of the other way, or fewer.
        count = len(self._timed_usual)
        if self._timed_other and rules.pairs <= count >= len(self._timed_other):
            timed_s = sum(self._timed_usual) + sum(self._timed_other)
            if count >= rules.most_pairs or timed_s >= rules.timed_s:
                usual_s, other_s = self._seconds
                self.chosen = other_s < rules.share * usual_s

    @property
    def _seconds(self) -> tuple[float, float]:
        return trimmed_mean(self._timed_usual), trimmed_mean(self._timed_other)

    @property
    def _timed_usual(self) -> Sequence[float]:
        return self._usual[self._rules.first :]

    @property
    def _timed_other(self) -> Sequence[float]:
        return self._other[self._rules.warmup :]
