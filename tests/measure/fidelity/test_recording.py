"""Recorded steps, the figures drawn from them, and the same random draws as a placed step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random, random_plan
from torch import nn
from torch.nn import functional

from dlplacer.frontend import Job, capture
from dlplacer.measure.fidelity.draws import SameDraws
from dlplacer.measure.fidelity.recording import (
    Recording,
    measured_plan,
    median_op_times,
    median_recording,
    record_steps,
)
from dlplacer.measure.fidelity.run_plan import run
from dlplacer.measure.fidelity.run_report import device_uses, worst_offenders
from dlplacer.report.plot import plot_run, save_run_picture
from dlplacer.report.trace import run_trace
from dlplacer.runtime.executor.device_timeline import OpSpan


def recording(*ends_s: float) -> Recording:
    return Recording({"d0": tuple(OpSpan(f"op {i}", end_s - 1, end_s) for i, end_s in enumerate(ends_s))})


def test_the_median_recording_and_median_op_times() -> None:
    steps = [recording(1, 9), recording(1, 3), recording(2, 5)]
    assert median_recording(steps) is steps[2]
    assert median_recording(steps[:2]) is steps[1]
    longer = Recording({"d0": (OpSpan("op 0", 0, 5), OpSpan("op 1", 5, 7))})
    assert median_op_times([*steps[:2], longer]) == {"op 0": 1, "op 1": 1}


@needs_two_cores
def test_a_measured_plan_has_the_ops_of_the_plan_where_they_ran(tmp_path: Path) -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        steps = record_steps(placed, lambda: placed.step(*job.args, *job.targets), 3)
        assert not placed.records
        plan = placed.plan
    measured = measured_plan(plan, median_recording(steps))
    assert measured.placement == plan.placement
    assert measured.order == plan.order
    assert measured.makespan_s == max(entry.end_s for entry in measured.ops)
    uses = device_uses(plan, measured)
    assert [use.device for use in uses] == ["d0", "d1"]
    for use in uses:
        assert use.measured_busy_s + use.measured_idle_s == pytest.approx(measured.makespan_s)
        assert use.predicted_busy_s + use.predicted_idle_s == pytest.approx(plan.makespan_s)
        assert 0 < use.measured_busy_s <= measured.makespan_s
    save_run_picture(tmp_path / "run.svg", plan, measured)
    assert (tmp_path / "run.svg").read_text().count("measured: ") == 1
    events = run_trace(plan, measured)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names >= {"d0 predicted", "d0 measured", "d1 predicted", "d1 measured"}
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
