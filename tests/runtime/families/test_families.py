"""Every family is captured, solved on two and on four devices, checked, and run on two, equal to plain PyTorch."""

import pytest
import torch
from runtime.families.all_families import EVERY, build, graph_of
from runtime.random_plans import needs_two_cores, plain_loss

import dlplacer as dp
from dlplacer.check import check_plan
from dlplacer.core.plan import Plan

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def solved(name: str, topology: str) -> Plan:
    """A plan of the family on a topology that ships, with little search: any plan must be valid and run."""
    result = dp.place(graph_of(name), dp.load_topology(topology), time_limit_s=0.5, workers=2)
    check_plan(result.plan)
    assert len(result.plan.topology.devices) == (4 if "4gpu" in topology else 2)
    return result.plan


_QUICK = ("GPT-like", "BERT-like", "VGG-19")
"""Families whose plans for four devices are checked each time."""

_LIKE_OTHERS = ("ResNet-50", "GoogLeNet", "Llama-like", "Mixtral-like", "CLIP-like")
"""Families that run on two devices in `make test-slow` only: long, and others are made of the same ops."""


@pytest.mark.parametrize(
    "name",
    [
        one if one.values[0] in _QUICK else pytest.param(*one.values, marks=(*one.marks, pytest.mark.slow))
        for one in EVERY
    ],
)
def test_solves_on_four_devices(name: str) -> None:
    plan = solved(name, "dgx1-v100-4gpu")
    assert 0 < plan.lower_bound_s <= plan.makespan_s


@needs_two_cores
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(*one.values, marks=(*one.marks, pytest.mark.slow)) if one.values[0] in _LIKE_OTHERS else one
        for one in EVERY
    ],
)
def test_runs_on_two_devices_as_plain_pytorch_does(name: str) -> None:
    plan = solved(name, "cpu-2core")
    job, plain = build(name), build(name).module.train()
    placed = dp.apply(job, plan, devices={"cpu0": "cpu:0", "cpu1": "cpu:1"})
    try:
        for _ in range(2):
            loss = placed(*job.args, *job.targets, **job.kwargs)
            loss.backward()
            expected = plain_loss(job, plain)
            expected.backward()  # type: ignore[no-untyped-call]
            torch.testing.assert_close(loss, expected, **TOLERANCE)
        gradients = dict(placed.named_parameters())
        for parameter_name, parameter in plain.named_parameters():
            ours = gradients[parameter_name].grad
            assert (ours is None) == (parameter.grad is None), parameter_name
            if ours is not None:
                torch.testing.assert_close(ours, parameter.grad, **TOLERANCE)
    finally:
        placed.close()
