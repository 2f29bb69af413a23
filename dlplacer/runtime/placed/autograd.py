"""The placed step as one autograd function: the engine sees the loss and the parameters, nothing between."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dlplacer.core.errors import InputError
from dlplacer.planning.interrupt import kept_interrupts
from dlplacer.runtime.executor.run import StepInputs
from dlplacer.runtime.placed.gradients import apart
from dlplacer.runtime.placed.variant import Variant


class PlacedStep(torch.autograd.Function):
    """Forward program in ``forward``, backward program in ``backward``; activations stay on their devices between."""

    @staticmethod
    def forward(ctx: Any, variant: Variant, inputs: StepInputs, *differentiated: torch.Tensor) -> torch.Tensor:
        """The loss. The remaining arguments are the parameters that have a gradient, in the executable's order.

        If there are none, one tensor in their place has the engine call `backward`.
        """
        state = variant.stages[0].start(inputs)
        variant.stages[0].run(state)
        ctx.variant, ctx.state, ctx.step = variant, state, inputs.step
        ctx.versions, ctx.count = variant.versions(inputs), len(differentiated)
        # A copy: the state must not hold the tensor whose history holds the state.
        loss: torch.Tensor = variant.outputs(state)[0].clone()
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        """Gradients of the parameters."""
        variant = ctx.variant
        with variant.backward_call(ctx.step) as begins:
            state = ctx.state
            if state is None:
                raise InputError("backward was called twice on one loss; the placed step keeps its activations for one")
            changed = [name for name, old in variant.versions(state.inputs).items() if old != ctx.versions[name]]
            if changed:
                raise InputError(
                    f"{changed[0]!r} was changed between forward and backward, which read it both; change it after "
                    "backward, as optimizers do"
                )
            begins()
            # The engine keeps ctx as long as the loss lives; the activations must not live as long.
            ctx.state = None
            state.inputs = variant.with_tangent(state.inputs, tangent)
            with kept_interrupts():
                variant.stages[1].run(state)
            gradients = [*apart(variant.gradients(state).values())]
            return (None, None, *gradients, *[None] * (ctx.count - len(gradients)))
