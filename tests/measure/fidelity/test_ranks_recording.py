"""Steps recorded by several ranks, on one time axis and in one plan."""

import pytest
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.check import violations
from dlplacer.core.plan import Plan
from dlplacer.frontend import capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.fidelity.ranks_recording import joined, mean_op_times, record_over_ranks, recorded_plan
from dlplacer.measure.fidelity.recording import Recording
from dlplacer.measure.fidelity.run_report import device_uses
from dlplacer.measure.fidelity.side_by_side import side_by_side
from dlplacer.models import mlp
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed.ranks import NETWORK, parse_ranks
from dlplacer.runtime.executor.device_timeline import OpSpan

pytestmark = pytest.mark.timeout(120)

NAMES = ["rank0/cpu:0", "rank1/cpu:1"]


def plan_for(replicas: int) -> Plan:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)
    return plan if replicas == 1 else replicated_plan(plan, replicas, AlphaBeta(1e-4, 1e-9), bucket_bytes=40_000)


# Rank 1 began 0.3 s before rank 0 by its own clock, which is 1 s behind: 0.7 s after it.
def test_ranks_are_joined_on_the_clock_of_the_first() -> None:
    ranks = parse_ranks(plan_for(1), NAMES)
    first = Recording({"d0": (OpSpan("a", 0.1, 0.2),)}, began_ns=5_000_000_000)
    second = Recording({"d1": (OpSpan("b", 0.0, 0.5), OpSpan("c", 0.5, 0.6))}, began_ns=4_700_000_000)
    found = joined([first, second], [0, -1_000_000_000], ranks)
    assert found.began_ns == 5_000_000_000
    assert found.spans["rank0/d0"] == (OpSpan("a", 0.1, 0.2),)
    assert [span.start_s for span in found.spans["rank1/d1"]] == pytest.approx([0.7, 1.2])
    assert found.length_s == pytest.approx(1.3)


def test_op_times_are_means_over_replicas_of_medians_over_steps() -> None:
    ranks = parse_ranks(plan_for(1), ["rank0/cpu:0", "rank0/cpu:1"], replicas=2)

    def step(first_s: float, second_s: float) -> Recording:
        recordings = [Recording({"d0": (OpSpan("a", 0, seconds),)}) for seconds in (first_s, second_s)]
        return joined(recordings, [0, 0], ranks)

    assert mean_op_times([step(1, 4), step(2, 6), step(9, 5)], ranks, ["a"]) == {"a": 3.5}


@pytest.mark.parametrize(("names", "replicas"), [(NAMES, 1), (NAMES, 3), (["rank0/cpu:0", "rank0/cpu:1"], 2)], ids=str)
def test_replicas_side_by_side_keep_every_rule_of_a_plan(names: list[str], replicas: int) -> None:
    plan = plan_for(replicas)
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


# What reads a tensor begins after it was made, also where it came from another process.
@needs_two_cores
@pytest.mark.parametrize("replicas", [1, 2])
def test_recorded_steps_of_all_ranks_have_causes_before_effects(replicas: int) -> None:
    plan = plan_for(replicas)

    def work(rank: int):
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, replicas=replicas, timeout_s=30)
        recordings = record_over_ranks(placed, lambda: placed.step(*job.args, *job.targets), 2)
        return recordings, placed.records

    found = run_ranks(2 * replicas, work)
    recordings, records = found[0]
    assert not records
    assert all(theirs == recordings for theirs, _ in found)
    assert len(recordings) == 2
    predicted = side_by_side(plan, parse_ranks(plan, NAMES, replicas))
    for recording in recordings:
        measured = recorded_plan(predicted, recording)
        assert measured.placement == predicted.placement
        assert measured.order == predicted.order
        assert measured.makespan_s == recording.length_s > 0
        assert min(entry.start_s for entry in measured.ops) >= 0
        for edge in measured.graph.edges:
            assert measured.scheduled[edge.target].start_s >= measured.scheduled[edge.source].end_s - 1e-7
        for use in device_uses(predicted, measured):
            assert 0 <= use.measured_busy_s <= measured.makespan_s + 1e-9
