"""What a step does with the gradients that it computed."""

from collections.abc import Mapping

import torch


def add_gradients(parameters: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
    """Add gradients to ``.grad`` as the autograd engine does: each in memory of its own, laid out like its parameter.

    Parameters
    ----------
    parameters, gradients
        Name → parameter, name → its gradient.
    """
    taken: set[int] = set()
    for name, gradient in gradients.items():
        parameter = parameters[name]
        memory = gradient.untyped_storage().data_ptr()
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        elif gradient.stride() == parameter.stride() and memory not in taken:
            parameter.grad = gradient
            taken.add(memory)
        else:
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
