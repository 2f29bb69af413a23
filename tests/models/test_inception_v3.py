import pytest
import torch
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


def test_parameters_are_as_many_as_published(fake_job: Job) -> None:
    # As torchvision's inception_v3 without its auxiliary classifier.
    assert sum(parameter.numel() for parameter in fake_job.module.parameters()) == 23_834_568


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
