"""A small multilayer perceptron, with or without tied hidden layers."""

import torch
from torch import nn
from torch.nn import functional

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import seeded


class Perceptron(nn.Module):
    """Logits, shape (N, classes), for inputs of shape (N, features).

    Between the first layer and the last are `depth` from `width` to `width`; `tied` ones share weight and bias.
    """

    def __init__(self, features: int, width: int, depth: int, classes: int, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, classes)
        if tied:
            for layer in self.hidden[1:]:
                layer.weight, layer.bias = self.hidden[0].weight, self.hidden[0].bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.first(inputs))
        for layer in self.hidden:
            features = functional.relu(layer(features))
        logits: torch.Tensor = self.last(features)
        return logits


def mlp(
    batch_size: int = 32,
    features: int = 64,
    *,
    width: int = 128,
    depth: int = 2,
    classes: int = 10,
    tied: bool = False,
    seed: int = 0,
) -> Job:
    """A training step of `Perceptron`."""
    with seeded(seed):
        network = Perceptron(features, width, depth, classes, tied)
        inputs = torch.randn(batch_size, features)
        labels = torch.randint(classes, (batch_size,))
    return Job(network, args=(inputs,), targets=(labels,), loss=functional.cross_entropy, mode="train")
