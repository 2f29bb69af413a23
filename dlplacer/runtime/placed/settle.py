"""Choosing how devices run ahead of time, by steps that leave nothing behind."""

import copy
from collections.abc import Callable

import torch

from dlplacer.runtime.placed.placed_module import PlacedModule

_MOST_STEPS = 600
"""More than a trial takes; the choice is left open if steps end by themselves, as they do with other inputs."""


def settle(placed: PlacedModule, step: Callable[[], object]) -> None:
    """Take a step until it tries out nothing any more (`PlacedModule.is_settled`), and leave the module as it was.

    Parameters, buffers, gradients, the optimizer's state, random numbers and the count of steps are put back.

    Parameters
    ----------
    step
        A step of the module.
    """
    if placed.is_settled:
        return
    tensors = [*placed.parameters(), *placed.buffers()]
    kept = [tensor.detach().clone() for tensor in tensors]
    gradients = [parameter.grad for parameter in placed.parameters()]
    own = [None if gradient is None else gradient.clone() for gradient in gradients]
    updater = copy.deepcopy(placed.updater.state_dict())
    draws, steps_done, numbers = placed.draws.state_dict(), placed.steps_done, torch.get_rng_state()
    try:
        for _ in range(_MOST_STEPS):
            step()
            if placed.is_settled:
                break
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, kept, strict=True):
                tensor.copy_(before)
            for parameter, gradient, summand in zip(placed.parameters(), gradients, own, strict=True):
                parameter.grad = gradient
                if gradient is not None and summand is not None:
                    gradient.copy_(summand)
        placed.updater.load_state_dict(updater)
        torch.set_rng_state(numbers)
        placed.draws.load_state_dict(draws)
        placed.steps_done = steps_done
