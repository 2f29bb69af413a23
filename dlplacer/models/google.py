"""GoogLeNet of "Going Deeper with Convolutions" (Szegedy et al. 2014, table 1), without the auxiliary heads."""

import torch
from torch import nn
from torch.nn import functional

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import CLASSES, classifier_job, divided, dropout_or_none, require_image

SMALLEST_IMAGE = 33
BLOCKS = {
    "inception3a": (64, 96, 128, 16, 32, 32),
    "inception3b": (128, 128, 192, 32, 96, 64),
    "inception4a": (192, 96, 208, 16, 48, 64),
    "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64),
    "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "inception5a": (256, 160, 320, 32, 128, 128),
    "inception5b": (384, 192, 384, 48, 128, 128),
}
"""Table 1: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj."""
_POOLED_BEFORE = ("inception4a", "inception5a")


class RectifiedConv2d(nn.Module):
    """Convolution with bias that keeps height and width at stride 1, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.conv(images))


class Inception(nn.Module):
    """Figure 2(b): 1x1, 3x3 and 5x5 convolutions and pooling, side by side."""

    def __init__(self, inputs: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        single, reduce3, wide3, reduce5, wide5, projected = channels
        self.branch1 = RectifiedConv2d(inputs, single, 1)
        self.branch2 = nn.Sequential(RectifiedConv2d(inputs, reduce3, 1), RectifiedConv2d(reduce3, wide3, 3))
        self.branch3 = nn.Sequential(RectifiedConv2d(inputs, reduce5, 1), RectifiedConv2d(reduce5, wide5, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), RectifiedConv2d(inputs, projected, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(images) for branch in branches], 1)


class GoogLeNet(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, classes: int = CLASSES, dropout: float = 0.0, narrow: int = 1) -> None:
        super().__init__()
        first, second = divided("googlenet", 64, narrow), divided("googlenet", 192, narrow)
        self.conv1 = RectifiedConv2d(3, first, 7, stride=2)
        self.conv2 = RectifiedConv2d(first, first, 1)
        self.conv3 = RectifiedConv2d(first, second, 3)
        inputs = second
        for name, counts in BLOCKS.items():
            channels = tuple(divided("googlenet", count, narrow) for count in counts)
            self.add_module(name, Inception(inputs, channels))
            inputs = channels[0] + channels[2] + channels[4] + channels[5]
        self.dropout = dropout_or_none(dropout)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = functional.local_response_norm(_halve(self.conv1(images)), 5)
        grid = _halve(functional.local_response_norm(self.conv3(self.conv2(grid)), 5))
        for name in BLOCKS:
            grid = self.get_submodule(name)(_halve(grid) if name in _POOLED_BEFORE else grid)
        logits: torch.Tensor = self.fc(self.dropout(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1)))
        return logits


def googlenet(
    batch_size: int = 32,
    image_size: int = 224,
    *,
    classes: int = CLASSES,
    dropout: float = 0.0,
    narrow: int = 1,
    seed: int = 0,
) -> Job:
    """A training step of GoogLeNet; `dropout` is before the last layer (originally 0.4); `narrow` is 1, 2, 4 or 8."""
    require_image("googlenet", image_size, SMALLEST_IMAGE, 224)
    return classifier_job(lambda: GoogLeNet(classes, dropout, narrow), batch_size, image_size, classes, seed)


def _halve(images: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(images, 3, stride=2, ceil_mode=True)
