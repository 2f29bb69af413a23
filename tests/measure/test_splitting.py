"""Which splits are chosen, under times that the tests give."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job
from dlplacer.frontend.torch.splitting import OpSplit
from dlplacer.measure.splitting import (
    SplitChoice,
    TracedStep,
    choose_splits,
    place_with_splits,
    splits_of,
)

TYPE = "cpu-core"


class Stem(nn.Module):
    """A chain: convolution, norm, pooling, convolution, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.max_pool2d(functional.relu(self.norm(self.first(images))), 2)
        return self.second(hidden).mean((1, 2, 3)).sum()


@pytest.fixture(scope="module")
def step() -> TracedStep:
    torch.manual_seed(0)
    return TracedStep.of(Job(Stem(), args=(torch.randn(6, 3, 16, 16),), mode="train"))


def timed(step: TracedStep, times: Mapping[str, float], rest: float = 1e-5) -> OpGraph:
    graph = step.captured().graph
    ops = (replace(op, time_s={TYPE: times.get(op.id, rest if op.attrs else 0.0)}) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def chosen(step: TracedStep, whole: OpGraph) -> SplitChoice:
    return choose_splits(step, dp.place(whole, dp.load_topology("cpu-2core"), method="list").plan)


def test_the_op_that_dominates_is_split(step: TracedStep) -> None:
    # 0.1 s of 0.1 s in one convolution: halves of 0.05 s each and 3 % more for the parts
    choice = chosen(step, timed(step, {"convolution": 0.1}))
    assert OpSplit("convolution", "batch", 2) in choice.splits
    assert choice.whole_s == pytest.approx(0.1, rel=0.01)
    assert choice.split_s == pytest.approx(0.05 * 1.03, rel=0.02)
    assert choice.graph.index.keys() >= {"convolution_part0", "convolution_part1"}


def test_an_op_with_another_beside_it_stays_whole(step: TracedStep) -> None:
    # The addition keeps the other device busy for as long as the convolution takes.
    whole = timed(step, {"convolution": 0.1, "add": 0.1})
    assert chosen(step, whole).splits == ()


def test_parts_follow_their_producers_axis(step: TracedStep) -> None:
    norm = "_native_batch_norm_legit_functional"
    chain = {"convolution", norm, "relu", "max_pool2d_with_indices", "convolution_1"}
    axes = {split.op: split.axis for split in splits_of(step.nodes, chain, 2)}
    assert axes == {
        "convolution": "batch",
        norm: "channel",
        "relu": "channel",
        "max_pool2d_with_indices": "channel",
        "convolution_1": "batch",
    }


def test_a_traced_step_is_not_changed_by_rewrites(step: TracedStep) -> None:
    before = step.captured().graph
    step.captured([OpSplit("convolution", "batch", 2)])
    assert step.captured().graph == before


def test_the_front_door_gives_both_plans(step: TracedStep) -> None:
    whole = timed(step, {"convolution": 0.1, "convolution_1": 0.05})
    result = place_with_splits(step.job, dp.load_topology("cpu-2core"), graph=whole, method="list", time_limit_s=120)
    assert {split.op for split in result.splits} >= {"convolution", "convolution_1"}
    assert result.gain == result.whole.plan.makespan_s / result.split.plan.makespan_s
    assert result.gain > 1.6
    assert result.speedup is not None
    assert 1.6 < result.speedup <= 2.0
    dp.check_plan(result.split.plan)


def test_a_single_device_splits_nothing(step: TracedStep) -> None:
    alone = dp.Topology(dp.load_topology("cpu-2core").devices[:1])
    result = place_with_splits(
        step.job, alone, graph=timed(step, {"convolution": 0.1}), method="list", time_limit_s=120
    )
    assert result.splits == ()
    assert result.split is result.whole
