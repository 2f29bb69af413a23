"""Small models of many kinds for the tests of data parallelism."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from dlplacer import models
from dlplacer.frontend import Job


class Gpt(nn.Module):
    """A decoder with learned positions and a head tied to the embedding."""

    def __init__(self, words: int = 64, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.zeros(1, 8, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        states = self.words(text) + self.positions
        for layer in self.layers:
            states = layer(states)
        return self.head(states).flatten(0, 1)


class Unused(nn.Module):
    """Its second layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.third(functional.relu(self.first(inputs)))


class MixedDtypes(nn.Module):
    """Matrices in bfloat16, norms in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, dtype=torch.bfloat16) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            inputs = norm(layer(inputs.to(torch.bfloat16)).float())
        return inputs


class Siamese(nn.Module):
    """One trunk for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(32, 8)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.trunk(left), self.trunk(right)], 1))


def _frozen() -> Job:
    job = models.mlp(8, depth=3)
    job.module.hidden[0].requires_grad_(False)
    return job


def _classifier(module: nn.Module, *inputs: torch.Tensor, classes: int) -> Job:
    return Job(module, inputs, (torch.randint(classes, (len(inputs[0]),)),), functional.cross_entropy)


def _gpt() -> Job:
    text = torch.randint(64, (4, 8))

    def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, wanted.flatten())

    return Job(Gpt(), (text,), (torch.randint(64, (4, 8)),), loss)


ZOO: dict[str, Callable[[], Job]] = {
    "tied": lambda: models.mlp(8, depth=3, tied=True),
    "branches": lambda: models.branches(4, image_size=8),
    "gnmt": lambda: models.gnmt(4, length=3, vocabulary=64, hidden=16, layers=2),
    "gpt": _gpt,
    "unused": lambda: _classifier(Unused(), torch.randn(4, 16), classes=16),
    "mixed dtypes": lambda: _classifier(MixedDtypes(), torch.randn(4, 32), classes=32),
    "siamese": lambda: _classifier(Siamese(), torch.randn(4, 16), torch.randn(4, 16), classes=8),
    "frozen": _frozen,
}
