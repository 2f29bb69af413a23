"""The work of ranks in the tests of the hook: small trainings, and gradients that the codec keeps exactly."""

import hashlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlplacer.data_parallel import TernaryState, ternary_hook

STEPS = 8


def network(width: int = 128) -> nn.Module:
    """Two coded weights, a last layer, and biases: many buckets at `bucket_cap_mb` 0.01, one at 25."""
    layers = [nn.Linear(40, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5)]
    return nn.Sequential(*layers)


def wrapped(module: nn.Module, state: object, **options: Any) -> DistributedDataParallel:
    ddp = DistributedDataParallel(module, **options)
    ddp.register_comm_hook(state, ternary_hook)
    return ddp


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 40, generator=draw)
    return inputs, inputs[:, :5].argmax(1)


def train(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, steps: Sequence[int]
) -> tuple[list[float], str]:
    """Losses, and a digest of all parameters."""
    losses = []
    for step in steps:
        inputs, targets = batch(step, dist.get_rank())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, digest(ddp.module)


def digest(module: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest()


def trained(steps: int = STEPS, cap_mb: float = 25.0, **choices: Any) -> tuple[list[float], str, TernaryState]:
    """A training from the same start on every call."""
    torch.manual_seed(0)
    state = TernaryState(**choices)
    ddp = wrapped(network(), state, bucket_cap_mb=cap_mb)
    losses, found = train(ddp, torch.optim.SGD(ddp.parameters(), 0.5), range(steps))
    return losses, found, state


def resumed(at: int, total: int, loaded: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """Parameters after a run that was ended at a step and taken up by new objects, through a file of tensors."""
    torch.manual_seed(0)
    first = TernaryState(seed=5)
    ddp = wrapped(network(), first)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    train(ddp, optimizer, range(at))
    file = io.BytesIO()
    torch.save({"model": ddp.module.state_dict(), "hook": first.state_dict(), "sgd": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second, module = TernaryState(), network()
    module.load_state_dict(saved["model"])
    second.load_state_dict(saved["hook"] if loaded is None else loaded)
    ddp = wrapped(module, second)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    optimizer.load_state_dict(saved["sgd"])
    return train(ddp, optimizer, range(at, total))[1], second.state_dict()


class Signs(nn.Module):
    """Gradients of one magnitude in each tensor, which the codec keeps exactly: each is ± ``scale`` of its rank."""

    def __init__(self, dtypes: Sequence[torch.dtype] = (torch.float32,), unused: bool = False) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(70, 80, dtype=dtype) for dtype in dtypes])
        self.skipped = nn.Parameter(torch.zeros(90, 60)) if unused else None
        self.last = nn.Linear(3, 2)

    def forward(self, scale: float, use_skipped: bool = False) -> torch.Tensor:
        total = self.last.weight.sum() * scale + self.last.bias.sum()
        for index, weight in enumerate(self.weights):
            total = total + scale * (signs(weight, index, dist.get_rank()) * weight).sum().float()
        if use_skipped and self.skipped is not None:
            total = total + scale * (signs(self.skipped, 99, dist.get_rank()) * self.skipped).sum()
        return total


def signs(like: torch.Tensor, index: int, rank: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(10 * index + rank)
    return torch.randint(0, 2, like.shape, generator=draw).to(like.dtype) * 2 - 1


def mean_signs(like: torch.Tensor, index: int, scales: Sequence[float]) -> torch.Tensor:
    """The exact mean gradient of a weight of `Signs`."""
    total = sum(scale * signs(like, index, rank).double() for rank, scale in enumerate(scales))
    return (total / len(scales)).to(like.dtype)  # type: ignore[union-attr]


def exact_after(module: Signs, scales: Sequence[float], options: dict[str, Any], choices: dict[str, Any]) -> list[bool]:
    """True where three steps give the exact mean gradients, for weights and for the last layer."""
    ddp = wrapped(module, TernaryState(**choices), **options)
    right = []
    for _ in range(3):
        ddp.zero_grad()
        ddp(scales[dist.get_rank()]).backward()
        right += [
            torch.allclose(weight.grad, mean_signs(weight, index, scales), rtol=2e-7, atol=0)
            for index, weight in enumerate(module.weights)
        ]
        right.append(torch.allclose(module.last.weight.grad, torch.full((2, 3), sum(scales) / len(scales))))
    return right


def told(work: Callable[[], object]) -> str:
    """The text of an error."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
