"""Classifiers: Inception-V3, AlexNet, VGG-19, GoogLeNet, ResNet-50, a minimal network with parallel branches, and a
perceptron, optionally with tied layers. None has dropout or auxiliary heads; Inception-V3 has torchvision's names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random numbers within the context, and restore the global random state afterwards."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the GPUs' generators, which fork_rng does not restore here.
        torch.default_generator.manual_seed(seed)
        yield


def _job(
    build: Callable[[], nn.Module], size: tuple[int, ...], classes: int, seed: int, smallest: int = 1, original: int = 0
) -> Job:
    """A training step with cross-entropy; `size`: batch, then image size or features; `seed`: of weights and data."""
    if original and size[1] < smallest:
        raise InputError(f"image_size is {size[1]}; the grid vanishes below {smallest}; the original is {original}")
    with seeded(seed):
        network = build()
        data = torch.randn(size[0], 3, size[1], size[1]) if original else torch.randn(size)
        labels = torch.randint(classes, size[:1])
    return Job(network, args=(data,), targets=(labels,), loss=functional.cross_entropy, mode="train")


class BasicConv2d(nn.Module):
    """Convolution without bias, batch norm, ReLU; `padded` keeps height and width at stride 1."""

    def __init__(
        self, inputs: int, outputs: int, kernel: tuple[int, int] = (1, 1), stride: int = 1, padded: bool = True
    ) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn(self.conv(images)))


_POOLINGS: dict[str, Callable[..., torch.Tensor]] = {
    "average": partial(functional.avg_pool2d, kernel_size=3, stride=1, padding=1),
    "halve": partial(functional.max_pool2d, kernel_size=3, stride=2),
}
_A = "1x1 64 | 5x5_1 48, 5x5_2 64 5x5 | 3x3dbl_1 64, 3x3dbl_2 96 3x3, 3x3dbl_3 96 3x3 | average, _pool "
_C = (
    "1x1 192 | 7x7_1 N, 7x7_2 N 1x7, 7x7_3 192 7x1 | 7x7dbl_1 N, 7x7dbl_2 N 7x1, 7x7dbl_3 N 1x7, 7x7dbl_4 N 7x1, "
    "7x7dbl_5 192 1x7 | average, _pool 192"
)
_E = (
    "1x1 320 | 3x3_1 384, 3x3_2a 384 1x3 + 3x3_2b 384 3x1 | 3x3dbl_1 448, 3x3dbl_2 384 3x3, 3x3dbl_3a 384 1x3 + "
    "3x3dbl_3b 384 3x1 | average, _pool 192"
)
BLOCKS = {
    "Mixed_5b": (192, f"{_A}32"),
    "Mixed_5c": (256, f"{_A}64"),
    "Mixed_5d": (288, f"{_A}64"),
    "Mixed_6a": (288, "3x3 384 3x3 /2 | 3x3dbl_1 64, 3x3dbl_2 96 3x3, 3x3dbl_3 96 3x3 /2 | halve"),
    "Mixed_6b": (768, _C.replace("N", "128")),
    "Mixed_6c": (768, _C.replace("N", "160")),
    "Mixed_6d": (768, _C.replace("N", "160")),
    "Mixed_6e": (768, _C.replace("N", "192")),
    "Mixed_7a": (
        768,
        "3x3_1 192, 3x3_2 320 3x3 /2 | 7x7x3_1 192, 7x7x3_2 192 1x7, 7x7x3_3 192 7x1, 7x7x3_4 192 3x3 /2 | halve",
    ),
    "Mixed_7b": (1280, _E),
    "Mixed_7c": (2048, _E),
}
"""Block → its input channels and branches, by Szegedy et al. 2015: figures 5 (as released), 10, 6 (n = 7), 10, 7.

