"""Links, collectives and clocks of several processes, as they measure them together."""

import time

import pytest
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.measured_network import (
    clock_offsets_ns,
    measured_all_reduce,
    measured_machine,
    offset_ns,
)
from dlplacer.runtime.distributed.ranks import parse_ranks

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]


# Asked at 100 and answered at 110 here, 5,000 there: the middle of the fastest trip is 105.
def test_the_fastest_trip_decides() -> None:
    assert offset_ns([(0, 4000, 100), (100, 5000, 110), (200, 5200, 260)]) == 5000 - 105
    assert offset_ns([(1000, 0, 1010)]) == -1005


def test_clocks_that_may_be_one_are_one() -> None:
    assert offset_ns([(0, 1, 100), (200, 299, 300)]) == 0
    assert offset_ns([(0, 1, 100), (200, 301, 300)]) != 0


def test_links_and_clock_offsets_are_the_same_on_all_ranks() -> None:
    ahead_s = (3, 10, -20, 0)
    plan = random_plan(capture(mlp(batch_size=4)), 2)

    def work(rank: int):
        group = RankGroup(parse_ranks(plan, ["rank0/cpu:0", "rank1/cpu:1"], replicas=2), timeout_s=30)
        opened = dict(zip(group.ranks.devices_of(rank), open_devices([f"cpu:{rank % 2}"]), strict=True))
        machine, line = measured_machine(group, opened), measured_all_reduce(group)
        honest = time.perf_counter_ns
        time.perf_counter_ns = lambda: honest() + ahead_s[rank] * 10**9
        return [(link.source, link.target, link.latency_s) for link in machine.links], line, clock_offsets_ns(group)

    first, *others = run_ranks(4, work)
    assert others == [first] * 3
    ((source, target, latency_s),), line, offsets = first
    assert (source, target) == ("d0", "d1")
    assert 0 < latency_s < 0.1
    assert line.latency_s + line.s_per_byte > 0
    assert [round(offset * 1e-9) for offset in offsets] == [0, 7, -23, -3]
