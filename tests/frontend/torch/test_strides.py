"""Strides of captured results against those of torch's kernels: views and kernels are traced for the captured ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend.torch.op_by_op import require_plain_step
from torch import nn

from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job
from dlplacer.frontend.torch.executable import Instruction, OpCode
from dlplacer.runtime.executor.backends import captured_refusal

Tensor = torch.Tensor
SHAPE = (2, 6, 4, 4)
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "contiguous": (SHAPE, lambda x: x),
    "transposed": ((2, 4, 4, 6), lambda x: x.transpose(1, 3)),
    "channels_last": (SHAPE, lambda x: x.contiguous(memory_format=torch.channels_last)),
    "expanded": ((2, 6, 4, 1), lambda x: x.expand(SHAPE)),
}
"""Layout → the shape of a tensor, and how it becomes one of `SHAPE` in this layout."""

ELEMENTWISE = (
    *(torch.sigmoid, torch.tanh, torch.square, torch.relu, torch.exp, F.gelu, F.silu, F.mish, F.softsign, F.softplus),
    *(F.elu, F.celu, F.selu, F.logsigmoid, F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6, F.leaky_relu, F.threshold),
    *(F.hardshrink, F.softshrink, F.tanhshrink, torch.clamp, torch.nan_to_num),
)
_ARGUMENTS: dict[Any, tuple[float, ...]] = {F.threshold: (0.1, 0.2), torch.clamp: (-0.5, 0.5)}


def _positive(x: Tensor) -> Tensor:
    return x.square() + 1


OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: torch.log(_positive(x)),
    lambda x: torch.where(x > 0, x, 2 * x),
    lambda x: F.glu(x, 1),
    lambda x: F.softmax(x, 1),
    lambda x: F.log_softmax(x, 1),
    lambda x: F.log_softmax(x, -1),
    lambda x: F.layer_norm(x, (4,)),
    lambda x: F.group_norm(x, 3),
    lambda x: F.group_norm(F.softplus(x.transpose(1, 2)).transpose(1, 2).contiguous(), 2),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.batch_norm(x.flatten(2), None, None, training=True),
    lambda x: F.batch_norm(x, torch.zeros(6), torch.ones(6)),
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.max_pool1d(x.flatten(2), 2),
    lambda x: F.avg_pool2d(x, 2),
    lambda x: F.adaptive_avg_pool2d(x, 3),
    lambda x: F.adaptive_max_pool2d(x, 2),
    lambda x: F.interpolate(x, scale_factor=2.0),
    lambda x: F.pad(x, (1, 1, 1, 1)),
    lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    lambda x: F.pixel_shuffle(x.narrow(1, 0, 4), 2),
    lambda x: F.channel_shuffle(x, 2),
    lambda x: F.conv2d(x, torch.ones(3, 6, 3, 3)),
    lambda x: F.conv_transpose2d(x, torch.ones(6, 3, 2, 2), stride=2),
    lambda x: torch.matmul(x, x.mT),
    lambda x: F.scaled_dot_product_attention(x, x, x),
    lambda x: F.mse_loss(x, x.flip(1), reduction="none"),
    lambda x: F.smooth_l1_loss(x, x.flip(1), reduction="none"),
    lambda x: F.huber_loss(x, x.flip(1), reduction="none"),
    lambda x: F.binary_cross_entropy_with_logits(x, torch.sigmoid(x), reduction="none"),
    lambda x: F.cross_entropy(x, torch.zeros(2, 4, 4, dtype=torch.int64), reduction="none"),
    lambda x: torch.cumsum(x, 1),
    lambda x: torch.logsumexp(x, 1),
    lambda x: x.sum(1),
    lambda x: x.var(1),
    lambda x: torch.roll(x, 1, 2),
    lambda x: x.flip(1),
    lambda x: torch.sort(x, 1)[0],
    lambda x: x.gather(1, torch.zeros(2, 3, 4, 4, dtype=torch.int64)),
    lambda x: x.masked_fill(x > 0, 0.5),
    lambda x: torch.cat([x, x.flip(1)], 1),
    lambda x: torch.linalg.inv(x.mT @ x + 3 * torch.eye(4)),
)
OPS = (*(lambda x, op=op: op(x, *_ARGUMENTS.get(op, ())) for op in ELEMENTWISE), *OTHERS)


class Sweep(nn.Module):
    """Every op on a tensor of a layout, what it returns read transposed, so that gradients arrive transposed too."""

    def __init__(self, layout: str, ops: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.ops = ops
        shape, self.lay_out = LAYOUTS[layout]
        self.weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))

    def forward(self, scale: Tensor) -> Tensor:
        parts = [op(self.lay_out(self.weight * scale)) for op in self.ops]
        return torch.stack([part.transpose(0, -1).reshape(-1).square().mean() for part in parts]).sum()


def differing_in(layout: str, ops: Sequence[Callable[[Tensor], Tensor]]) -> list[str]:
    """What returned other strides than were traced, where the ops on a layout compute what plain PyTorch does."""
    return require_plain_step(Job(Sweep(layout, ops), (torch.full((1,), 0.7),)), rtol=1e-4).differed


@pytest.mark.parametrize(
    ("layout", "ops"),
    [
        ("channels_last", [lambda x: F.glu(x, 1), lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate")]),
        ("expanded", [F.leaky_relu, lambda x: F.threshold(x, 0.1, 0.2)]),
    ],
)
def test_kernels_that_return_other_strides_than_were_traced(layout: str, ops: list[Callable[[Tensor], Tensor]]) -> None:
    assert [kernel for kernel in differing_in(layout, ops) if kernel.endswith("_backward.default")]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_op_in_every_layout_is_read_with_the_strides_that_were_traced(layout: str) -> None:
    assert "aten.mul.Tensor" not in differing_in(layout, OPS)


def test_as_strided_reads_the_elements_that_plain_pytorch_reads() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.batch_norm(self.fc(x).transpose(1, 2), None, None, training=True).transpose(1, 2).contiguous()
            return hidden.as_strided((3, 10, 4), (40, 4, 1)).square().mean((0, 2)).max()

    assert require_plain_step(Job(Windows(), (torch.randn(3, 5, 6),))).gradients["fc.weight"].any()


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "read",
    [
        lambda hidden: hidden.as_strided((3, 5, 8), (40, 8, 1)) * torch.arange(8.0),
        lambda hidden: 2 * hidden if hidden.is_contiguous() else hidden,
        lambda hidden: hidden * hidden.stride(1),
    ],
)
def test_strides_that_code_reads_are_those_of_the_kernel(read: Callable[[Tensor], Tensor], trains: bool) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
            self.norm.train(trains)

        def forward(self, x: Tensor) -> Tensor:
            return read(self.norm(self.fc(x).transpose(1, 2))).square().mean()

    assert require_plain_step(Job(Normed(), (torch.randn(3, 5, 6),))).gradients["norm.weight"].any()


def test_strides_of_shuffled_channels_are_those_of_the_kernel() -> None:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.channel_shuffle(self.conv(x).contiguous(memory_format=torch.channels_last), 2)
            return hidden.as_strided((hidden.numel(),), (1,)).mul(torch.arange(float(hidden.numel()))).square().mean()

    assert require_plain_step(Job(Shuffled(), (torch.randn(2, 2, 3, 3),))).gradients["conv.weight"].any()


# Products and pointwise kernels of contiguous arguments have one layout; results with several are checked.
def test_only_results_with_several_layouts_are_checked() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.conv = nn.Linear(6, 6), nn.Conv2d(2, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            flat = torch.tanh(self.fc(x) * 2)
            return torch.sigmoid(flat.t()).sum() + self.conv(flat.view(2, 2, 3, 3)).sum() + torch.arange(4.0).sum()

    codes = capture_job(Job(Mixed(), (torch.randn(6, 6),), mode="infer"), ()).executable.of_role("call")
    checked = {kind: instruction.strides is not None for code in codes for kind, instruction in kinds(code)}
    assert not checked["aten.addmm"]
    assert not checked["aten.mul"]
    assert not checked["aten.tanh"]
    assert checked["aten.sigmoid"]
    assert checked["aten.convolution"]
    assert "aten.arange" in checked
    assert {captured_refusal(code) for code in codes} == {None}


def kinds(code: OpCode) -> Iterator[tuple[str, Instruction]]:
    for instruction in code.instructions:
        yield str(instruction.target).rpartition(".")[0], instruction
