"""Step times that mean something: taken once they are steady, alternated, and often enough for how much they vary."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.runtime.profile.statistic import quartiles

# The first two to six steps are up to 2.5 times slower while every thread fills its own arena of the heap; some models
# never get steady to 3 %, and are timed as they are after twelve.
_SETTLED = 0.03
_MOST_WARMUP = 12
_SHORT_S = 1.0
# Behind another variant a step of 10 ms takes up to a quarter longer, the next one up to a tenth, the fourth no more.
_UNTIMED_S = 0.1
MOST_UNTIMED = 4
_MOST_ROUNDS = 4
"""As many times the rounds that were asked for."""
_SURE = 0.03
_LONGEST_S = 30.0


def alternated_times(
    steps: Mapping[str, Callable[[], object]],
    least: int,
    warmup: int,
    timed: Callable[[Callable[[], object]], float],
    before: Mapping[str, Callable[[], object]],
    on_round: Callable[[int, int], None] = lambda number, total: None,
) -> dict[str, list[float]]:
    """Name → seconds of its step in every round; the variants alternate, and so does their order.

    Each variant warms up first: at least `warmup` steps, and on until two steps in a row differ by less than 3 %, at
    most twelve. Where the last of these took less than a second, untimed steps precede every timed one, as many as fit
    into a tenth of a second, one to four: the variant that ran before has filled the caches with its own data, which
    nobody's training does.

    A virtual machine may run at two speeds, a second or so at each: then ten rounds of short steps say little. So more
    than `least` rounds follow, at most four times as many, while they have taken less than 30 s and the spread of a
    variant's times between quartiles is more than 3 % of their mean times the square root of the rounds.

    Parameters
    ----------
    timed
        Runs a step and returns its seconds, which alone decide how many steps are taken: processes that are told the
        same ones stay together.
    before
        Name → what to run as untimed steps, if not the step itself.
    on_round
        Called with -1 ahead of warming up, then with the number of each round, in which every variant is timed once,
        and with how many rounds there are or may be.
    """
    on_round(-1, least)
    ahead = {name: untimed_steps(_warm_up(step, warmup, timed)) for name, step in steps.items()}
    untimed = {**steps, **before}
    times: dict[str, list[float]] = {name: [] for name in steps}
    number, most, spent_s = 0, _MOST_ROUNDS * least, 0.0
    while number < least or (number < most and spent_s <= _LONGEST_S and not _are_sure(times.values())):
        on_round(number, least if number < least else most)
        names = list(steps) if number % 2 == 0 else list(steps)[::-1]
        for name in names:
            for _ in range(ahead[name]):
                untimed[name]()
            times[name].append(timed(steps[name]))
            spent_s += (1 + ahead[name]) * times[name][-1]
        number += 1
    return times


def _are_sure(times: Iterable[Sequence[float]]) -> bool:
    """Whether so many rounds say what each step takes."""
    for of_step in times:
        low, high = quartiles(of_step)
        if high - low > _SURE * len(of_step) ** 0.5 * trimmed_mean(of_step):
            return False
    return True


def untimed_steps(step_s: float) -> int:
    """How many steps to run ahead of a timed one, of steps as long as this."""
    return 0 if step_s >= _SHORT_S else max(1, min(MOST_UNTIMED, int(_UNTIMED_S / max(step_s, 1e-9))))


def _warm_up(step: Callable[[], object], least: int, timed: Callable[[Callable[[], object]], float]) -> float:
    """Seconds of the last step."""
    before = now = timed(step)
    for number in range(1, max(least, _MOST_WARMUP)):
        now = timed(step)
        if number + 1 >= least and abs(now - before) <= _SETTLED * before:
            break
        before = now
    return now
