"""Seconds of a pipeline's parts on this core: of single ops to plan with, of whole stages to predict with.

Processor time of the thread is what counts: it is the time that passes on a core that the thread has to itself.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.planning.pipeline.pipeline_timeline import StageTimes
from dlplacer.runtime.pipeline.forward_graph import LOSS, Forward, named_tensor
from dlplacer.runtime.pipeline.stage_modules import StageModule
from dlplacer.runtime.profile.quartile import lower_quartile


def op_times(forward: Forward, repeats: int = 5, warm_up: int = 2) -> dict[str, tuple[float, float]]:
    """Op → seconds for a micro-batch, forward and backward, each op run by itself under autograd on this thread."""
    environment: dict[str, Any] = dict(zip(forward.inputs, forward.chunks()[0], strict=True))
    environment.update((name, named_tensor(forward, target)) for name, target in forward.tensors.items())
    found = {}
    for node in forward.nodes:
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda source: environment[source.name])
        call = _Call(partial(cast(Callable[..., Any], node.target), *args, **kwargs), (args, kwargs))
        found[node.name] = call.times(repeats, warm_up)
        environment[node.name] = call.result
    output, targets = environment[forward.output.name], forward.targets()[0]
    loss: Any = forward.job.loss
    found[LOSS] = _Call(lambda: loss(output, *targets), (output,)).times(repeats, warm_up)
    return found


def stage_times(
    part: StageModule,
    received: Sequence[torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    loss: Callable[[Any], torch.Tensor] | None,
    in_two: bool = False,
    repeats: int = 7,
    warm_up: int = 3,
) -> StageTimes:
    """Seconds of a stage's forward and backward for a micro-batch, gradients accumulated, on this thread.

    Parameters
    ----------
    received
        Live values that come in.
    loss
        Of the last stage: output → scalar.
    in_two
        Whether the backward runs in two parts, for the inputs and for the weights, by torch's own functions.
    """
    found: dict[str, list[float]] = {"F": [], "B": [], "I": [], "W": []}
    for number in range(warm_up + repeats):
        times = _one_pass(part, received, inputs, loss, in_two)
        if number >= warm_up:
            for kind, seconds in times.items():
                found[kind].append(seconds)
    ahead_s, behind_s, first_s, second_s = (median(times) if times else 0.0 for times in found.values())
    whole_s = first_s + second_s if in_two else behind_s
    return StageTimes(ahead_s, whole_s, second_s, _scaling_s(part.module), first_s if in_two else None)


def _scaling_s(module: nn.Module) -> float:
    """Dividing all gradients by the number of micro-batches, at the end of a step."""
    begin = time.thread_time()
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(1.0)
    return time.thread_time() - begin


def _one_pass(
    part: StageModule,
    received: Sequence[torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    loss: Callable[[Any], torch.Tensor] | None,
    in_two: bool,
) -> dict[str, float]:
    from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

    carrying = [example.requires_grad for example in part.examples_in]
    values = [value.detach().requires_grad_(wanted) for value, wanted in zip(received, carrying, strict=True)]
    begin = time.thread_time()
    output = part.module(*values, **inputs)
    outputs = [loss(output)] if loss is not None else list(pytree.tree_leaves(output))
    middle = time.thread_time()
    seeds: Any = (
        None if loss is not None else [torch.ones_like(root) if root.requires_grad else None for root in outputs]
    )
    all_values = [*values, *inputs.values()]
    before = time.thread_time()
    if not in_two:
        stage_backward(outputs[0] if loss is not None else tuple(outputs), seeds, all_values)
        return {"F": middle - begin, "B": time.thread_time() - before}
    weights = list(part.module.parameters())
    if not received:
        stage_backward(tuple(outputs), seeds, all_values)
        return {"F": middle - begin, "I": 0.0, "W": time.thread_time() - before}
    _, groups = stage_backward_input(outputs, seeds, all_values, iter(weights))
    between = time.thread_time()
    stage_backward_weight(iter(weights), groups)
    return {"F": middle - begin, "I": between - before, "W": time.thread_time() - between}


@dataclass
class _Call:
    """An op with its arguments; gradients of parameters add up, as over the micro-batches of a step."""

    run: Callable[[], Any]
    arguments: Any
    result: Any = None

    def times(self, repeats: int, warm_up: int) -> tuple[float, float]:
        leaves = [leaf for leaf in pytree.tree_leaves(self.arguments) if isinstance(leaf, torch.Tensor)]
        passing = [leaf for leaf in leaves if leaf.requires_grad and not isinstance(leaf, nn.Parameter)]
        ahead, behind = [], []
        for number in range(warm_up + repeats):
            for leaf in passing:
                leaf.grad = None
            begin = time.thread_time()
            result = self.run()
            middle = time.thread_time()
            outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            roots = [leaf for leaf in outputs if leaf.grad_fn is not None]
            seeds = [torch.ones_like(root) for root in roots]
            before = time.thread_time()
            if roots:
                torch.autograd.backward(roots, seeds)
            after = time.thread_time()
            if number >= warm_up:
                ahead.append(middle - begin)
                behind.append(after - before)
        self.result = pytree.tree_map_only(torch.Tensor, _cut_off, result)
        return lower_quartile(ahead), lower_quartile(behind) if roots else 0.0


def _cut_off(tensor: torch.Tensor) -> torch.Tensor:
    """The value without its history, requiring a gradient if it did."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
