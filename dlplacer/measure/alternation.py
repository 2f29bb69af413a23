"""The timing rule: steps that are compared take turns, and go on until their medians are sure or the time is over."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from dlplacer.runtime.profile.statistic import quartiles

LIMIT_S = 60.0
"""For the timed steps of a configuration, unless their number is given."""
_LEAST, _MOST = 5, 40
_SURE = 0.03
# The first two to six steps are up to 2.5 times slower while heaps fill; some models never get steady to 3 %.
_SETTLED, _MOST_WARMUP = 0.03, 12
# Behind another variant a step of 10 ms takes up to a quarter longer, the next one up to a tenth, the fourth no more.
_SHORT_S, _UNTIMED_S, _MOST_UNTIMED = 1.0, 0.1, 4


def alternated_times(
    steps: Mapping[str, Callable[[], object]],
    compared: Iterable[str],
    count: int | None,
    warmup: int,
    timed: Callable[[Callable[[], object]], float],
    on_round: Callable[[int, float], None] = lambda number, share: None,
) -> dict[str, list[float]]:
    """Name → seconds of its step in every round; the steps alternate, and so does their order.

    Each warms up first: at least `warmup` times, and on until two in a row differ by less than 3 %, at most twelve
    times. An untimed step precedes each short one, because the step before has filled the caches with its own data.
    Without a `count` there are 5 to 40 rounds, until the quartiles of all compared steps are sure to 3 % of their
    median; none begins that would end after a minute.

    Parameters
    ----------
    compared
        Steps that get an untimed step first and must become sure; others only take turns.
    timed
        Runs a step and returns its seconds. These alone decide the number of rounds, so processes with equal seconds
        stay together.
    on_round
        Called with the number of each round, and the share of the time or of the rounds that is over.
    """
    compared = set(compared)
    ahead = {name: _warm_up(step, warmup, timed) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    number, spent_s = 0, 0.0
    least, most = (_LEAST, _MOST) if count is None else (count, count)
    while number < least or (number < most and not _are_sure(times[name] for name in compared)):
        if count is None and number and spent_s * (1 + 1 / number) > LIMIT_S:
            break
        on_round(number, max(number / most, 0.0 if count else spent_s / LIMIT_S))
        for name in list(steps)[:: 1 if number % 2 == 0 else -1]:
            for _ in range(ahead[name] if name in compared else 0):
                spent_s += timed(steps[name])
            times[name].append(timed(steps[name]))
            spent_s += times[name][-1]
        number += 1
    return times


def spread(times: Sequence[float]) -> float:
    """Third less first quartile of a step's times, ÷ their median."""
    low, high = quartiles(times)
    return (high - low) / median(times)


def _are_sure(times: Iterable[Sequence[float]]) -> bool:
    """True if these rounds determine the time of each step."""
    return all(spread(of_step) <= _SURE * len(of_step) ** 0.5 for of_step in times)


def _warm_up(step: Callable[[], object], least: int, timed: Callable[[Callable[[], object]], float]) -> int:
    """Run the step until it is steady; returns the number of untimed steps before each timed one."""
    before = now = timed(step)
    for number in range(1, max(least, _MOST_WARMUP)):
        now = timed(step)
        if number + 1 >= least and abs(now - before) <= _SETTLED * before:
            break
        before = now
    return 0 if now >= _SHORT_S else max(1, min(_MOST_UNTIMED, int(_UNTIMED_S / max(now, 1e-9))))
