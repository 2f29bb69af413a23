"""The optimizer's arithmetic for one parameter, in place: the rules of torch.optim.SGD and torch.optim.Adam."""

import math
from typing import Any

import torch

from dlplacer.frontend.torch.job import Optimizer


class Updater:
    """Applies updates and keeps the state of every parameter.

    Attributes
    ----------
    state
        Parameter name → its state tensors: nothing, (momentum,) or (mean, square).
    """

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._rule = optimizer
        self.state: dict[str, tuple[torch.Tensor, ...]] = {}
        self._steps: dict[str, int] = {}

    def __call__(self, name: str, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update one parameter in place from its gradient."""
        rule = self._rule
        if rule is None:
            return
        if rule.weight_decay:
            gradient = gradient.add(weight, alpha=rule.weight_decay)
        if rule.kind == "sgd":
            weight.add_(gradient, alpha=-rule.lr)
        elif rule.kind == "momentum":
            self._momentum(rule, name, weight, gradient)
        else:
            self._adam(rule, name, weight, gradient)

    def state_dict(self) -> dict[str, Any]:
        """State and step count of every parameter, as tensors and numbers."""
        return {"state": dict(self.state), "steps": dict(self._steps)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.state, self._steps = dict(saved["state"]), dict(saved["steps"])

    def _momentum(self, rule: Optimizer, name: str, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        if name not in self.state:
            # As torch.optim.SGD: the first momentum is the gradient itself, without dampening.
            self.state[name] = (gradient.clone(memory_format=torch.preserve_format),)
        else:
            self.state[name][0].mul_(rule.momentum).add_(gradient)
        weight.add_(self.state[name][0], alpha=-rule.lr)

    def _adam(self, rule: Optimizer, name: str, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        if name not in self.state:
            self.state[name] = (torch.zeros_like(weight), torch.zeros_like(weight))
        step = self._steps[name] = self._steps.get(name, 0) + 1
        mean, square = self.state[name]
        beta1, beta2 = rule.betas
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(rule.eps)
        weight.addcdiv_(mean, denominator, value=-rule.lr / (1 - beta1**step))
