"""The timing rule, by a made clock."""

from collections.abc import Callable

import pytest

from dlplacer.measure.run_plan import alternated_times


class Clock:
    """Steps that move it by given seconds, in turn; which were run."""

    def __init__(self) -> None:
        self.now_s, self.calls = 0.0, ""

    def step(self, name: str, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def run() -> None:
            self.calls += name
            self.now_s += left[0]
            left.append(left.pop(0))

        return run

    def timed(self, step: Callable[[], object]) -> float:
        begin = self.now_s
        step()
        return self.now_s - begin


# a warms up with 4, 2, 1.5, 1.5 and is timed with 15, 20, 40; b with 50, 50, then 60, 60, 60.
def test_steps_are_timed_in_turn_once_they_have_settled() -> None:
    clock = Clock()
    steps = {"a": clock.step("a", 4, 2, 1.5, 1.5, 15, 20, 40), "b": clock.step("b", 50, 50, 60, 60, 60)}
    assert alternated_times(steps, steps, 3, 1, clock.timed) == {"a": [15, 20, 40], "b": [60, 60, 60]}
    assert clock.calls == "aaaa" + "bb" + "ab" + "ba" + "ab"


# What ran before has left its data in the caches: one step is not enough to drive it out where a step is short.
# Every other step takes a half longer: quartiles of n steps are 0.5 apart around 1.25, 40 % of the median, and 3 % of
# it times the root of n is reached at no n up to 40.
@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [((1.0, 1.0), 5), ((1.0, 1.5), 40), ((3.0, 4.5), 15), ((20.0, 30.0), 2)],
    ids=["steady", "at most 40", "for a minute", "no longer"],
)
def test_unsteady_steps_are_timed_for_a_minute_at_most(seconds: tuple[float, float], rounds: int) -> None:
    clock, shares = Clock(), []
    step = clock.step("a", *seconds)
    found = alternated_times({"a": step}, ["a"], None, 0, clock.timed, lambda number, share: shares.append(share))
    assert len(found["a"]) == rounds
    assert shares[0] == 0.0
    assert shares == sorted(shares)
