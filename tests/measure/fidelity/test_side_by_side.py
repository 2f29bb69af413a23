"""The plan of one replica as that of all ranks."""

import pytest
from runtime.random_plans import random_plan

from dlplacer.check import violations
from dlplacer.frontend import capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.fidelity.run_report import device_uses
from dlplacer.measure.fidelity.side_by_side import side_by_side
from dlplacer.models import mlp
from dlplacer.runtime.distributed import replicated_plan
from dlplacer.runtime.distributed.ranks import NETWORK, parse_ranks

NAMES = ["rank0/cpu:0", "rank1/cpu:1"]


@pytest.mark.parametrize(("names", "replicas"), [(NAMES, 1), (NAMES, 3), (["rank0/cpu:0", "rank0/cpu:1"], 2)], ids=str)
def test_replicas_side_by_side_keep_every_rule_of_a_plan(names: list[str], replicas: int) -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)
    if replicas > 1:
        plan = replicated_plan(plan, replicas, AlphaBeta(1e-4, 1e-9), bucket_bytes=40_000)
    ranks = parse_ranks(plan, names, replicas)
    whole = side_by_side(plan, ranks)
    assert not violations(whole)
    assert len(whole.ops) == replicas * len(plan.ops)
    assert whole.makespan_s == plan.makespan_s
    compute = [device.id for device in whole.topology.devices if not device.id.endswith(NETWORK)]
    owners = [(owner.rank, name) for entry in ranks.owners for name, owner in entry.items()]
    assert compute == [f"rank{rank}/{name}" for rank, name in owners]
    networks = [device.id for device in whole.topology.devices if device.id.endswith(NETWORK)]
    assert networks == [f"rank{rank}/{NETWORK}" for rank in range(ranks.count) if replicas > 1]
    ours, theirs = device_uses(plan, plan), device_uses(whole, whole)
    assert sum(use.measured_busy_s for use in theirs) == pytest.approx(
        replicas * sum(use.measured_busy_s for use in ours)
    )
