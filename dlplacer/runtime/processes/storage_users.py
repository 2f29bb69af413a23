"""The adapter to torch's count of who uses a storage: whether memory can be moved without leaving somebody behind."""

from collections.abc import Iterable

import torch
from torch import nn

_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def shared_outside(tensors: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """Name of the first of these tensors whose memory another tensor uses too; None if there is none.

    Such as a vector that all parameters are views of, or a state dict that somebody keeps: moved to other memory, the
    parameters would not see what is written there any more.
    """
    of_storage: dict[int, dict[int, str]] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    for name, tensor in tensors:
        if type(tensor) in _PLAIN and tensor.device.type == "cpu" and tensor.numel():
            storage = tensor.untyped_storage()
            of_storage.setdefault(storage.data_ptr(), {}).setdefault(id(tensor), name)
            storages.setdefault(storage.data_ptr(), storage)
    for place, names in of_storage.items():
        # Besides the tensors, the object that stands for the storage in Python uses it.
        if torch._C._storage_Use_Count(storages[place]._cdata) > len(names) + 1:
            return next(iter(names.values()))
    return None


def users(tensor: torch.Tensor) -> int:
    """How many tensors use the storage of one, itself included."""
    storage = tensor.untyped_storage()
    # The object that stands for the storage in Python uses it too.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1
