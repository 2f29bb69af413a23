"""Where a step writes to: an input there is read by its ops at any time, by plain PyTorch when the model says."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.tracing.shared_elements import extent, share_elements

Tensors = Mapping[str, torch.Tensor]


class WrittenMemory:
    """The memory of some parameters and buffers, looked at anew in every step: they may have moved.

    Parameters
    ----------
    names
        Of the tensors, each with the same shape and strides in every step.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._addresses: list[int] = []
        self._spans: list[tuple[int, int, str]] = []
        self._begins: list[int] = []
        self._furthest: list[int] = []

    def tensor_in(self, value: torch.Tensor, tensors: Tensors) -> str | None:
        """Name of a tensor that has an element in common with a value; None if none has."""
        address = value.data_ptr()
        if not self._names or not address:
            return None
        self._look(tensors)
        begin, end = _span(value)
        before = bisect_left(self._begins, end)
        if not before or self._furthest[before - 1] <= begin:
            return None
        candidates = (name for low, high, name in self._spans[:before] if high > begin)
        return next((name for name in candidates if _overlap(value, tensors[name])), None)

    def _look(self, tensors: Tensors) -> None:
        """Find out where the tensors are, unless they are where they were."""
        addresses = [tensors[name].data_ptr() for name in self._names]
        if addresses == self._addresses:
            return
        self._addresses = addresses
        self._spans = sorted((*_span(tensors[name]), name) for name in self._names if tensors[name].data_ptr())
        self._begins = [begin for begin, _, _ in self._spans]
        self._furthest = [*accumulate((end for _, end, _ in self._spans), max)]


def require_unwritten(written: WrittenMemory, tensors: Tensors, inputs: Sequence[Any]) -> None:
    """Return unless a step writes to the memory of one of its inputs.

    Parameters
    ----------
    tensors
        Parameters and buffers by name.
    inputs
        Flat inputs of the step.

    Raises
    ------
    InputError
        Naming the input and the buffer.
    """
    for position, leaf in enumerate(inputs):
        if isinstance(leaf, torch.Tensor) and (name := written.tensor_in(leaf, tensors)) is not None:
            raise InputError(
                f"input {position} of the step shares memory with {name!r}, which the step writes to; give it memory "
                "of its own (.clone())"
            )


def apart_from(written: WrittenMemory, tensors: Tensors, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with copies of those that share memory with what is written."""
    return [
        leaf.clone() if isinstance(leaf, torch.Tensor) and written.tensor_in(leaf, tensors) is not None else leaf
        for leaf in inputs
    ]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte, and of the first behind its last."""
    begin, end = extent(tensor)
    return tensor.data_ptr(), tensor.data_ptr() + end - begin


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Arrays of NumPy give tensors of one memory storages that begin at different places.
    same = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return share_elements(one, other) if same else True
