"""`run`: prediction and measurement side by side, and how steps are timed."""

import json
from dataclasses import replace

import pytest
import torch
from frontend.torch.small_models import build
from runtime.random_plans import needs_two_cores, random_plan
from torch import nn

from dlplacer.frontend import Job, capture
from dlplacer.frontend.torch.job import loss_of
from dlplacer.measure.run_plan import run
from dlplacer.problem.simulate import replay_plan

CPUS = ["cpu:0", "cpu:1"]


@needs_two_cores
def test_the_figures_of_a_training_run_belong_together() -> None:
    job = replace(build("branches"), optimizer="momentum")
    plan = random_plan(capture(job), seed=3)
    done = run(job, plan, CPUS, steps=3, warmup=1)
    report = done.report
    assert report.measured_speedup == report.baseline_s / report.measured_s
    assert report.prediction_error == abs(report.predicted_s - report.measured_s) / report.measured_s
    assert done.predicted.makespan_s + report.host_s == report.predicted_s
    assert 0 < report.host_s < report.predicted_s
    assert report.predicted_speedup == report.baseline_s / report.predicted_s
    serial_s = sum(op.time_on("cpu-core") or 0.0 for op in done.predicted.graph.ops)
    assert serial_s / 2 <= report.predicted_s  # two devices
    assert report.eager_all_cores_s is not None
    assert min(report.baseline_s, report.eager_all_cores_s, report.measured_s) > 0
    assert report.max_abs_error < 1e-5
    assert report.step == "joint"
    assert report.steps == 3
    assert report.plan_makespan_s == plan.makespan_s
    assert report.devices == tuple(CPUS)
    assert json.loads(json.dumps(report.to_dict()))["steps"] == 3
    assert done.predicted.placement == done.measured.placement == plan.placement
    assert sum(report.losses.values()) == pytest.approx(report.predicted_s - report.baseline_s / 2)
    low_s, high_s = report.baseline_quartiles_s
    assert report.noise == (high_s - low_s) / report.baseline_s
    assert report.conclusion.endswith(".")


@needs_two_cores
def test_an_inference_run_compares_with_the_module_in_evaluation_mode() -> None:
    job = replace(build("convolutions"), mode="infer")  # with targets, which inference leaves alone
    report = run(job, random_plan(capture(job)), CPUS, steps=1, warmup=0).report
    assert report.max_abs_error < 1e-6


def test_the_prediction_owes_nothing_to_the_times_in_the_plan() -> None:
    job = build("linear")
    plan = random_plan(capture(job), device_count=1)
    hours = replace(plan.graph, ops=tuple(replace(op, time_s=3600.0) for op in plan.graph.ops))
    report = run(job, replay_plan(plan, hours, plan.topology), ["cpu:0"], steps=1).report
    assert report.predicted_s < 3600
    assert report.plan_makespan_s >= 3600
    assert report.predicted_speedup == report.baseline_s / report.predicted_s


# Torch's compilers use what torch itself deprecates.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_is_timed_where_segments_are_compiled() -> None:
    job = build("linear")
    plan = random_plan(capture(job), device_count=1)
    report = run(job, plan, ["cpu:0"], steps=1, warmup=0, segments="inductor").report
    assert report.segments == "inductor"
    # Without a compiler it is left out, and said to be.
    assert (report.compiled_s or 0.0) > 0 or "compiler" in report.left_out[0]
    assert report.max_abs_error < 1e-5


# A compiled module has `__len__`, which fails for most modules.
def test_a_module_is_used_whatever_its_length() -> None:
    class Empty(nn.Module):
        def __len__(self) -> int:
            return 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

    assert loss_of(Job(nn.Identity(), (torch.ones(3),)), Empty()) == 3.0
