"""Modules, tensors and inputs of a sort that cannot be traced are refused before tracing, by their name."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from frontend.torch.small_models import Calls
from torch import nn

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job, capture


class Logging(torch.Tensor):
    """A tensor that takes part in every op that reads it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@dataclass
class Pair:
    """No nest that pytree knows."""

    first: torch.Tensor


def job(module: nn.Module, *inputs: Any, **fields: Any) -> Job:
    return Job(module, inputs or (torch.randn(4, 8),), (), torch.sum, **fields)


def with_backward_hook() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5))
    module[1].register_full_backward_hook(lambda module, wanted, given: None)
    return module


def with_parameter_hook() -> nn.Module:
    module = nn.Linear(8, 5)
    module.weight.register_hook(lambda gradient: gradient * 2)
    return module


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(8, 5)))


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 5)), {nn.Linear})


def with_sparse_buffer() -> nn.Module:
    module = nn.Linear(8, 5)
    module.register_buffer("pattern", torch.eye(5).to_sparse())
    return module


REFUSED: dict[str, tuple[Callable[[], Job], str]] = {
    "lazy": (lambda: job(nn.Sequential(nn.LazyLinear(5))), r"'0\.weight' has no shape yet; call the module once"),
    "backward hook": (
        lambda: job(with_backward_hook()),
        r"module '1' \(Linear\) has a backward hook.*handle.remove\(\)",
    ),
    "hook of an updated parameter": (
        lambda: job(with_parameter_hook(), optimizer="sgd"),
        "'weight' has a hook, which an update inside the step does not call; capture without an optimizer",
    ),
    "scripted": (lambda: job(scripted()), r"module '0' \(\w*ScriptModule\) is compiled by TorchScript"),
    "quantized": (lambda: job(quantized(), mode="infer"), r"module '0' \(Linear\) is quantized.*plan the module that"),
    "cumulative batch norm": (
        lambda: job(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None))),
        r"module '1' \(BatchNorm1d\) has momentum=None.*give momentum a number",
    ),
    "sparse buffer": (lambda: job(with_sparse_buffer()), "'pattern' is a tensor of layout sparse_coo.*give a dense"),
    "subclass": (
        lambda: job(nn.Linear(8, 5), torch.randn(4, 8).as_subclass(Logging)),
        r"input args\[0\] is a Logging, whose own handling of ops no plan calls; .*as_subclass\(torch.Tensor\)",
    ),
    "array": (lambda: job(nn.Linear(8, 5), np.ones((4, 8))), r"input args\[0\] is a numpy.ndarray; give tensors"),
    "dataclass": (
        lambda: job(Calls(lambda self, pair: self.fc(pair.first), fc=nn.Linear(8, 5)), Pair(torch.ones(4, 8))),
        r"input args\[0\] is a .*\.Pair; .* known to torch.export.register_dataclass",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_named_with_the_way_out(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(CaptureError, match=message):
        capture(build())


# No line of the user's own was traced: torch's module at fault is named instead.
def test_a_mistake_inside_torchs_modules_names_their_line() -> None:
    with pytest.raises(CaptureError, match=r"nn/modules/linear\.py:\d+ \(return F\.linear\("):
        capture(job(nn.Sequential(nn.Linear(8, 8), nn.Linear(3, 5))))
