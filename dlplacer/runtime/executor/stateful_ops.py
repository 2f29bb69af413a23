"""Ops with state: random draws, seeded by (step seed, op id), and parameter updates with torch.optim's kernels."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from dlplacer.frontend.torch.job import Optimizer
from dlplacer.frontend.torch.tracing.kernels import laid_out
from dlplacer.runtime.devices.open import kind_of

_locks: dict[tuple[int, torch.device], threading.Lock] = {}


def generator_lock(device: torch.device) -> threading.Lock:
    """The lock of a device's default generator; all CPU devices share one, and so do the logical devices of a GPU."""
    # A forked process has its own locks: no thread there would release a lock held at the fork.
    return _locks.setdefault((os.getpid(), torch.device(device.type, device.index or 0)), threading.Lock())


@contextlib.contextmanager
def drawn_with(seed: int, op: str, device: torch.device) -> Iterator[None]:
    """Seed a device's default generator for one op, and restore its state afterwards."""
    with generator_lock(device):
        generator = kind_of(device).generator(device.index or 0)
        state = generator.get_state()
        try:
            # Not hash(): it is salted per process, and ranks must draw the same numbers.
            digest = hashlib.sha256(f"{seed}/{op}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "little") % 2**63)
            yield
        finally:
            generator.set_state(state)


class Updater:
    """Applies updates in place, and keeps the optimizer state of every parameter.

    `state`: parameter name → its state tensors: (momentum,) or (mean, square, number of steps); plain SGD has none.
    """

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._rule = optimizer
        self.state: dict[str, tuple[torch.Tensor, ...]] = {}

    def __call__(
        self, names: Sequence[str], weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Update the parameters of one device from their gradients."""
        if self._rule is None:
            return
        # Fused kernels walk through memory: gradients need the layouts of their weights.
        like_weights = [
            laid_out(gradient, weight.stride()) for weight, gradient in zip(weights, gradients, strict=True)
        ]
        update = self._adam if self._rule.kind == "adam" else self._sgd
        update(self._rule, names, [*weights], like_weights)

    def _sgd(
        self, rule: Optimizer, names: Sequence[str], weights: list[torch.Tensor], gradients: list[torch.Tensor]
    ) -> None:
        momentum = rule.momentum if rule.kind == "momentum" else 0.0
        momenta: list[torch.Tensor | None] = [self.state.get(name, (None,))[0] for name in names]
        rates: dict[str, Any] = {"lr": rule.lr, "weight_decay": rule.weight_decay, "momentum": momentum}
        sgd(weights, gradients, momenta, foreach=True, dampening=0.0, nesterov=False, maximize=False, **rates)
        if rule.kind == "momentum":
            self.state.update((name, (made,)) for name, made in zip(names, momenta, strict=True) if made is not None)

    def _adam(
        self, rule: Optimizer, names: Sequence[str], weights: list[torch.Tensor], gradients: list[torch.Tensor]
    ) -> None:
        for name, weight in zip(names, weights, strict=True):
            if name not in self.state:
                step = torch.zeros((), dtype=torch.float32, device=weight.device)
                self.state[name] = (torch.zeros_like(weight), torch.zeros_like(weight), step)
        rates: dict[str, Any] = {"lr": rule.lr, "weight_decay": rule.weight_decay, "eps": rule.eps}
        rates |= {"beta1": rule.betas[0], "beta2": rule.betas[1], "amsgrad": False, "maximize": False}

        def is_packed(entry: tuple[torch.Tensor, ...]) -> bool:
            # A fused kernel needs real weights without gaps in memory.
            return entry[0].is_floating_point() and length(entry[0]) == entry[0].numel()

        state = (self.state[name] for name in names)
        entries = [(*pair, *own) for *pair, own in zip(weights, gradients, state, strict=True)]
        for fused, alike in groupby(sorted(entries, key=is_packed), is_packed):
            own, changes, means, squares, steps = map(list, zip(*alike, strict=True))
            has_complex = any(weight.is_complex() for weight in own)
            adam(own, changes, means, squares, [], steps, fused=fused, has_complex=has_complex, **rates)


def length(tensor: torch.Tensor) -> int:
    """The number of elements in memory from a tensor's first element to its last, gaps included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size)
