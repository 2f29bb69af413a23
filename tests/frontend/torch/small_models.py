"""Small jobs, each with something that capture or the runtime must get right. The same seed gives the same job."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job, capture
from dlplacer.models import branches, mlp

CLASSES = 5


class Calls(nn.Module):
    """Calls a function with itself and its inputs; parts become sub-modules, parameters, buffers or constants."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class Counting(nn.Module):
    """Counts its calls in an integer buffer and keeps a running mean that checkpoints leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, CLASSES)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.fc(x - self.mean) + self.calls


class CountingUp(nn.Module):
    """Counts its calls with ``+=``, which sets the attribute to the tensor that it is, and writes a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, CLASSES)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.detach().mean(0), 0.1)
        self.mean[0] = 1.0
        return self.fc(x - self.mean) * self.calls


class Tripled(torch.autograd.Function):
    """Clamps, with a backward pass of its own that reads forward values and triples the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 3 * (x.abs() < 0.5)


class InPlace(nn.Module):
    """In-place ops on activations: relu_, add_ and assignment to a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu_()
        shifted = hidden.clone()
        shifted.add_(x)
        shifted[:, 0] = 0
        return self.last(shifted)


class TiedLate(nn.Module):
    """An output layer that shares the embedding's weight and is used first; a sub-module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 8)
        self.head = nn.Linear(8, CLASSES, bias=False)
        self.head.weight = self.embedding.weight
        self.body = nn.Linear(8, 8)
        self.again = self.body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.body(x))) + self.embedding.weight.mean()


class Attention(nn.Module):
    """Layer norm, packed query-key-value projection, scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.packed, self.last = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.packed(self.norm(x)).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.last(mixed.transpose(1, 2).flatten(2).mean(1))


class Keywords(nn.Module):
    """Keyword arguments, nested inputs, numbers, flags and None."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, pair: Any, factor: int, *, scale: torch.Tensor, extra: Any, flag: bool, none: Any) -> Any:
        x = pair[0] * factor + pair[1]["inner"]
        x = x * scale + extra["list"][0]
        return self.fc(x if flag else x * 3)


def _labels(count: int = 4) -> torch.Tensor:
    return torch.randint(CLASSES, (count,))


def _vectors() -> Job:
    return Job(nn.Linear(8, CLASSES), (torch.randn(4, 8),), (_labels(),), functional.cross_entropy)


def _of(module: nn.Module, *args: torch.Tensor, loss: Any = functional.cross_entropy, **fields: Any) -> Job:
    return Job(module, args or (torch.randn(4, 8),), (_labels(),), loss, **fields)


def convolutions() -> Job:
    """Strided, grouped and pointwise convolutions, batch norm, pooling, concatenation."""
    return _of(
        Calls(
            lambda self, x: self.fc(self.two(torch.cat([self.a(self.one(x)), self.b(self.one(x))], 1)).mean((2, 3))),
            one=nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
            ),
            a=nn.Conv2d(8, 8, 3, padding=1, groups=4),
            b=nn.Conv2d(8, 8, 1),
            two=nn.BatchNorm2d(16),
            fc=nn.Linear(16, CLASSES),
        ),
        torch.randn(4, 3, 16, 16),
    )


def sub_part_in_evaluation_mode() -> Job:
    """Batch norm and dropout frozen in evaluation mode inside a training module."""
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    module[1].eval()
    module[2].eval()
    return _of(module)


def frozen_part() -> Job:
    """Parameters without gradients, a parameter that nothing reads."""
    module = Calls(
        lambda self, x: self.b(self.a(x)), a=nn.Linear(8, 8), b=nn.Linear(8, CLASSES), unused=nn.Linear(3, 3)
    )
    module.a.requires_grad_(False)
    return _of(module)


def constant_attribute() -> Job:
    """A tensor in a plain attribute, an integer buffer that indexes."""
    module = Calls(
        lambda self, x: self.fc((x + self.shift)[:, self.order]), fc=nn.Linear(8, CLASSES), shift=torch.randn(8)
    )
    module.register_buffer("order", torch.arange(7, -1, -1))
    return _of(module)


def shared_gradient() -> Job:
    """Two parameters whose gradients are one tensor."""
    parts = {name: nn.Parameter(torch.randn(4, 8)) for name in ("a", "b")}
    return _of(Calls(lambda self, x: self.fc(x + self.a + self.b), fc=nn.Linear(8, CLASSES), **parts))


def views() -> Job:
    """Expand, slices, split, unbind, topk."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = self.row.expand(4, 8)[:, :4].cos()
        left, right = x.sin().split(4, 1)
        stacked = torch.stack(x.unbind(0))
        values, order = x.topk(8, 1)
        return self.fc(torch.cat([wide + left, right], 1) + stacked + values + order) + x[:2].exp().sum()

    return _of(Calls(forward, fc=nn.Linear(8, CLASSES), row=nn.Parameter(torch.randn(1, 8))))


