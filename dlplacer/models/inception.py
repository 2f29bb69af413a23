"""Inception-V3 of "Rethinking the Inception Architecture for Computer Vision" (Szegedy et al. 2015, section 6).

Module names, and with them state dicts, are those of torchvision's version without the auxiliary head.
"""

import torch
from torch import nn
from torch.nn import functional

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import CLASSES, classifier_job, dropout_or_none, require_image

SMALLEST_IMAGE = 75


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


class InceptionA(nn.Module):
    """Figure 5 as released: a 5x5 convolution parallel to two 3x3 in sequence; 224 + `pool_features` channels."""

    def __init__(self, inputs: int, pool_features: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 64)
        self.branch5x5_1 = BasicConv2d(inputs, 48)
        self.branch5x5_2 = BasicConv2d(48, 64, (5, 5))
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, (3, 3))
        self.branch3x3dbl_3 = BasicConv2d(96, 96, (3, 3))
        self.branch_pool = BasicConv2d(inputs, pool_features)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        single = self.branch1x1(images)
        wide = self.branch5x5_2(self.branch5x5_1(images))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(images)))
        pooled = self.branch_pool(_average(images))
        return torch.cat([single, wide, double, pooled], 1)


class InceptionB(nn.Module):
    """Figure 10: halves the grid; adds 480 channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = BasicConv2d(inputs, 384, (3, 3), stride=2, padded=False)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, (3, 3))
        self.branch3x3dbl_3 = BasicConv2d(96, 96, (3, 3), stride=2, padded=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        single = self.branch3x3(images)
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(images)))
        return torch.cat([single, double, _halve(images)], 1)


class InceptionC(nn.Module):
    """Figure 6 with n = 7: 7x7 convolutions as 1x7 and 7x1; 768 channels, `channels_7x7` of them inside."""

    def __init__(self, inputs: int, channels_7x7: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 192)
        self.branch7x7_1 = BasicConv2d(inputs, channels_7x7)
        self.branch7x7_2 = BasicConv2d(channels_7x7, channels_7x7, (1, 7))
        self.branch7x7_3 = BasicConv2d(channels_7x7, 192, (7, 1))
        self.branch7x7dbl_1 = BasicConv2d(inputs, channels_7x7)
        self.branch7x7dbl_2 = BasicConv2d(channels_7x7, channels_7x7, (7, 1))
        self.branch7x7dbl_3 = BasicConv2d(channels_7x7, channels_7x7, (1, 7))
        self.branch7x7dbl_4 = BasicConv2d(channels_7x7, channels_7x7, (7, 1))
        self.branch7x7dbl_5 = BasicConv2d(channels_7x7, 192, (1, 7))
        self.branch_pool = BasicConv2d(inputs, 192)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        single = self.branch1x1(images)
        wide = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(images)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(images)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        pooled = self.branch_pool(_average(images))
        return torch.cat([single, wide, double, pooled], 1)


class InceptionD(nn.Module):
    """Halves the grid as figure 10 does, one branch through 1x7 and 7x1; adds 512 channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3_1 = BasicConv2d(inputs, 192)
        self.branch3x3_2 = BasicConv2d(192, 320, (3, 3), stride=2, padded=False)
        self.branch7x7x3_1 = BasicConv2d(inputs, 192)
        self.branch7x7x3_2 = BasicConv2d(192, 192, (1, 7))
        self.branch7x7x3_3 = BasicConv2d(192, 192, (7, 1))
        self.branch7x7x3_4 = BasicConv2d(192, 192, (3, 3), stride=2, padded=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        narrow = self.branch3x3_2(self.branch3x3_1(images))
        wide = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(images)))
        return torch.cat([narrow, self.branch7x7x3_4(wide), _halve(images)], 1)


class InceptionE(nn.Module):
    """Figure 7: the 3x3 convolutions expanded into parallel 1x3 and 3x1; 2048 channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 320)
        self.branch3x3_1 = BasicConv2d(inputs, 384)
        self.branch3x3_2a = BasicConv2d(384, 384, (1, 3))
        self.branch3x3_2b = BasicConv2d(384, 384, (3, 1))
        self.branch3x3dbl_1 = BasicConv2d(inputs, 448)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, (3, 3))
        self.branch3x3dbl_3a = BasicConv2d(384, 384, (1, 3))
        self.branch3x3dbl_3b = BasicConv2d(384, 384, (3, 1))
        self.branch_pool = BasicConv2d(inputs, 192)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        single = self.branch1x1(images)
        narrow = self.branch3x3_1(images)
        narrow = torch.cat([self.branch3x3_2a(narrow), self.branch3x3_2b(narrow)], 1)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(images))
        double = torch.cat([self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)], 1)
        pooled = self.branch_pool(_average(images))
        return torch.cat([single, narrow, double, pooled], 1)


class InceptionV3(nn.Module):
    """Logits of `CLASSES` classes, shape (N, 1000), for images of shape (N, 3, H, W)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = BasicConv2d(3, 32, (3, 3), stride=2, padded=False)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, (3, 3), padded=False)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, (3, 3))
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, (3, 3), padded=False)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.Mixed_5b = InceptionA(192, pool_features=32)
        self.Mixed_5c = InceptionA(256, pool_features=64)
        self.Mixed_5d = InceptionA(288, pool_features=64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, channels_7x7=128)
        self.Mixed_6c = InceptionC(768, channels_7x7=160)
        self.Mixed_6d = InceptionC(768, channels_7x7=160)
        self.Mixed_6e = InceptionC(768, channels_7x7=192)
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = dropout_or_none(dropout)
        self.fc = nn.Linear(2048, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images))))
        grid = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(grid)))
        grid = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(grid)))
        grid = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(grid)))))
        grid = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(grid)))
        logits: torch.Tensor = self.fc(self.dropout(torch.flatten(self.avgpool(grid), 1)))
        return logits


def inception_v3(batch_size: int = 32, image_size: int = 299, *, dropout: float = 0.0, seed: int = 0) -> Job:
    """A training step of Inception-V3; `dropout` is before the last layer (originally 0.5).

    `image_size` is 75 at least. Below 107 the last grid is 1x1, where training needs a batch of 2 or more. The weights
    do not depend on the sizes.
    """
    require_image("inception_v3", image_size, SMALLEST_IMAGE, 299)
    return classifier_job(lambda: InceptionV3(dropout), batch_size, image_size, CLASSES, seed)


def _average(images: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(images, 3, stride=1, padding=1)


def _halve(images: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(images, 3, stride=2)
