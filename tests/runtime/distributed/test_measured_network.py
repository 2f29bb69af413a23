"""Links and collectives of several processes, as they measure them together."""

import pytest
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.measured_network import (
    measured_all_reduce,
    measured_machine,
)
from dlplacer.runtime.distributed.ranks import parse_ranks

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]


def test_links_are_the_same_on_all_ranks() -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2)

    def work(rank: int):
        group = RankGroup(parse_ranks(plan, ["rank0/cpu:0", "rank1/cpu:1"], replicas=2), timeout_s=30)
        opened = dict(zip(group.ranks.devices_of(rank), open_devices([f"cpu:{rank % 2}"]), strict=True))
        machine, line = measured_machine(group, opened), measured_all_reduce(group)
        return [(link.source, link.target, link.latency_s) for link in machine.links], line

    first, *others = run_ranks(4, work)
    assert others == [first] * 3
    ((source, target, latency_s),), line = first
    assert (source, target) == ("d0", "d1")
    assert 0 < latency_s < 0.1
    assert line.latency_s + line.s_per_byte > 0
