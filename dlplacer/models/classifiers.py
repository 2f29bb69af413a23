"""Image classifiers: logits, shape (N, classes), for images of shape (N, 3, H, W).

Module names, and with them state dicts, are those of torchvision but for GoogLeNet's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of this seed, after which the global random state is as before."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which seeds the generators of GPUs too: fork_rng restores that of the CPU only.
        torch.default_generator.manual_seed(seed)
        yield


def dropout_or_none(probability: float) -> nn.Module:
    """Dropout; nothing at probability 0, so that gradients can be compared with another run's."""
    return nn.Dropout(probability) if probability else nn.Identity()


def classifier_job(build: Callable[[], nn.Module], batch_size: int, image_size: int, classes: int, seed: int) -> Job:
    """A training step with cross-entropy; the seed decides weights, images and labels."""
    with seeded(seed):
        network = build()
        images = torch.randn(batch_size, 3, image_size, image_size)
        labels = torch.randint(classes, (batch_size,))
    return Job(network, args=(images,), targets=(labels,), loss=functional.cross_entropy, mode="train")


CLASSES = 1000


def require_image(name: str, image_size: int, smallest: int, original: int = 224) -> None:
    """Refuse images that are too small for a network."""
    if image_size < smallest:
        raise InputError(
            f"{name}: image_size is {image_size}; the grid vanishes below {smallest}; use {smallest} or more "
            f"({original} is the original)"
        )


def _divided(name: str, narrow: int, *channels: int) -> list[int]:
    """Channels of a network that is `narrow` times narrower; refused if they cannot be divided like that."""
    for count in channels:
        if narrow < 1 or count % narrow:
            raise InputError(f"{name}: narrow is {narrow}, which does not divide {count} channels; use 1, 2, 4 or 8")
    return [count // narrow for count in channels]


class _Chain(nn.Module):
    """Convolutions and poolings in a row, pooling to a fixed grid, and three wide layers."""

    grid: int

    def __init__(self, features: Iterable[nn.Module], classifier: Iterable[nn.Module]) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(self.grid)
        self.classifier = nn.Sequential(*classifier)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
        return logits


class AlexNet(_Chain):
    """In one column: "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014)."""

    grid = 6
    convolutions = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
    """Channels, kernel, stride, padding."""
    pooled_after = (0, 1, 4)

    def __init__(self, classes: int, dropout: float, narrow: int) -> None:
        *channels, wide = _divided("alexnet", narrow, *(each[0] for each in self.convolutions), 4096)
        features: list[nn.Module] = []
        for place, (inputs, outputs) in enumerate(zip([3, *channels], channels, strict=False)):
            features += [nn.Conv2d(inputs, outputs, *self.convolutions[place][1:]), nn.ReLU(inplace=True)]
            features += [nn.MaxPool2d(3, stride=2)] if place in self.pooled_after else []
        first, second = nn.Linear(channels[-1] * self.grid**2, wide), nn.Linear(wide, wide)
        classifier = [dropout_or_none(dropout), first, nn.ReLU(inplace=True)]
        classifier += [dropout_or_none(dropout), second, nn.ReLU(inplace=True), nn.Linear(wide, classes)]
        super().__init__(features, classifier)


class Vgg19(_Chain):
    """Table 1, E of "Very Deep Convolutional Networks for Large-Scale Image Recognition" (Simonyan and Zisserman)."""

    grid = 7
    stages = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
    """Channels and number of 3x3 convolutions before each pooling."""

    def __init__(self, classes: int, dropout: float, narrow: int) -> None:
        *channels, wide = _divided("vgg19", narrow, *(each[0] for each in self.stages), 4096)
        features: list[nn.Module] = []
        inputs = 3
        for outputs, (_, count) in zip(channels, self.stages, strict=True):
            for _ in range(count):
                features += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = outputs
            features.append(nn.MaxPool2d(2))
        first, second = nn.Linear(inputs * self.grid**2, wide), nn.Linear(wide, wide)
        classifier = [first, nn.ReLU(inplace=True), dropout_or_none(dropout)]
        classifier += [second, nn.ReLU(inplace=True), dropout_or_none(dropout), nn.Linear(wide, classes)]
        super().__init__(features, classifier)


class RectifiedConv2d(nn.Module):
    """Convolution with bias that keeps height and width at stride 1, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.conv(images))


class GoogLeNetBlock(nn.Module):
    """Figure 2(b) of GoogLeNet: 1x1, 3x3 and 5x5 convolutions and pooling, side by side."""

    def __init__(self, inputs: int, channels: Sequence[int]) -> None:
        super().__init__()
        single, reduce3, wide3, reduce5, wide5, projected = channels
        self.branch1 = RectifiedConv2d(inputs, single, 1)
        self.branch2 = nn.Sequential(RectifiedConv2d(inputs, reduce3, 1), RectifiedConv2d(reduce3, wide3, 3))
        self.branch3 = nn.Sequential(RectifiedConv2d(inputs, reduce5, 1), RectifiedConv2d(reduce5, wide5, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), RectifiedConv2d(inputs, projected, 1))

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

    def __init__(self, classes: int, dropout: float, narrow: int) -> None:
        super().__init__()
        first, inputs = _divided("googlenet", narrow, 64, 192)
        self.conv1 = RectifiedConv2d(3, first, 7, stride=2)
        self.conv2 = RectifiedConv2d(first, first, 1)
        self.conv3 = RectifiedConv2d(first, inputs, 3)
        for name, counts in GOOGLENET_BLOCKS.items():
            channels = _divided("googlenet", narrow, *counts)
            self.add_module(name, GoogLeNetBlock(inputs, channels))
            inputs = channels[0] + channels[2] + channels[4] + channels[5]
        self.dropout = dropout_or_none(dropout)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = functional.local_response_norm(_halved(self.conv1(images)), 5)
        grid = _halved(functional.local_response_norm(self.conv3(self.conv2(grid)), 5))
        for name in GOOGLENET_BLOCKS:
            grid = self.get_submodule(name)(_halved(grid) if name in ("inception4a", "inception5a") else grid)
        logits: torch.Tensor = self.fc(self.dropout(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1)))
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
        inputs = width = _divided("resnet50", narrow, 64)[0]
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
    require_image("alexnet", image_size, 63)
    return classifier_job(lambda: AlexNet(classes, dropout, narrow), batch_size, image_size, classes, seed)


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
    require_image("vgg19", image_size, 32)
    return classifier_job(lambda: Vgg19(classes, dropout, narrow), batch_size, image_size, classes, seed)


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
    require_image("googlenet", image_size, 33)
    return classifier_job(lambda: GoogLeNet(classes, dropout, narrow), batch_size, image_size, classes, seed)


def resnet50(
    batch_size: int = 32, image_size: int = 224, *, classes: int = CLASSES, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of ResNet-50; `narrow` is 1, 2, 4, …, 64."""
    require_image("resnet50", image_size, 33)
    return classifier_job(lambda: ResNet50(classes, narrow), batch_size, image_size, classes, seed)
