"""Plain PyTorch made to draw the same random numbers as a placed step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.frontend.torch.executable import Executable
from dlplacer.frontend.torch.nodes import draws
from dlplacer.runtime.executor.random_state import drawn_with


def random_ops(executable: Executable) -> list[str]:
    """Ids of the ops that draw random numbers, in the order of the model's code."""
    return [code.op for code in executable.codes.values() if code.random]


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, the n-th random call draws what the n-th of the given ops draws in the given step.

    Attributes
    ----------
    drawn
        Number of random calls so far. If there are more or fewer than ops, the draws were not the same.
    """

    def __init__(self, ops: Sequence[str], seed: int, step: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops, self._seed, self._step, self._device = ops, seed, step, device
        self.drawn = 0

    @property
    def complete(self) -> bool:
        """Whether every op has had its counterpart, and no call was without."""
        return self.drawn == len(self._ops)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not draws(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        self.drawn += 1
        if self.drawn > len(self._ops):
            return func(*args, **(kwargs or {}))
        with drawn_with(self._seed, self._step, self._ops[self.drawn - 1], self._device):
            return func(*args, **(kwargs or {}))