def keywords() -> Job:
    """See `Keywords`."""
    kwargs = {"scale": torch.randn(8), "extra": {"list": [torch.randn(8)], "number": 3}, "flag": False, "none": None}
    args = ((torch.randn(4, 8), {"inner": torch.randn(4, 8), "none": None}), 3)
    return Job(Keywords(), args, (_labels(),), functional.cross_entropy, kwargs=kwargs)


def embedding() -> Job:
    """Integer inputs."""
    module = nn.Sequential(nn.Embedding(10, 8, padding_idx=0), nn.Flatten(), nn.Linear(48, CLASSES))
    return _of(module, torch.randint(10, (4, 6)))


def recurrent() -> Job:
    """Two LSTM layers."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        outputs, (_, cells) = self.rnn(x)
        return self.fc(outputs[:, -1] + cells[0])

    rnn = nn.LSTM(8, 6, num_layers=2, batch_first=True)
    return _of(Calls(forward, rnn=rnn, fc=nn.Linear(6, CLASSES)), torch.randn(4, 3, 8))


def weighted_loss() -> Job:
    """A loss that is a module with a buffer."""
    return _of(nn.Linear(8, CLASSES), loss=nn.CrossEntropyLoss(weight=torch.rand(CLASSES)))


def loss_inside() -> Job:
    """A module that takes the targets and returns the loss."""
    return _of(Calls(lambda self, x, y: functional.cross_entropy(self.fc(x), y), fc=nn.Linear(8, CLASSES)), loss=None)


def mixed_precision() -> Job:
    """Autocast to bfloat16."""
    return _of(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)), autocast="bfloat16")


def transformer() -> Job:
    """torch's own encoder layer."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return _of(
        Calls(lambda self, x: self.fc(self.layer(x).mean(1)), layer=layer, fc=nn.Linear(8, CLASSES)),
        torch.randn(4, 6, 8),
    )


def custom_function() -> Job:
    """See `Tripled`."""
    return _of(Calls(lambda self, x: self.b(Tripled.apply(self.a(x))), a=nn.Linear(8, 8), b=nn.Linear(8, CLASSES)))


def dropout() -> Job:
    """Dropout between linear layers."""
    return _of(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)))


BUILDERS: dict[str, Callable[[], Job]] = {
    "attention": lambda: _of(Attention(), torch.randn(4, 6, 8)),
    "branches": partial(branches, batch_size=4, image_size=12, count=2),
    "constant attribute": constant_attribute,
    "convolutions": convolutions,
    "counting": lambda: _of(Counting()),
    "counting up": lambda: _of(CountingUp()),
    "custom function": custom_function,
    "embedding": embedding,
    "frozen part": frozen_part,
    "in place": lambda: _of(InPlace()),
    "keywords": keywords,
    "linear": _vectors,
    "loss inside": loss_inside,
    "mixed precision": mixed_precision,
    "recurrent": recurrent,
    "shared gradient": shared_gradient,
    "sub-part in evaluation mode": sub_part_in_evaluation_mode,
    "tied": partial(mlp, batch_size=4, features=8, width=16, depth=3, tied=True),
    "tied late": lambda: _of(TiedLate()),
    "transformer": transformer,
    "views": views,
    "weighted loss": weighted_loss,
}
"""Name → builder of a training job without random ops."""


def build(name: str, seed: int = 0) -> Job:
    """The job of this name; weights and data depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILDERS[name]()


@cache
def graph_of(name: str) -> OpGraph:
    """The captured graph of the job of this name; it is the same for all seeds."""
    return capture(build(name))


def build_with(function: Callable[[], Job], seed: int = 0) -> Job:
    """A job of a builder that is not among `BUILDERS`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return function()
