"""Stand-ins for tensors: the same shape, dtype and strides on the CPU, but no data and no memory."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError, first_line
from dlplacer.frontend.torch.tracing.quiet import TRACED_ON


def fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """The stand-in of a tensor that is real, on the meta device, or a stand-in of another mode."""
    with mode:
        # With the strides of the tensor: which views are legal, and which kernels are traced, depends on them.
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=TRACED_ON)


def fake_tree(value: Any, mode: FakeTensorMode) -> Any:
    """A nested value with every tensor replaced by its stand-in."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: fake_tensor(tensor, mode), value)


class _Copies(dict[int, Any]):
    """The memo of a deep copy that copies no tensor: id of a parameter or buffer → its stand-in."""


def fake_modules(modules: list[nn.Module], mode: FakeTensorMode) -> tuple[list[nn.Module], dict[int, torch.Tensor]]:
    """Copies of modules whose parameters and buffers are stand-ins, tied ones tied; and id of a tensor → its stand-in.

    All other tensors that the modules reach stay the same objects: they are constants of the step, whose values decide
    the traced code. One without data is zero.

    Raises
    ------
    CaptureError
        If a module has an attribute that cannot be copied.
    """
    copies = _Copies()
    for tensor in [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]:
        stand_in = fake_tensor(tensor, mode)
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
        copies.setdefault(id(tensor), stand_in)
    stand_ins = dict(copies)
    with _tensors_stay():
        try:
            return copy.deepcopy(modules, copies), stand_ins
        except Exception as error:
            raise CaptureError(
                f"the module has an attribute that cannot be copied ({first_line(error)}), and a capture runs on a "
                "copy: keep it outside the module"
            ) from error


@contextlib.contextmanager
def _tensors_stay() -> Iterator[None]:
    """Deep copies whose memo is `_Copies` keep tensors; all others copy them as ever."""
    before = {kind: kind.__deepcopy__ for kind in (torch.Tensor, nn.Parameter)}

    def kept(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if not isinstance(memo, _Copies):
            kind = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
            copied: torch.Tensor = before[kind](tensor, memo)  # type: ignore[no-untyped-call]
            return copied
        empty = tensor.is_meta or isinstance(tensor, FakeTensor)
        return torch.zeros(tensor.shape, dtype=tensor.dtype) if empty else tensor

    try:
        for kind in before:
            kind.__deepcopy__ = kept  # type: ignore[method-assign]
        yield
    finally:
        for kind, method in before.items():
            kind.__deepcopy__ = method  # type: ignore[method-assign]
