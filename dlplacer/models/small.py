"""Small networks: the least that model parallelism can speed up, and a perceptron with or without tied layers."""

import torch
from torch import nn
from torch.nn import functional

from dlplacer.frontend.torch.job import Job
from dlplacer.models.classifiers import BasicConv2d, classifier_job, seeded

STEM_CHANNELS = 16
BRANCH_CHANNELS = 48
CLASSES = 10


class Branches(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.stem = BasicConv2d(3, STEM_CHANNELS, (3, 3))
        self.branches = nn.ModuleList(BasicConv2d(STEM_CHANNELS, BRANCH_CHANNELS, (3, 3)) for _ in range(count))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(count * BRANCH_CHANNELS, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stem = self.stem(images)
        joined = torch.cat([branch(stem) for branch in self.branches], 1)
        logits: torch.Tensor = self.fc(torch.flatten(self.pool(joined), 1))
        return logits


def branches(batch_size: int = 32, image_size: int = 32, *, count: int = 3, seed: int = 0) -> Job:
    """A training step of `Branches`: `count` of them, all of the same cost."""
    return classifier_job(lambda: Branches(count), batch_size, image_size, CLASSES, seed)


class Perceptron(nn.Module):
    """Logits, shape (N, classes), for inputs of shape (N, features).

    Between the first layer and the last are `depth` from `width` to `width`; `tied` ones share weight and bias.
    """

    def __init__(self, features: int, width: int, depth: int, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, CLASSES)
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
    tied: bool = False,
    seed: int = 0,
) -> Job:
    """A training step of `Perceptron`."""
    with seeded(seed):
        network = Perceptron(features, width, depth, tied)
        inputs = torch.randn(batch_size, features)
        labels = torch.randint(CLASSES, (batch_size,))
    return Job(network, args=(inputs,), targets=(labels,), loss=functional.cross_entropy, mode="train")
