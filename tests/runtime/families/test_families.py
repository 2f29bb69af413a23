"""Every family is captured, planned, checked and run on two devices, equal to plain PyTorch."""

import importlib.util
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from runtime.families import networks, transformers_models
from runtime.random_plans import needs_two_cores, placed_at_random, random_plan, require_same_step
from torch import nn
from torch.utils import _pytree as pytree

import dlplacer as dp
from dlplacer.check import check_plan
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.files.load import load_plan
from dlplacer.frontend import Job, capture
from dlplacer.planning.coarsen import coarsen

pytestmark = needs_two_cores
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

OWN: dict[str, Callable[[], Job]] = {
    "DLRM-like": networks.ranking,
    "U-net": networks.u_net,
}
BUILDERS = {**OWN, **transformers_models.BUILDERS}
_NEEDS_TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
_LIKE_OTHERS = ("Llama-like", "Mixtral-like")
"""Families that run in `make test-slow` only: long, and others are made of the same ops."""


def build(name: str) -> Job:
    """The job of this family; weights and data are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BUILDERS[name]()


@cache
def graph_of(name: str) -> OpGraph:
    """The captured graph of the family."""
    return capture(build(name))


def require_plain_training(name: str, plan: Plan) -> None:
    """Return if loss and gradients of two steps under a plan are those of plain PyTorch."""
    job, plain = build(name), build(name).module.train()
    with closing(dp.apply(job, plan, devices=["cpu:0", "cpu:1"])) as placed:
        check_plan(placed.plan)
        assert placed.plan.graph.index.keys() == graph_of(name).index.keys()
        for _ in range(2):
            require_same_step(placed, job, plain, joint=False, tolerance=1e-5)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    needs = [_NEEDS_TRANSFORMERS] if name in transformers_models.BUILDERS else []
    return [*needs, pytest.mark.slow] if name in _LIKE_OTHERS else needs


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in BUILDERS])
def test_a_solved_family_trains_as_plain_pytorch_does(name: str) -> None:
    plan = dp.place(graph_of(name), dp.load_topology("cpu-2core"), time_limit_s=0.5, workers=2).plan
    assert 0 < plan.lower_bound_s <= plan.makespan_s
    require_plain_training(name, plan)


@pytest.mark.parametrize("granularity", ["fused", "module"])
@pytest.mark.parametrize("name", ["U-net", pytest.param("GPT-like", marks=_NEEDS_TRANSFORMERS)])
def test_a_plan_of_coarse_ops_leads_back_to_those_that_run(name: str, granularity: str, tmp_path: Path) -> None:
    coarse = coarsen(graph_of(name), granularity)
    assert len(coarse.ops) < len(graph_of(name).ops)
    random_plan(coarse, seed=len(name)).save(tmp_path / "plan.json")
    require_plain_training(name, load_plan(tmp_path / "plan.json"))


@_NEEDS_TRANSFORMERS
def test_outputs_of_a_model_of_transformers_are_nested_as_its_own_with_other_batches_too() -> None:
    def without_labels() -> tuple[Job, nn.Module]:
        job = build("BERT-like")
        kwargs = {key: value for key, value in job.kwargs.items() if key != "labels"}
        return replace(job, kwargs=kwargs, mode="infer"), job.module.eval()

    (job, _), (_, plain) = without_labels(), without_labels()
    half = {key: value[:1] for key, value in job.kwargs.items()}
    with placed_at_random(job) as placed, torch.no_grad():
        for kwargs in (job.kwargs, half):
            ours, theirs = placed(**kwargs), plain(**kwargs)
            assert type(ours) is type(theirs)
            assert pytree.tree_structure(ours) == pytree.tree_structure(theirs)
            torch.testing.assert_close(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), **TOLERANCE)
