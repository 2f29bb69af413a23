"""Families planned as fused chains and as modules run as plain PyTorch does, and lead back to ATen ops."""

from pathlib import Path

import pytest
import torch
from runtime.families.all_families import EVERY, build, graph_of
from runtime.random_plans import needs_two_cores, plain_loss, random_plan

import dlplacer as dp
from dlplacer.check import check_plan
from dlplacer.files.load import load_plan
from dlplacer.planning.coarsen import coarsen

pytestmark = needs_two_cores
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


QUICK = ("U-net", "LSTM language model", "GPT-like")


@pytest.mark.parametrize("granularity", ["fused", "module"])
@pytest.mark.parametrize("name", [family for family in EVERY if family.values[0] in QUICK])
def test_runs_as_plain_pytorch_does(name: str, granularity: str, tmp_path: Path) -> None:
    runs_as_plain_pytorch_does(name, granularity, tmp_path)


def runs_as_plain_pytorch_does(name: str, granularity: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    coarse = coarsen(graph, granularity)
    assert len(coarse.ops) < len(graph.ops)
    plan = random_plan(coarse, seed=len(name))
    check_plan(plan)
    plan.save(tmp_path / "plan.json")
    job, plain = build(name), build(name).module.train()
    placed = dp.apply(job, load_plan(tmp_path / "plan.json"), devices=["cpu:0", "cpu:1"])
    try:
        check_plan(placed.plan)
        assert placed.plan.graph.index.keys() == graph.index.keys()
        loss = placed.step(*job.args, *job.targets, **job.kwargs)
        expected = plain_loss(job, plain)
        expected.backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(loss, expected.detach(), **TOLERANCE)
        ours = dict(placed.named_parameters())
        for parameter_name, parameter in plain.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(ours[parameter_name].grad, parameter.grad, **TOLERANCE)
    finally:
        placed.close()
