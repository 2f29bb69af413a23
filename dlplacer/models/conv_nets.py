"""AlexNet, VGG-19, GoogLeNet and ResNet-50, which papers compare with: a training step of each, on random images."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job
from dlplacer.models.classifiers import CLASSES, classifier_job


class ConvolutionChain(nn.Module):
    """Convolutions and poolings in a row, pooling to a fixed grid, and three wide layers."""

    def __init__(self, features: Sequence[nn.Module], channels: int, grid: int, classes: int, narrow: int) -> None:
        super().__init__()
        wide = 4096 // narrow
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(grid)
        first, second = nn.Linear(channels * grid**2, wide), nn.Linear(wide, wide)
        relu = nn.ReLU(inplace=True)
        self.classifier = nn.Sequential(first, relu, second, relu, nn.Linear(wide, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
        return logits


def _alexnet(classes: int, narrow: int) -> nn.Module:
    # Channels, kernel, stride and padding of "One weird trick" (Krizhevsky 2014), in one column.
    layers = (64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1)
    features: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(pairwise([3, *(layer[0] // narrow for layer in layers)])):
        features += [nn.Conv2d(inputs, outputs, *layers[place][1:]), nn.ReLU(inplace=True)]
        features += [nn.MaxPool2d(3, stride=2)] if place in (0, 1, 4) else []
    return ConvolutionChain(features, 256 // narrow, 6, classes, narrow)


def _vgg19(classes: int, narrow: int) -> nn.Module:
    # Channels and number of 3x3 convolutions before each pooling: table 1, E of Simonyan and Zisserman.
    features: list[nn.Module] = []
    inputs = 3
    for channels, count in (64, 2), (128, 2), (256, 4), (512, 4), (512, 4):
        for _ in range(count):
            features += [nn.Conv2d(inputs, channels // narrow, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = channels // narrow
        features.append(nn.MaxPool2d(2))
    return ConvolutionChain(features, 512 // narrow, 7, classes, narrow)


def _rectified(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2), nn.ReLU())


class GoogLeNetBlock(nn.Module):
    """Figure 2(b) of GoogLeNet: 1x1, 3x3 and 5x5 convolutions and pooling, side by side."""

    def __init__(self, inputs: int, channels: Sequence[int]) -> None:
        super().__init__()
        single, reduce3, wide3, reduce5, wide5, projected = channels
        self.branch1 = _rectified(inputs, single, 1)
        self.branch2 = nn.Sequential(_rectified(inputs, reduce3, 1), _rectified(reduce3, wide3, 3))
        self.branch3 = nn.Sequential(_rectified(inputs, reduce5, 1), _rectified(reduce5, wide5, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _rectified(inputs, projected, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(images) for branch in self.children()], 1)


GOOGLENET_BLOCKS = {
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


class GoogLeNet(nn.Module):
    """Of "Going Deeper with Convolutions" (Szegedy et al. 2014, table 1), without the auxiliary heads."""

    def __init__(self, classes: int, narrow: int) -> None:
        super().__init__()
        first, inputs = 64 // narrow, 192 // narrow
        self.conv1 = _rectified(3, first, 7, stride=2)
        self.conv2 = _rectified(first, first, 1)
        self.conv3 = _rectified(first, inputs, 3)
        for name, counts in GOOGLENET_BLOCKS.items():
            channels = [count // narrow for count in counts]
            self.add_module(name, GoogLeNetBlock(inputs, channels))
            inputs = channels[0] + channels[2] + channels[4] + channels[5]
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = functional.local_response_norm(_halved(self.conv1(images)), 5)
        grid = _halved(functional.local_response_norm(self.conv3(self.conv2(grid)), 5))
        for name in GOOGLENET_BLOCKS:
            grid = self.get_submodule(name)(_halved(grid) if name in ("inception4a", "inception5a") else grid)
        logits: torch.Tensor = self.fc(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1))
        return logits


def _halved(images: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(images, 3, stride=2, ceil_mode=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut: the identity, or a projection where the shape changes."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None
        self.downsample = projection and nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        return functional.relu(hidden + (images if self.downsample is None else self.downsample(images)))


class ResNet50(nn.Module):
    """Of "Deep Residual Learning for Image Recognition" (He et al. 2015, table 1), stride in the 3x3 convolution."""

    blocks = (("layer1", 3), ("layer2", 4), ("layer3", 6), ("layer4", 3))

    def __init__(self, classes: int, narrow: int) -> None:
        super().__init__()
        inputs = width = 64 // narrow
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        for name, count in self.blocks:
            blocks = []
            for position in range(count):
                blocks.append(Bottleneck(inputs, width, stride=1 if position or name == "layer1" else 2))
                inputs = Bottleneck.expansion * width
            self.add_module(name, nn.Sequential(*blocks))
            width *= 2
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        for name, _ in self.blocks:
            grid = self.get_submodule(name)(grid)
        logits: torch.Tensor = self.fc(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1))
        return logits


def _job(
    build: Callable[[], nn.Module], smallest: int, batch_size: int, image_size: int, classes: int, seed: int
) -> Job:
    if image_size < smallest:
        raise InputError(f"image_size is {image_size}; the grid vanishes below {smallest}; the original is 224")
    return classifier_job(build, batch_size, image_size, classes, seed)


def alexnet(
    batch_size: int = 128, image_size: int = 224, *, classes: int = CLASSES, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of AlexNet; `narrow`, a power of 2, divides the channels of all layers, here as below."""
    return _job(lambda: _alexnet(classes, narrow), 63, batch_size, image_size, classes, seed)


def vgg19(
    batch_size: int = 32, image_size: int = 224, *, classes: int = CLASSES, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of VGG-19."""
    return _job(lambda: _vgg19(classes, narrow), 32, batch_size, image_size, classes, seed)


def googlenet(
    batch_size: int = 32, image_size: int = 224, *, classes: int = CLASSES, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of GoogLeNet."""
    return _job(lambda: GoogLeNet(classes, narrow), 33, batch_size, image_size, classes, seed)


def resnet50(
    batch_size: int = 32, image_size: int = 224, *, classes: int = CLASSES, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of ResNet-50."""
    return _job(lambda: ResNet50(classes, narrow), 33, batch_size, image_size, classes, seed)
