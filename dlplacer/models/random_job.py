"""Jobs on random data, which a seed decides."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

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
