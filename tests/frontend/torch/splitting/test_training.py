"""Training steps with split ops against plain PyTorch, from recorded names."""

import copy
from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_plans import needs_two_cores, placed_at_random, require_same_step
from torch import nn
from torch.nn import functional

from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.frontend.torch.splitting import OpSplit
from dlplacer.measure.splitting import TracedStep, splits_of

pytestmark = needs_two_cores
TOLERANCE = 1e-5


class Net(nn.Module):
    """Convolutions with batch norm, pooling, two branches, and a head."""

    def __init__(self, channels: int = 8, kernel: int = 3, stride: int = 1, pool: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, kernel, stride, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.left = nn.Conv2d(channels, 5, 3, padding=1)
        self.right = nn.Conv2d(channels, 4, 1)
        self.last = nn.BatchNorm2d(9)
        self.head = nn.Linear(9, 5)
        self.pool = pool

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm(self.stem(images)))
        hidden = functional.max_pool2d(hidden, 3, 2) if self.pool else functional.avg_pool2d(hidden, 3, 1, 1)
        joined = torch.cat([self.left(hidden), functional.relu(self.right(hidden))], 1)
        return self.head(self.last(joined).mean((2, 3)))


def job_of(net: nn.Module, batch: int = 6, size: int = 12) -> Job:
    generator = torch.Generator().manual_seed(batch)
    images = torch.randn((batch, 3, size, size), generator=generator)
    labels = torch.randint(0, 5, (batch,), generator=generator)
    return Job(net, args=(images,), targets=(labels,), loss=functional.cross_entropy, mode="train")


def require_equal(job: Job, splits: Sequence[OpSplit], cores: int = 1) -> OpGraph:
    """The graph with splits, of which a step as planned, applied by name, equals plain PyTorch's."""
    mine, plain = copy.deepcopy(job), copy.deepcopy(job.module)
    graph = capture_job(mine, [*default_rewrites(), *map(str, splits)]).graph
    with placed_at_random(mine, cores, graph=graph) as placed:
        require_same_step(placed, mine, plain, tolerance=TOLERANCE)
        for (name, ours), other in zip(placed.named_buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(ours, other, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
    return graph


def test_a_step_with_everything_split_equals_plain_pytorch() -> None:
    torch.manual_seed(0)
    job = job_of(Net())
    step = TracedStep.of(job)
    splits = splits_of(step.nodes, set(step.nodes), 2)
    kinds = {step.nodes[split.op].target.overloadpacket.__name__ for split in splits}
    assert {"convolution", "convolution_backward", "max_pool2d_with_indices", "relu", "addmm", "mm", "cat"} <= kinds
    graph = require_equal(job, splits, cores=2)
    whole = step.captured().graph
    parts = [op for op in graph.ops if op.origin]
    assert {op.origin[0] for op in parts} == {split.op for split in splits}
    assert all(op.origin[0] in whole.index for op in parts)
    assert graph.capture is not None
    assert graph.capture["rewrites"][-len(splits) :] == [str(split) for split in splits]


def test_a_plan_with_splits_evaluates_and_takes_other_batches() -> None:
    torch.manual_seed(0)
    job, other = job_of(Net()), job_of(Net(), batch=3)
    graph = capture_job(job, [*default_rewrites(), "split:convolution:batch:2", "split:relu:channel:2"]).graph
    theirs = copy.deepcopy(job.module)
    with placed_at_random(job, 1, graph=graph) as placed:
        loss = placed.step(*other.args, *other.targets)
        expected = functional.cross_entropy(theirs(*other.args), *other.targets)
        torch.testing.assert_close(loss, expected.detach(), rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(placed.eval()(*job.args), theirs.eval()(*job.args), rtol=TOLERANCE, atol=TOLERANCE)


@settings(max_examples=2)
@given(data=st.data())
def test_random_nets_with_random_splits_equal_plain_pytorch(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 100), label="seed"))
    kernel, stride = data.draw(st.sampled_from([(3, 1), (3, 2), (1, 1), (5, 1)]), label="stem")
    net = Net(data.draw(st.integers(3, 9), label="channels"), kernel, stride, data.draw(st.booleans(), label="pool"))
    job = job_of(net, data.draw(st.integers(2, 5), label="batch"), 14)
    step = TracedStep.of(job)
    ops = data.draw(st.sets(st.sampled_from(sorted(step.nodes))), label="ops")
    splits = splits_of(step.nodes, ops, data.draw(st.integers(2, 3), label="parts"))
    graph = require_equal(job, splits)
    assert {op.origin[0] for op in graph.ops if op.origin} == {split.op for split in splits}
