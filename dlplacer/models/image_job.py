"""The job that all image classifiers share: a training step on random images and labels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job

CLASSES = 1000


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


def require_image(name: str, image_size: int, smallest: int, original: int) -> None:
    """Refuse images that are too small for a network."""
    if image_size < smallest:
        raise InputError(
            f"{name}: image_size is {image_size}; the grid vanishes below {smallest}; use {smallest} or more "
            f"({original} is the original)"
        )


def divided(name: str, channels: int, narrow: int) -> int:
    """Channels of a network that is `narrow` times narrower; refused if they cannot be divided like that."""
    if narrow < 1 or channels % narrow:
        raise InputError(f"{name}: narrow is {narrow}, which does not divide {channels} channels; use 1, 2, 4 or 8")
    return channels // narrow
