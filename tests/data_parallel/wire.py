"""The messages that torch.distributed really sends: its collectives as the dispatcher sees them."""

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Wire(TorchDispatchMode):
    """Notes (collective, bytes of its largest tensor) of every collective that is called while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            size = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
            self.messages.append((func.overloadpacket.__name__.strip("_"), size))
        return func(*args, **(kwargs or {}))

    def sizes(self, collective: str) -> list[int]:
        """Bytes of the messages of one collective, in the order sent."""
        return [size for name, size in self.messages if collective in name]
