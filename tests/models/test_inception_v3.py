import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from dlplacer.frontend.torch.job import Job
from dlplacer.models import inception_v3

# Channels, height, width, from table 1 of the paper and torchvision's comments in `Inception3._forward`.
PUBLISHED_SHAPES = {
    "Mixed_5b": (256, 35, 35),
    "Mixed_5c": (288, 35, 35),
    "Mixed_5d": (288, 35, 35),
    "Mixed_6a": (768, 17, 17),
    "Mixed_6b": (768, 17, 17),
    "Mixed_6c": (768, 17, 17),
    "Mixed_6d": (768, 17, 17),
    "Mixed_6e": (768, 17, 17),
    "Mixed_7a": (1280, 8, 8),
    "Mixed_7b": (2048, 8, 8),
    "Mixed_7c": (2048, 8, 8),
}


@pytest.fixture(scope="module")
def fake_job() -> Job:
    with FakeTensorMode():
        return inception_v3(batch_size=2)


@pytest.fixture(scope="module")
def small_job() -> Job:
    return inception_v3(batch_size=2, image_size=75)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def conv(inputs: int, outputs: int, area: int = 1) -> int:
    """Weights of a bias-free convolution, and scale and shift of its batch norm."""
    return outputs * (inputs * area + 2)


def block_a(inputs: int, pool: int) -> int:
    five = conv(inputs, 48) + conv(48, 64, 25)
    double = conv(inputs, 64) + conv(64, 96, 9) + conv(96, 96, 9)
    return conv(inputs, 64) + five + double + conv(inputs, pool)


def block_c(inner: int) -> int:
    seven = conv(768, inner) + conv(inner, inner, 7) + conv(inner, 192, 7)
    double = conv(768, inner) + 3 * conv(inner, inner, 7) + conv(inner, 192, 7)
    return conv(768, 192) + seven + double + conv(768, 192)


def block_e(inputs: int) -> int:
    three = conv(inputs, 384) + 2 * conv(384, 384, 3)
    double = conv(inputs, 448) + conv(448, 384, 9) + 2 * conv(384, 384, 3)
    return conv(inputs, 320) + three + double + conv(inputs, 192)


def test_parameters_of_every_block_match_the_arithmetic(fake_job: Job) -> None:
    expected = {
        "Conv2d_1a_3x3": conv(3, 32, 9),
        "Conv2d_2a_3x3": conv(32, 32, 9),
        "Conv2d_2b_3x3": conv(32, 64, 9),
        "Conv2d_3b_1x1": conv(64, 80),
        "Conv2d_4a_3x3": conv(80, 192, 9),
        "Mixed_5b": block_a(192, 32),
        "Mixed_5c": block_a(256, 64),
        "Mixed_5d": block_a(288, 64),
        "Mixed_6a": conv(288, 384, 9) + conv(288, 64) + conv(64, 96, 9) + conv(96, 96, 9),
        "Mixed_6b": block_c(128),
        "Mixed_6c": block_c(160),
        "Mixed_6d": block_c(160),
        "Mixed_6e": block_c(192),
        "Mixed_7a": 2 * conv(768, 192) + conv(192, 320, 9) + 2 * conv(192, 192, 7) + conv(192, 192, 9),
        "Mixed_7b": block_e(1280),
        "Mixed_7c": block_e(2048),
        "fc": 2048 * 1000 + 1000,
    }
    assert {name: count(child) for name, child in fake_job.module.named_children() if count(child)} == expected


def test_blocks_have_the_published_shapes(fake_job: Job) -> None:
    shapes: dict[str, tuple[int, ...]] = {}
    handles = [
        child.register_forward_hook(lambda _, args, output, name=name: shapes.update({name: tuple(output.shape)}))
        for name, child in fake_job.module.named_children()
    ]
    with fake_job.args[0].fake_mode:
        logits = fake_job.module(*fake_job.args)
    for handle in handles:
        handle.remove()
    assert {name: shapes[name] for name in PUBLISHED_SHAPES} == {k: (2, *v) for k, v in PUBLISHED_SHAPES.items()}
    assert shapes["maxpool2"] == (2, 192, 35, 35)
    assert logits.shape == (2, 1000)


def test_forward_pass_has_the_published_multiply_adds(fake_job: Job) -> None:
    # torchvision publishes 5.713 billion multiply-adds per image, in evaluation mode; each is two FLOPs here.
    with fake_job.args[0].fake_mode, FlopCounterMode(display=False) as counter:
        fake_job.module(*fake_job.args)
    assert counter.get_total_flops() / 2 / 2 == pytest.approx(5.713e9, rel=1e-4)


def test_trains_on_the_smallest_image(small_job: Job) -> None:
    assert small_job.loss is not None
    loss = small_job.loss(small_job.module(*small_job.args), *small_job.targets)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in small_job.module.parameters())
