"""What a placed module refuses, and how it says so."""

from dataclasses import replace

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random, random_plan
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.frontend import Job, capture
from dlplacer.runtime import apply


@needs_two_cores
def test_inputs_that_are_not_those_of_the_job() -> None:
    job = build("linear")
    x, labels = job.args[0], job.targets[0]
    with placed_at_random(job, graph=graph_of("linear")) as placed:
        with pytest.raises(InputError, match="the step takes 1 inputs and 1 targets; 3 values were given"):
            placed(x, x, labels)
        with pytest.raises(MismatchError, match=r"input args\[0\] has dtype torch.float64; .* torch.float32: convert"):
            placed(x.double(), labels)
        with pytest.raises(MismatchError, match=r"args holds 2 values; the capture had 1: nest the inputs"):
            placed.step([x, x], labels)
        with pytest.raises(MismatchError, match=r"input args\[0\] requires a gradient; .* detach it"):
            placed(x.clone().requires_grad_(), labels)
        with pytest.raises(MismatchError, match=r"args\[0\] is a Tensor on cpu with layout torch.sparse_coo; give"):
            placed(x.to_sparse(), labels)
        with pytest.raises(MismatchError, match=r"input args\[0\] is a Tensor on meta"):
            placed(x.to("meta"), labels)
        placed.eval()
        with pytest.raises(MismatchError, match="module is in evaluation mode; call train"):
            placed.step(x, labels)


@needs_two_cores
def test_autocast_must_be_that_of_the_capture() -> None:
    job = build("linear")
    with (
        placed_at_random(job, graph=graph_of("linear")) as placed,
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(MismatchError, match="active with bfloat16, but the plan was captured with autocast off"),
    ):
        placed(*job.args, *job.targets)
    job = build("mixed precision")
    with placed_at_random(job, graph=graph_of("mixed precision")) as placed:
        outside = placed.step(*job.args, *job.targets)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(placed.step(*job.args, *job.targets), outside)


def test_a_plan_of_another_model_names_the_op() -> None:
    plan = random_plan(capture(build("linear")), device_count=1)
    other = build("linear")
    other = replace(other, module=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5)))
    with pytest.raises(MismatchError, match=r"made for another graph: op 'weight' \(parameter\) is only in the first"):
        apply(other, plan, ["cpu:0"])
    wider = replace(other, module=nn.Linear(8, 6))
    with pytest.raises(MismatchError, match="op 'weight' differs in"):
        apply(wider, plan, ["cpu:0"])


def test_devices_must_be_those_of_the_plans_topology() -> None:
    plan = random_plan(capture(build("linear")), device_count=2)
    job = build("linear")
    with pytest.raises(InputError, match=r"the plan has 2 devices \(d0, d1\), but 3 were given"):
        apply(job, plan, ["cpu:0", "cpu:1", "cpu:2"])
    with pytest.raises(InputError, match="'d1' is not named"):
        apply(job, plan, {"d0": "cpu:0"})
    with pytest.raises(InputError, match="device 'cpu:0' is given twice"):
        apply(job, plan, ["cpu:0", "cpu"])


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_a_module_without_data_can_be_planned_but_not_run(where: str) -> None:
    if where == "meta":
        module, x, labels = nn.Linear(8, 5, device="meta"), torch.empty(4, 8, device="meta"), torch.randint(5, (4,))
    else:
        with FakeTensorMode():
            module, x, labels = nn.Linear(8, 5), torch.randn(4, 8), torch.randint(5, (4,))
    job = Job(module, (x,), (labels,), functional.cross_entropy)
    plan = random_plan(capture(job), device_count=1)
    with pytest.raises(InputError, match=r"'weight' has no data: such a module can be planned but not run"):
        apply(job, plan, ["cpu:0"])
