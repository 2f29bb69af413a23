"""Tensors of a step that share elements: a write to one of them changes the other."""

from collections.abc import Iterable, Mapping

import torch

from dlplacer.frontend.torch.tracing.stand_in import is_empty


def sharing(tensors: Mapping[str, torch.Tensor], written: Iterable[str]) -> tuple[str, str] | None:
    """A tensor that a step writes to and another one that shares elements with it; None if there are none.

    One tensor under two names is none: all its readers are known.
    """
    of_storage: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if (place := storage_of(tensor)) is not None:
            of_storage.setdefault(place, {})[name] = tensor
    for name in dict.fromkeys(written):
        tensor = tensors[name]
        place = storage_of(tensor)
        for other, beside in of_storage[place].items() if place is not None else ():
            if beside is not tensor and share_elements(tensor, beside):
                return name, other
    return None


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor in its storage, and the first one after its last; equal for a tensor without elements."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (int(last) + 1) * tensor.element_size()


def storage_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None for a tensor without data."""
    if is_empty(tensor) or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors of one storage have an element in common."""
    (begin, end), (low, high) = extent(one), extent(other)
    if end <= low or high <= begin:
        return False
    if one.element_size() != other.element_size():
        return True
    # Columns of one matrix lie between each other's elements.
    places = torch.arange(max(end, high) // one.element_size())
    mine, theirs = (
        places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1) for tensor in (one, other)
    )
    return bool(torch.isin(mine, theirs).any())
