"""AlexNet in one column, of "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014).

Module names, and with them state dicts, are those of torchvision.
"""

import torch
from torch import nn

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import CLASSES, classifier_job, divided, dropout_or_none, require_image

SMALLEST_IMAGE = 63
GRID = 6


class AlexNet(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, classes: int = CLASSES, dropout: float = 0.0, narrow: int = 1) -> None:
        super().__init__()
        first, second, third, fourth, wide = (divided("alexnet", count, narrow) for count in (64, 192, 384, 256, 4096))
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(third, fourth, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(fourth, fourth, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(GRID)
        self.classifier = nn.Sequential(
            dropout_or_none(dropout),
            nn.Linear(fourth * GRID * GRID, wide),
            nn.ReLU(inplace=True),
            dropout_or_none(dropout),
            nn.Linear(wide, wide),
            nn.ReLU(inplace=True),
            nn.Linear(wide, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
        return logits


def alexnet(
    batch_size: int = 128,
    image_size: int = 224,
    *,
    classes: int = CLASSES,
    dropout: float = 0.0,
    narrow: int = 1,
    seed: int = 0,
) -> Job:
    """A training step of AlexNet; `dropout` is before both wide layers (originally 0.5); `narrow` is 1, 2, 4, …, 64."""
    require_image("alexnet", image_size, SMALLEST_IMAGE, 224)
    return classifier_job(lambda: AlexNet(classes, dropout, narrow), batch_size, image_size, classes, seed)
