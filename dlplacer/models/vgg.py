"""VGG-19 of "Very Deep Convolutional Networks for Large-Scale Image Recognition" (Simonyan and Zisserman, table 1, E).

Module names, and with them state dicts, are those of torchvision.
"""

from collections.abc import Iterator

import torch
from torch import nn

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import CLASSES, classifier_job, divided, dropout_or_none, require_image

SMALLEST_IMAGE = 32
GRID = 7
STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and number of 3x3 convolutions before each pooling."""


class Vgg19(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, classes: int = CLASSES, dropout: float = 0.0, narrow: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(*_features(narrow))
        self.avgpool = nn.AdaptiveAvgPool2d(GRID)
        channels, wide = divided("vgg19", STAGES[-1][0], narrow), divided("vgg19", 4096, narrow)
        self.classifier = nn.Sequential(
            nn.Linear(channels * GRID * GRID, wide),
            nn.ReLU(inplace=True),
            dropout_or_none(dropout),
            nn.Linear(wide, wide),
            nn.ReLU(inplace=True),
            dropout_or_none(dropout),
            nn.Linear(wide, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
        return logits


def vgg19(
    batch_size: int = 32,
    image_size: int = 224,
    *,
    classes: int = CLASSES,
    dropout: float = 0.0,
    narrow: int = 1,
    seed: int = 0,
) -> Job:
    """A training step of VGG-19; `dropout` is after both wide layers (originally 0.5); `narrow` is 1, 2, 4, …, 64."""
    require_image("vgg19", image_size, SMALLEST_IMAGE, 224)
    return classifier_job(lambda: Vgg19(classes, dropout, narrow), batch_size, image_size, classes, seed)


def _features(narrow: int) -> Iterator[nn.Module]:
    inputs = 3
    for channels, count in STAGES:
        outputs = divided("vgg19", channels, narrow)
        for _ in range(count):
            yield nn.Conv2d(inputs, outputs, 3, padding=1)
            yield nn.ReLU(inplace=True)
            inputs = outputs
        yield nn.MaxPool2d(2)
