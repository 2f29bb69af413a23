"""Every family that must work, as small training jobs; the same seed gives the same job."""

import importlib.util
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from runtime.families import networks, transformers_models
from torch import nn

from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job, capture
from dlplacer.models import alexnet, googlenet, resnet50, vgg19

_TINY = {"batch_size": 2, "classes": 5, "narrow": 8}
OWN: dict[str, Callable[[], Job]] = {
    "ResNet-50": partial(resnet50, image_size=33, **_TINY),
    "VGG-19": partial(vgg19, image_size=32, **_TINY),
    "AlexNet": partial(alexnet, image_size=63, **_TINY),
    "GoogLeNet": partial(googlenet, image_size=33, **_TINY),
    "DLRM-like": networks.ranking,
    "mixture of experts": networks.experts,
    "U-net": networks.u_net,
    "LSTM language model": partial(networks.recurrent_language_model, nn.LSTM),
    "GRU language model": partial(networks.recurrent_language_model, nn.GRU),
}
BUILDERS = {**OWN, **transformers_models.BUILDERS}
_NEEDS_TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
EVERY = [
    pytest.param(name, marks=_NEEDS_TRANSFORMERS if name in transformers_models.BUILDERS else ()) for name in BUILDERS
]
"""Names of all families, for `pytest.mark.parametrize`."""


def build(name: str, seed: int = 0) -> Job:
    """The job of this family; weights and data depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILDERS[name]()


@cache
def graph_of(name: str) -> OpGraph:
    """The captured graph of the family."""
    return capture(build(name))