A branch has layers in series, or in parallel (+): name, channels, kernel, and /2 for stride 2 without padding.
"""


class Inception(nn.Module):
    """Parallel branches of convolutions and poolings, whose results are concatenated."""

    def __init__(self, inputs: int, text: str) -> None:
        super().__init__()
        self.branches = [[step.split(" + ") for step in branch.split(", ")] for branch in text.split(" | ")]
        for branch in self.branches:
            channels = inputs
            for step in branch:
                outputs = channels
                for place, layer in enumerate(step):
                    if layer not in _POOLINGS:
                        name, count, *more = layer.split()
                        height, width = (more or ["1x1"])[0].split("x")
                        stride, outputs = 2 if more[1:] else 1, int(count)
                        made = BasicConv2d(channels, outputs, (int(height), int(width)), stride, padded=stride == 1)
                        self.add_module(f"branch{name}", made)
                        step[place] = f"branch{name}"
                channels = outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        results = []
        for branch in self.branches:
            made = [images]
            for step in branch:
                made = [(_POOLINGS.get(name) or self.get_submodule(name))(made[0]) for name in step]
            results.append(made[0] if len(made) == 1 else torch.cat(made, 1))
        return torch.cat(results, 1)


class InceptionV3(nn.Module):
    """Inception-V3 ("Rethinking the Inception Architecture for Computer Vision", Szegedy et al. 2015, section 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = BasicConv2d(3, 32, (3, 3), stride=2, padded=False)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, (3, 3), padded=False)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, (3, 3))
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, (3, 3), padded=False)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        for name, block in BLOCKS.items():
            self.add_module(name, Inception(*block))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, grid: torch.Tensor) -> torch.Tensor:
        for name, layer in self.named_children():
            grid = layer(torch.flatten(grid, 1) if name == "fc" else grid)
        return grid


def inception_v3(batch_size: int = 32, image_size: int = 299, *, seed: int = 0) -> Job:
    """A training step of Inception-V3, without its dropout.

    `image_size` is at least 75. Below 107 the last grid is 1x1, and training needs a batch of at least 2.
    """
    return _job(InceptionV3, (batch_size, image_size), 1000, seed, 75, 299)


