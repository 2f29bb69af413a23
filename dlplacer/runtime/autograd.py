"""The placed step as one autograd function: the engine sees the loss and the parameters, nothing between."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dlplacer.errors import InputError
from dlplacer.runtime.compile import StepInputs
from dlplacer.runtime.variant import Variant


class PlacedStep(torch.autograd.Function):
    """Forward program in ``forward``, backward program in ``backward``; activations stay on their devices between."""

    @staticmethod
    def forward(ctx: Any, variant: Variant, inputs: StepInputs, *_: torch.Tensor) -> torch.Tensor:
        """The loss. The remaining arguments are the parameters that have a gradient, in the executable's order."""
        state = variant.stages[0].start(inputs)
        variant.stages[0].run(state)
        ctx.variant, ctx.state = variant, state
        loss: torch.Tensor = variant.outputs(state)[0]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        """Gradients of the parameters."""
        variant, state = ctx.variant, ctx.state
        if state is None:
            raise InputError("backward was called twice on one loss; the placed step keeps its activations for one")
        ctx.state = None
        state.inputs = variant.with_tangent(state.inputs, tangent)
        variant.stages[1].run(state)
        return (None, None, *variant.gradients(state).values())
