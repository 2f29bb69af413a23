"""A small convolutional network with parallel branches: the least that model parallelism can speed up."""

import torch
from torch import nn

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import classifier_job, dropout_or_none
from dlplacer.models.inception import BasicConv2d

STEM_CHANNELS = 16
BRANCH_CHANNELS = 48


class Branches(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, count: int = 3, classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = BasicConv2d(3, STEM_CHANNELS, (3, 3))
        self.branches = nn.ModuleList(BasicConv2d(STEM_CHANNELS, BRANCH_CHANNELS, (3, 3)) for _ in range(count))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = dropout_or_none(dropout)
        self.fc = nn.Linear(count * BRANCH_CHANNELS, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stem = self.stem(images)
        joined = torch.cat([branch(stem) for branch in self.branches], 1)
        logits: torch.Tensor = self.fc(self.dropout(torch.flatten(self.pool(joined), 1)))
        return logits


def branches(
    batch_size: int = 32,
    image_size: int = 32,
    *,
    count: int = 3,
    classes: int = 10,
    dropout: float = 0.0,
    seed: int = 0,
) -> Job:
    """A training step of `Branches`: `count` of them, all of the same cost; `dropout` is before the last layer."""
    return classifier_job(lambda: Branches(count, classes, dropout), batch_size, image_size, classes, seed)