class Branches(nn.Module):
    """Logits, shape (N, 10), for images of shape (N, 3, H, W), from `count` equal parallel convolutions."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.stem = BasicConv2d(3, 16, (3, 3))
        self.branches = nn.ModuleList(BasicConv2d(16, 48, (3, 3)) for _ in range(count))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(count * 48, 10)

    def forward(self, images: torch.Tensor) -> Any:
        stem = self.stem(images)
        joined = torch.cat([branch(stem) for branch in self.branches], 1)
        return self.fc(torch.flatten(self.pool(joined), 1))


def branches(batch_size: int = 32, image_size: int = 32, *, count: int = 3, seed: int = 0) -> Job:
    """A training step of `Branches`, with `count` branches of equal cost."""
    return _job(lambda: Branches(count), (batch_size, image_size), 10, seed, 1, 32)


class Perceptron(nn.Module):
    """Logits, shape (N, 10), for inputs of shape (N, features); if `tied`, the `depth` hidden layers share weights."""

    def __init__(self, features: int, width: int, depth: int, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 10)
        if tied:
            for layer in self.hidden[1:]:
                layer.weight, layer.bias = self.hidden[0].weight, self.hidden[0].bias

    def forward(self, inputs: torch.Tensor) -> Any:
        features = functional.relu(self.first(inputs))
        for layer in self.hidden:
            features = functional.relu(layer(features))
        return self.last(features)


def mlp(
    batch_size: int = 32, features: int = 64, *, width: int = 128, depth: int = 2, tied: bool = False, seed: int = 0
) -> Job:
    """A training step of `Perceptron`."""
    return _job(lambda: Perceptron(features, width, depth, tied), (batch_size, features), 10, seed)


class ConvolutionChain(nn.Module):
    """Convolutions (channels, kernel, stride, padding) and poolings (kernel, stride), then three wide layers."""

    def __init__(self, layers: Sequence[Sequence[Any]], grid: int, classes: int, narrow: int) -> None:
        super().__init__()
        features: list[nn.Module] = []
        inputs, wide, relu = 3, 4096 // narrow, nn.ReLU(inplace=True)
        for size, *more in layers:
            if len(more) == 1:
                features.append(nn.MaxPool2d(size, *more))
            else:
                features += [nn.Conv2d(inputs, size // narrow, *more), nn.ReLU(inplace=True)]
                inputs = size // narrow
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(grid)
        first, second = nn.Linear(inputs * grid**2, wide), nn.Linear(wide, wide)
        self.classifier = nn.Sequential(first, relu, second, relu, nn.Linear(wide, classes))

    def forward(self, images: torch.Tensor) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))


# "One weird trick" (Krizhevsky 2014), as one column; and Simonyan and Zisserman, table 1, column E.
_THIRD = (3, 2)
_ALEXNET = (64, 11, 4, 2), _THIRD, (192, 5, 1, 2), _THIRD, (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1), _THIRD
_DEPTHS = (64, 2), (128, 2), (256, 4), (512, 4), (512, 4)
_VGG19 = [layer for channels, count in _DEPTHS for layer in (*[(channels, 3, 1, 1)] * count, (2, 2))]


def _rectified(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2), nn.ReLU())


class GoogLeNetBlock(nn.Module):
    """1x1, 3x3 and 5x5 convolutions and pooling in parallel (Szegedy et al. 2014, figure 2b)."""

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
"""Block → columns of Szegedy et al. 2014, table 1: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj."""
_halved = partial(functional.max_pool2d, kernel_size=3, stride=2, ceil_mode=True)


class GoogLeNet(nn.Module):
    """GoogLeNet ("Going Deeper with Convolutions", Szegedy et al. 2014, table 1)."""

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

    def forward(self, images: torch.Tensor) -> Any:
        grid = functional.local_response_norm(_halved(self.conv1(images)), 5)
        grid = _halved(functional.local_response_norm(self.conv3(self.conv2(grid)), 5))
        for name in GOOGLENET_BLOCKS:
            grid = self.get_submodule(name)(_halved(grid) if name in ("inception4a", "inception5a") else grid)
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut: the identity, or a projection if the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None
        self.downsample = projection and nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        return functional.relu(hidden + (images if self.downsample is None else self.downsample(images)))


class ResNet50(nn.Module):
    """ResNet-50 (He et al. 2015, table 1), with the stride in the 3x3 convolution."""

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
                inputs = 4 * width
            self.add_module(name, nn.Sequential(*blocks))
            width *= 2
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> Any:
        grid = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        for name, _ in self.blocks:
            grid = self.get_submodule(name)(grid)
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(grid, 1), 1))


def alexnet(
    batch_size: int = 128, image_size: int = 224, *, classes: int = 1000, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of AlexNet; `narrow`, a power of 2, divides all numbers of channels."""
    build = partial(ConvolutionChain, _ALEXNET, 6, classes, narrow)
    return _job(build, (batch_size, image_size), classes, seed, 63, 224)


def vgg19(batch_size: int = 32, image_size: int = 224, *, classes: int = 1000, narrow: int = 1, seed: int = 0) -> Job:
    """A training step of VGG-19; `narrow` as in `alexnet`."""
    build = partial(ConvolutionChain, _VGG19, 7, classes, narrow)
    return _job(build, (batch_size, image_size), classes, seed, 32, 224)


def googlenet(
    batch_size: int = 32, image_size: int = 224, *, classes: int = 1000, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of GoogLeNet; `narrow` as in `alexnet`."""
    return _job(partial(GoogLeNet, classes, narrow), (batch_size, image_size), classes, seed, 33, 224)


def resnet50(
    batch_size: int = 32, image_size: int = 224, *, classes: int = 1000, narrow: int = 1, seed: int = 0
) -> Job:
    """A training step of ResNet-50; `narrow` as in `alexnet`."""
    return _job(partial(ResNet50, classes, narrow), (batch_size, image_size), classes, seed, 33, 224)
