"""The timeline of DistributedDataParallel: examples worked out by hand, and what holds for any."""

import random

import pytest
from benchmarks.ddp_model import DdpProfile, ddp_step_s, exposed_s, speedup

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.alpha_beta import AlphaBeta

# 10 s: two buckets of 1,000 and 3,000 bytes, ready at 4 s and 8 s; 2 s of copies and updates behind the last one.
PROFILE = DdpProfile(10.0, (4.0, 8.0), (1000, 3000))


# 1 ms per byte: the first takes 1 s, from 4 s to 5 s; the second 3 s, from 8 s to 11 s; then 2 s.
def test_an_all_reduce_hides_behind_backward_and_the_last_one_does_not() -> None:
    step_s = ddp_step_s(PROFILE, AlphaBeta(0.0, 1e-3))
    assert step_s == pytest.approx(13.0)
    assert exposed_s(PROFILE, step_s) == pytest.approx(3.0)
    assert speedup(9.0, 2, step_s) == pytest.approx(18 / 13)


# 5 ms per byte: 5 s from 4 s to 9 s, then 15 s to 24 s, as one waits for the other; then 2 s.
def test_all_reduces_wait_for_each_other() -> None:
    assert ddp_step_s(PROFILE, AlphaBeta(0.0, 5e-3)) == pytest.approx(26.0)


# On the same core: the first one takes twice its 1 s beside backward, which does 1 s of its work meanwhile, 1 s late;
# the second runs alone from 9 s to 12 s. All work adds up: 10 + 4.
def test_an_all_reduce_that_takes_the_core_hides_nothing() -> None:
    assert ddp_step_s(PROFILE, AlphaBeta(0.0, 1e-3), cpu_share=1.0) == pytest.approx(14.0)


# A quarter of the core: backward loses 0.25 s of the 1 s that the first one takes.
def test_an_all_reduce_that_takes_a_part_of_the_core() -> None:
    assert ddp_step_s(PROFILE, AlphaBeta(0.0, 1e-3), cpu_share=0.25) == pytest.approx(13.25)


def test_free_communication_costs_nothing() -> None:
    assert ddp_step_s(PROFILE, AlphaBeta(0.0, 0.0), cpu_share=0.7) == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(60))
def test_bounds_and_monotony(seed: int) -> None:
    chooser = random.Random(seed)
    count = chooser.randint(1, 6)
    ready = tuple(sorted(chooser.uniform(0, 9) for _ in range(count)))
    profile = DdpProfile(10.0, ready, tuple(chooser.randint(0, 5000) for _ in range(count)))
    line = AlphaBeta(chooser.uniform(0, 0.5), chooser.uniform(0, 2e-3))
    total_s = sum(line.time_s(size) for size in profile.sizes_bytes)
    times = [ddp_step_s(profile, line, share) for share in (0.0, 0.3, 0.5, 0.8, 1.0)]
    assert times == sorted(times) or max(b - a for a, b in zip(times[1:], times, strict=False)) < 1e-9
    tail_s = 10.0 - ready[-1]
    assert max(10.0, ready[0] + total_s + tail_s) <= times[0] + 1e-9
    assert times[-1] <= 10.0 + total_s + 1e-9
    assert ddp_step_s(profile, line.times(2)) >= times[0] - 1e-9


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="2 times and 1 sizes"):
        DdpProfile(1.0, (0.1, 0.2), (5,))
    with pytest.raises(InputError, match="buckets are ready at"):
        DdpProfile(1.0, (0.1, 1.2), (5, 5))
    with pytest.raises(InputError, match=r"cpu_share is 1.5; it must be between 0 and 1"):
        ddp_step_s(PROFILE, AlphaBeta(0.0, 0.0), 1.5)
