"""FLOPs against torch's counter where that is right, against formulas written down here where it is not."""

from typing import Any

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from dlplacer.frontend import Job, capture
from dlplacer.frontend.torch.nodes import tensor_bytes


def counted(job: Job) -> int:
    """FLOPs of forward and backward according to torch."""
    with FlopCounterMode(display=False) as counter:
        loss = job.module(*job.args)
        if job.mode == "train":
            job.loss(loss, *job.targets).backward()  # type: ignore[misc]
    return int(counter.get_total_flops())


def summed(job: Job, **options: bool) -> int:
    return int(sum(op.flops for op in capture(job, **options).ops))


def training(module: nn.Module, *args: torch.Tensor) -> Job:
    return Job(module, args, (), lambda output: output.pow(2).sum())


@pytest.mark.parametrize("name", ["linear", "branches", "sub-part in evaluation mode", "tied", "embedding"])
def test_products_and_convolutions_agree_with_torchs_counter(name: str) -> None:
    job = build(name)
    assert sum(op.flops for op in graph_of(name).ops) == counted(job)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"bias": False}])
def test_convolutions_agree_with_torchs_counter(options: dict[str, Any], whole: bool) -> None:
    job = training(nn.Sequential(nn.Conv2d(3, 6, 3, **options), nn.Conv2d(6, 4, 1)), torch.randn(2, 3, 9, 9))
    assert summed(job, whole_backward=whole) == counted(job)


# mv: 3 rows of 4; dot: 3 elements; addbmm: 2 products of 3x4 by 4x5. Two FLOPs for each multiply-add.
@pytest.mark.parametrize(
    ("call", "shapes", "flops"),
    [
        (torch.mv, [(3, 4), (4,)], 2 * 3 * 4),
        (torch.dot, [(3,), (3,)], 2 * 3),
        (torch.addmv, [(3,), (3, 4), (4,)], 2 * 3 * 4),
        (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
    ],
)
def test_products_that_torchs_counter_does_not_know(call: Any, shapes: list[tuple[int, ...]], flops: int) -> None:
    class Product(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return call(*tensors)

    assert summed(Job(Product(), tuple(torch.randn(shape) for shape in shapes), mode="infer")) == flops


@pytest.mark.parametrize(
    ("tensor", "size_bytes"),
    [
        (torch.zeros(4, 8), 128),
        (torch.zeros(4, 8, dtype=torch.int64)[:, ::2], 128),
        (torch.zeros(1, 8).expand(4, 8), 32),
        (torch.zeros(()).expand(3, 4), 4),
        (torch.zeros(0, 3), 0),
        (torch.zeros((), dtype=torch.bool), 1),
    ],
)
def test_bytes_that_travel(tensor: torch.Tensor, size_bytes: int) -> None:
    assert tensor_bytes(tensor) == size_bytes


# Rows of 8 float32 are 32 bytes, an index is 8. Twelve indices: 12 rows in and out; bags of 4 add them up to 3 rows.
@pytest.mark.parametrize(
    ("call", "size_bytes"),
    [
        (lambda table, places: functional.embedding(places, table), 2 * 12 * 32 + 12 * 8),
        (lambda table, places: table[places], 2 * 12 * 32 + 12 * 8),
        (lambda table, places: table.index_select(0, places), 2 * 12 * 32 + 12 * 8),
        (lambda table, places: table.gather(0, places[:, None]), 2 * 12 * 4 + 12 * 8),
        (lambda table, places: torch.zeros_like(table), 1000 * 32),
        (lambda table, places: table * table, 2 * 1000 * 32),
    ],
    ids=["embedding", "index", "index_select", "gather", "zeros_like", "square"],
)
def test_a_lookup_reads_the_rows_that_it_returns(call: Any, size_bytes: int) -> None:
    class Lookup(nn.Module):
        def forward(self, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            return call(table, places)

    graph = capture(Job(Lookup(), (torch.randn(1000, 8), torch.arange(12)), mode="infer"))
    (op,) = (op for op in graph.ops if op.kind.startswith("aten."))
    assert op.bytes_accessed == size_bytes
