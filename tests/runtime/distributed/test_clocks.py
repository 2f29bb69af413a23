"""Clocks of processes, compared by questions and answers."""

import time

import pytest
from processes import run_ranks
from runtime.random_plans import random_plan

from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime.distributed.clocks import clock_offsets_ns, offset_ns
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.ranks import parse_ranks

pytestmark = pytest.mark.timeout(120)


# Asked at 100 and answered at 110 here, 5,000 there: the middle of the fastest trip is 105.
def test_the_fastest_trip_decides() -> None:
    assert offset_ns([(0, 4000, 100), (100, 5000, 110), (200, 5200, 260)]) == 5000 - 105
    assert offset_ns([(1000, 0, 1010)]) == -1005


def test_clocks_that_may_be_one_are_one() -> None:
    assert offset_ns([(0, 1, 100), (200, 299, 300)]) == 0
    assert offset_ns([(0, 1, 100), (200, 301, 300)]) != 0


def test_the_offsets_of_all_ranks_are_known_to_all() -> None:
    ahead_s = (3, 10, -20)
    plan = random_plan(capture(mlp(batch_size=4)), 3)

    def work(rank: int) -> list[int]:
        honest = time.perf_counter_ns
        time.perf_counter_ns = lambda: honest() + ahead_s[rank] * 10**9
        return clock_offsets_ns(RankGroup(parse_ranks(plan, ["cpu:0", "cpu:0", "cpu:0"]), timeout_s=30))

    found = run_ranks(3, work)
    assert found[0] == found[1] == found[2]
    assert [round(offset * 1e-9) for offset in found[0]] == [0, 7, -23]
