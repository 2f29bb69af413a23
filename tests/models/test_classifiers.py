"""Image classifiers, those of the papers too: known numbers of weights and multiplications; narrowed they train."""

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from dlplacer.frontend.torch.job import Job
from dlplacer.models import alexnet, googlenet, inception_v3, resnet50, vgg19

Builder = Callable[..., Job]
SMALLEST = {alexnet: 63, googlenet: 33, resnet50: 33, vgg19: 32}


# Parameters as published with torchvision's alexnet, vgg19, resnet50 and inception_v3 and with Caffe's bvlc_googlenet
# (without the auxiliary heads); multiply-adds of one image of 224x224, or 299x299, in thousand millions, likewise.
@pytest.mark.parametrize(
    ("build", "parameters", "giga_multiply_adds"),
    [
        (alexnet, 61_100_840, 0.714),
        (vgg19, 143_667_240, 19.632),
        (resnet50, 25_557_032, 4.089),
        (googlenet, 6_998_552, 1.583),
        (inception_v3, 23_834_568, 5.713),
    ],
)
def test_parameters_and_multiplications_are_the_published_ones(
    build: Builder, parameters: int, giga_multiply_adds: float
) -> None:
    with FakeTensorMode():
        job = build(batch_size=1)
        with FlopCounterMode(display=False) as counter:
            job.module(*job.args)
    assert sum(parameter.numel() for parameter in job.module.parameters()) == parameters
    assert counter.get_total_flops() / 2e9 == pytest.approx(giga_multiply_adds, abs=6e-4)


@pytest.mark.parametrize("build", SMALLEST)
def test_narrowed_networks_train_at_the_smallest_size(build: Builder) -> None:
    job = build(batch_size=2, image_size=SMALLEST[build], classes=7, narrow=8)
    logits = job.module(*job.args)
    assert logits.shape == (2, 7)
    assert job.loss is not None
    job.loss(logits, *job.targets).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in job.module.parameters())
