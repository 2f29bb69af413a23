"""ResNet-50 of "Deep Residual Learning for Image Recognition" (He et al. 2015, table 1), stride in the 3x3 convolution.

Module names, and with them state dicts, are those of torchvision.
"""

import torch
from torch import nn
from torch.nn import functional

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import CLASSES, classifier_job, divided, require_image

SMALLEST_IMAGE = 33
EXPANSION = 4
BLOCKS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut: the identity, or a projection where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        return functional.relu(hidden + (images if self.downsample is None else self.downsample(images)))


class ResNet50(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, classes: int = CLASSES, narrow: int = 1) -> None:
        super().__init__()
        width = divided("resnet50", 64, narrow)
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, count in enumerate(BLOCKS):
            blocks = []
            for position in range(count):
                blocks.append(Bottleneck(inputs, width, stride=2 if stage and not position else 1))
                inputs = EXPANSION * width
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            width *= 2
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        for stage in range(len(BLOCKS)):
            grid = self.get_submodule(f"layer{stage + 1}")(grid)
        logits: torch.Tensor = self.fc(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1))
        return logits


def resnet50(
    batch_size: int = 32, image_size: int = 224, *, classes: int = CLASSES, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of ResNet-50; `narrow` is 1, 2, 4, …, 64."""
    require_image("resnet50", image_size, SMALLEST_IMAGE, 224)
    return classifier_job(lambda: ResNet50(classes, narrow), batch_size, image_size, classes, seed)
