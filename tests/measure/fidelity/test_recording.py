"""Recorded steps of one process and of several, the figures drawn from them, and the same random draws."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from processes import run_ranks
from runtime.random_plans import needs_two_cores, placed_at_random, random_plan
from torch import nn
from torch.nn import functional

from dlplacer.core.plan import Plan
from dlplacer.frontend import Job, capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.fidelity.draws import SameDraws
from dlplacer.measure.fidelity.process_group import OneProcess, SeveralProcesses
from dlplacer.measure.fidelity.recording import (
    Recording,
    joined,
    mean_op_times,
    measured_plan,
    median_recording,
    record_steps,
)
from dlplacer.measure.fidelity.run_plan import run
from dlplacer.measure.fidelity.run_report import device_uses, worst_offenders
from dlplacer.measure.fidelity.side_by_side import names_of, side_by_side
from dlplacer.models import mlp
from dlplacer.problem.simulate import replay_plan
from dlplacer.report.plot import plot_run, save_run_picture
from dlplacer.report.trace import run_trace
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed.ranks import NETWORK, parse_ranks
from dlplacer.runtime.executor.run import OpSpan

NAMES = ["rank0/cpu:0", "rank1/cpu:1"]


def plan_for(replicas: int) -> Plan:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)
    return plan if replicas == 1 else replicated_plan(plan, replicas, AlphaBeta(1e-4, 1e-9), bucket_bytes=40_000)


def recording(*ends_s: float) -> Recording:
    return Recording({"d0": tuple(OpSpan(f"op {i}", end_s - 1, end_s) for i, end_s in enumerate(ends_s))})


def test_the_median_recording() -> None:
    steps = [recording(1, 9), recording(1, 3), recording(2, 5)]
    assert median_recording(steps) is steps[2]
    assert median_recording(steps[:2]) is steps[1]


# Rank 1 began 0.3 s before rank 0 by its own clock, which is 1 s behind: 0.7 s after it.
def test_ranks_are_joined_on_the_clock_of_the_first() -> None:
    ranks = parse_ranks(plan_for(1), NAMES)
    first = Recording({"d0": (OpSpan("a", 0.1, 0.2),)}, began_ns=5_000_000_000)
    second = Recording({"d1": (OpSpan("b", 0.0, 0.5), OpSpan("c", 0.5, 0.6))}, began_ns=4_700_000_000)
    found = joined([first, second], [0, -1_000_000_000], [names_of(ranks, 0)] * 2)
    assert found.began_ns == 5_000_000_000
    assert found.spans["rank0/d0"] == (OpSpan("a", 0.1, 0.2),)
    assert [span.start_s for span in found.spans["rank1/d1"]] == pytest.approx([0.7, 1.2])
    assert found.length_s == pytest.approx(1.3)


def test_op_times_are_means_over_replicas_of_medians_over_steps() -> None:
    ranks = parse_ranks(plan_for(1), ["rank0/cpu:0", "rank0/cpu:1"], replicas=2)
    names = [names_of(ranks, replica) for replica in range(2)]

    def step(first_s: float, second_s: float) -> Recording:
        recordings = [Recording({"d0": (OpSpan("a", 0, seconds),)}) for seconds in (first_s, second_s)]
        return joined(recordings, [0, 0], names)

    assert mean_op_times([step(1, 4), step(2, 6), step(9, 5)], names, ["a"]) == {"a": 3.5}


# What reads a tensor begins after it was made, also where it came from another process.
@needs_two_cores
@pytest.mark.parametrize("replicas", [1, 2])
def test_recorded_steps_of_all_ranks_have_causes_before_effects(replicas: int) -> None:
    plan = plan_for(replicas)

    def work(rank: int):
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, replicas=replicas, timeout_s=30)
        opened = {name: device for name, device in placed.devices.items() if NETWORK not in name}
        group = SeveralProcesses(placed.group, opened, AlphaBeta(1e-4, 1e-9))
        recordings = record_steps(placed, lambda: placed.step(*job.args, *job.targets), 2, group)
        return recordings, placed.records

    found = run_ranks(2 * replicas, work)
    recordings, records = found[0]
    assert not records
    assert all(theirs == recordings for theirs, _ in found)
    assert len(recordings) == 2
    predicted = side_by_side(plan, parse_ranks(plan, NAMES, replicas))
    for recording in recordings:
        measured = measured_plan(predicted, recording)
        assert measured.placement == predicted.placement
        assert measured.order == predicted.order
        assert measured.makespan_s == recording.length_s > 0
        assert min(entry.start_s for entry in measured.ops) >= 0
        for edge in measured.graph.edges:
            assert measured.scheduled[edge.target].start_s >= measured.scheduled[edge.source].end_s - 1e-7
        for use in device_uses(predicted, measured):
            assert 0 <= use.measured_busy_s <= measured.makespan_s + 1e-9


@needs_two_cores
def test_a_measured_plan_has_the_ops_of_the_plan_where_they_ran(tmp_path: Path) -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        group = OneProcess(placed.devices)
        steps = record_steps(placed, lambda: placed.step(*job.args, *job.targets), 3, group)
        assert not placed.records
        plan = replay_plan(placed.plan, placed.plan.graph, group.topology)
    measured = measured_plan(plan, median_recording(steps))
    assert measured.placement == plan.placement
    assert measured.order == plan.order
    assert measured.makespan_s == max(entry.end_s for entry in measured.ops)
    uses = device_uses(plan, measured)
    assert [use.device for use in uses] == ["cpu:0", "cpu:1"]
    for use in uses:
        assert use.measured_busy_s + use.measured_idle_s == pytest.approx(measured.makespan_s)
        assert use.predicted_busy_s + use.predicted_idle_s == pytest.approx(plan.makespan_s)
        assert 0 < use.measured_busy_s <= measured.makespan_s
    save_run_picture(tmp_path / "run.svg", plan, measured)
    assert (tmp_path / "run.svg").read_text().count("measured: ") == 1
    events = run_trace(plan, measured)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names >= {"cpu:0 predicted", "cpu:0 measured", "cpu:1 predicted", "cpu:1 measured"}
    ran = [event for event in events if event["ph"] == "X" and event.get("cat") != "transfer"]
    assert len({event["pid"] for event in ran}) == 4


def test_both_panels_have_one_time_axis() -> None:
    from matplotlib.figure import Figure

    plan = random_plan(capture(build("linear")), 1)
    measured = replace(plan, makespan_s=2 * plan.makespan_s)
    above, below = plot_run(plan, measured, tuple(Figure().subplots(2, 1)))
    assert above.get_xlim() == below.get_xlim() == (0, 2 * plan.makespan_s)
    assert above.get_title(loc="left").startswith("predicted: ")
    assert below.get_title(loc="left").startswith("measured: ")


def test_the_worst_offender_comes_first_whether_it_is_longer_or_shorter() -> None:
    plan = random_plan(capture(build("linear")), 1)
    times = {entry.op: entry.end_s - entry.start_s for entry in plan.ops}
    slow, fast = [entry.op for entry in plan.ops if entry.end_s > entry.start_s][:2]
    found = worst_offenders(plan, {**times, slow: times[slow] + 2e-3, fast: 0.0}, count=2)
    assert [offender.op for offender in found] == [slow, fast]
    assert found[0].difference_s == pytest.approx(2e-3)
    assert found[1].difference_s == pytest.approx(-times[fast])


def dropping() -> Job:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.5), nn.Linear(64, 5), nn.Dropout(0.2))
    return Job(module, (torch.randn(16, 32),), (torch.randint(5, (16,)),), functional.cross_entropy)


@needs_two_cores
def test_a_run_with_dropout_compares_the_same_draws() -> None:
    job = dropping()
    report = run(job, random_plan(capture(job)), ["cpu:0", "cpu:1"], steps=1, warmup=0).report
    assert report.draws == "same"
    assert report.max_abs_error < 1e-6


def test_a_run_without_random_ops_says_so() -> None:
    job = build("linear")
    assert run(job, random_plan(capture(job), 1), ["cpu:0"], steps=1, warmup=0).report.draws == "none"


def test_draws_are_counted() -> None:
    device = torch.device("cpu")
    for calls, complete in ((1, False), (2, True), (3, False)):
        with SameDraws(["a", "b"], seed=0, step=1, device=device) as draws:
            drawn = [torch.rand(4) for _ in range(calls)]
        assert draws.complete == complete
    with SameDraws(["b"], seed=0, step=1, device=device):
        assert torch.equal(torch.rand(4), drawn[1])
