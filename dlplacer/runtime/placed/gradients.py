"""Accumulation of a step's gradients into ``.grad``."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from dlplacer.frontend.torch.tracing.hooks import accumulation_hooks, gradient_hooks, has_tensor_hooks
from dlplacer.frontend.torch.tracing.shared_elements import extent


def add_gradients(parameters: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
    """Add gradients to ``.grad`` as the autograd engine does: in separate memory, laid out like the parameter.

    Hooks of the parameters are called as the engine calls them.

    Parameters
    ----------
    parameters, gradients
        Name → parameter, name → its gradient.
    """
    taken: set[int] = set()
    for name, computed in gradients.items():
        parameter, gradient = parameters[name], computed
        hooked = has_tensor_hooks(parameter)
        if hooked:
            for hook in gradient_hooks(parameter):
                changed = hook(gradient)
                gradient = gradient if changed is None else changed
        present = parameter.grad
        # Two parameters may get views of one tensor, for example the halves of a concatenation: adding to one ``.grad``
        # in place must not change the other.
        if present is not None:
            present.add_(gradient)
        elif (
            gradient is computed
            and gradient.stride() == parameter.stride()
            and (memory := gradient.untyped_storage().data_ptr()) not in taken
        ):
            parameter.grad = gradient
            taken.add(memory)
        else:
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
        if hooked:
            for accumulated in accumulation_hooks(parameter):
                accumulated(parameter)


def apart(gradients: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Gradients for the autograd engine, of which no two share elements.

    The engine makes a tensor that nobody else holds the ``.grad`` of its parameter, and does not see that two of them
    may be views of one memory, as those of the two biases of an LSTM cell are for one example.
    """
    taken: dict[int, list[tuple[int, int]]] = {}
    for gradient in gradients:
        begin, end = extent(gradient)
        spans = taken.setdefault(gradient.untyped_storage().data_ptr(), [])
        yield gradient if all(end <= low or high <= begin for low, high in spans) else gradient.clone()
        spans.append((begin, end))
