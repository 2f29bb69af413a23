"""Gradients of a placed step: through the autograd engine, and into ``.grad``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.tracing.hooks import accumulation_hooks, gradient_hooks, has_tensor_hooks
from dlplacer.frontend.torch.tracing.shared_elements import extent
from dlplacer.planning.interrupt import kept_interrupts
from dlplacer.runtime.executor.run import StepInputs
from dlplacer.runtime.placed.variant import Variant


def add_gradients(parameters: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
    """Add gradients to ``.grad`` of the parameters of these names as the autograd engine does: in separate memory, laid
    out like the parameter, and with the calls of its hooks.
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


class PlacedStep(torch.autograd.Function):
    """Forward program in ``forward``, backward program in ``backward``; activations stay on their devices between."""

    @staticmethod
    def forward(ctx: Any, variant: Variant, inputs: StepInputs, *differentiated: torch.Tensor) -> torch.Tensor:
        """The loss. The remaining arguments are the parameters that have a gradient, in the executable's order.

        If there are none, one tensor in their place has the engine call `backward`.
        """
        state = variant.stages[0].start(inputs)
        variant.stages[0].run(state)
        ctx.variant, ctx.state = variant, state
        ctx.versions, ctx.count = variant.versions(inputs), len(differentiated)
        # A copy: the state must not hold the tensor whose history holds the state.
        loss: torch.Tensor = variant.outputs(state)[0].clone()
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        """Gradients of the parameters."""
        variant = ctx.variant
        state = ctx.state
        if state is None:
            raise InputError("backward was called twice on one loss; the placed step keeps its activations for one")
        changed = [name for name, old in variant.versions(state.inputs).items() if old != ctx.versions[name]]
        if changed:
            raise InputError(
                f"{changed[0]!r} was changed between forward and backward, which read it both; change it after "
                "backward, as optimizers do"
            )
        # The engine keeps ctx as long as the loss lives; the activations must not live as long.
        ctx.state = None
        state.inputs = variant.with_tangent(state.inputs, tangent)
        with kept_interrupts():
            variant.stages[1].run(state)
        gradients = [*apart(variant.gradients(state).values())]
        return (None, None, *gradients, *[None] * (ctx.count - len(gradients)))
