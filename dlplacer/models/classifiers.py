"""Classifiers: Inception-V3, the least that model parallelism can speed up, and a perceptron, perhaps of tied layers.

Inception-V3 has torchvision's names of modules, and with them its state dicts. It is of section 6 of "Rethinking the
Inception Architecture for Computer Vision" (Szegedy et al. 2015), without the auxiliary head.
"""

from collections.abc import Callable, Iterator
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


def classifier_job(build: Callable[[], nn.Module], batch_size: int, image_size: int, classes: int, seed: int) -> Job:
    """A training step with cross-entropy; the seed decides weights, images and labels."""
    with seeded(seed):
        network = build()
        images = torch.randn(batch_size, 3, image_size, image_size)
        labels = torch.randint(classes, (batch_size,))
    return Job(network, args=(images,), targets=(labels,), loss=functional.cross_entropy, mode="train")


CLASSES = 1000


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


def _average(images: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(images, 3, stride=1, padding=1)


def _halve(images: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(images, 3, stride=2)


_POOLINGS = {"average": _average, "halve": _halve}
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
"""Block → its input channels and its branches: figures 5 (as released), 10, 6 (n = 7), 10 through 1x7 and 7x1, 7.

A branch has layers one after another, or side by side (+): name, channels, kernel, and /2 for stride 2 without padding.
"""


class Inception(nn.Module):
    """Branches of convolutions and poolings side by side, whose results are joined."""

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
    """Logits of `CLASSES` classes, shape (N, 1000), for images of shape (N, 3, H, W)."""

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
        self.fc = nn.Linear(2048, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = images
        for name, layer in self.named_children():
            grid = layer(torch.flatten(grid, 1) if name == "fc" else grid)
        return grid


def inception_v3(batch_size: int = 32, image_size: int = 299, *, seed: int = 0) -> Job:
    """A training step of Inception-V3, without its dropout.

    `image_size` is 75 at least. Below 107 the last grid is 1x1, where training needs a batch of 2 or more. The weights
    do not depend on the sizes.
    """
    if image_size < 75:
        raise InputError(f"inception_v3: image_size is {image_size}; the grid vanishes below 75; the original is 299")
    return classifier_job(InceptionV3, batch_size, image_size, CLASSES, seed)


STEM_CHANNELS = 16
BRANCH_CHANNELS = 48
FEW_CLASSES = 10


class Branches(nn.Module):
    """Logits, shape (N, classes), for images of shape (N, 3, H, W)."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.stem = BasicConv2d(3, STEM_CHANNELS, (3, 3))
        self.branches = nn.ModuleList(BasicConv2d(STEM_CHANNELS, BRANCH_CHANNELS, (3, 3)) for _ in range(count))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(count * BRANCH_CHANNELS, FEW_CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        stem = self.stem(images)
        joined = torch.cat([branch(stem) for branch in self.branches], 1)
        logits: torch.Tensor = self.fc(torch.flatten(self.pool(joined), 1))
        return logits


def branches(batch_size: int = 32, image_size: int = 32, *, count: int = 3, seed: int = 0) -> Job:
    """A training step of `Branches`: `count` of them, all of the same cost."""
    return classifier_job(lambda: Branches(count), batch_size, image_size, FEW_CLASSES, seed)


class Perceptron(nn.Module):
    """Logits, shape (N, classes), for inputs of shape (N, features).

    Between the first layer and the last are `depth` from `width` to `width`; `tied` ones share weight and bias.
    """

    def __init__(self, features: int, width: int, depth: int, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, FEW_CLASSES)
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
        labels = torch.randint(FEW_CLASSES, (batch_size,))
    return Job(network, args=(inputs,), targets=(labels,), loss=functional.cross_entropy, mode="train")
