"""Seconds of a pipeline's parts on this core: of single ops to plan with, of whole stages to predict with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.distributed.pipeline_forward import LOSS, Forward, named_tensor
from dlplacer.pipeline.timeline import StageTimes
from dlplacer.profile.op_times import lower_quartile


def op_times(forward: Forward, repeats: int = 5, warm_up: int = 2) -> dict[str, tuple[float, float]]:
    """Op → seconds for a micro-batch, forward and backward, each op run by itself under autograd on this thread."""
    environment: dict[str, Any] = dict(zip(forward.inputs, forward.chunks()[0], strict=True))
    for name, target in forward.tensors.items():
        environment[name] = named_tensor(forward, target)
    found = {}
    for node in forward.nodes:
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda source: environment[source.name])
        target: Any = node.target
        call = _Call(lambda a=args, k=kwargs, t=target: t(*a, **k), (args, kwargs))
        found[node.name] = call.times(repeats, warm_up)
        environment[node.name] = call.result
    output, targets = environment[forward.output.name], forward.targets()[0]
    loss: Any = forward.job.loss
    found[LOSS] = _Call(lambda: loss(output, *targets), (output,)).times(repeats, warm_up)
    return found


def stage_times(
    module: nn.Module,
    received: Sequence[torch.Tensor],
    inputs: dict[str, torch.Tensor],
    loss: Callable[[Any], torch.Tensor] | None,
    repeats: int = 5,
    warm_up: int = 2,
) -> StageTimes:
    """Seconds of a stage's forward and backward for a micro-batch, gradients accumulated, on this thread.

    Parameters
    ----------
    received
        Live values that come in; those that carry a gradient require one.
    loss
        Of the last stage: output → scalar.
    """
    ahead, behind = [], []
    for number in range(warm_up + repeats):
        values = [value.detach().requires_grad_(value.requires_grad) for value in received]
        begin = time.perf_counter()
        output = module(*values, **inputs)
        outputs = [loss(output)] if loss is not None else pytree.tree_leaves(output)
        middle = time.perf_counter()
        roots = [value for value in outputs if value.requires_grad]
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        end = time.perf_counter()
        if number >= warm_up:
            ahead.append(middle - begin)
            behind.append(end - middle)
    return StageTimes(lower_quartile(ahead), lower_quartile(behind))


@dataclass
class _Call:
    """An op with its arguments."""

    run: Callable[[], Any]
    arguments: Any
    result: Any = None

    def times(self, repeats: int, warm_up: int) -> tuple[float, float]:
        leaves = [leaf for leaf in pytree.tree_leaves(self.arguments) if isinstance(leaf, torch.Tensor)]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        ahead, behind = [], []
        for number in range(warm_up + repeats):
            begin = time.perf_counter()
            result = self.run()
            middle = time.perf_counter()
            roots = [
                leaf
                for leaf in pytree.tree_leaves(result)
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad and wanted
            ]
            seeds = [torch.ones_like(root) for root in roots]
            before = time.perf_counter()
            if roots:
                torch.autograd.grad(roots, wanted, seeds, allow_unused=True)
            after = time.perf_counter()
            if number >= warm_up:
                ahead.append(middle - begin)
                behind.append(after - before)
        self.result = pytree.tree_map_only(torch.Tensor, _cut_off, result)
        return lower_quartile(ahead), lower_quartile(behind) if roots else 0.0


def _cut_off(tensor: torch.Tensor) -> torch.Tensor:
    """The value without its history, requiring a gradient if it did."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
