"""The tensors that traced code holds, on the devices of their ops: as they are now, not as they were at first."""

from collections.abc import Callable, Mapping

import torch


class PlacedConstants:
    """Constants of a step where its ops read them.

    Parameters
    ----------
    constants
        Op id → tensor; a user may write to it between steps, as to any tensor that is neither parameter nor buffer.
    moved
        (op id, tensor) → the tensor on the device of the op: itself, or a copy there.
    """

    def __init__(
        self, constants: Mapping[str, torch.Tensor], moved: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> None:
        self._constants, self._moved = constants, moved
        self._there = {op: moved(op, tensor) for op, tensor in constants.items()}
        self._copied = {op: _version(tensor) for op, tensor in constants.items() if self._there[op] is not tensor}

    def now(self) -> Mapping[str, torch.Tensor]:
        """Op id → tensor on its device, copied anew if it was written to: a step under way may still read the old."""
        for op, version in self._copied.items():
            tensor = self._constants[op]
            if (written := _version(tensor)) != version:
                self._there[op], self._copied[op] = self._moved(op, tensor), written
        return self._there


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to in place; those made in inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version
