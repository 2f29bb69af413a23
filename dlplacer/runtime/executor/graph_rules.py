"""Which ops can be captured in a CUDA graph, and how a run is asked for."""

from dataclasses import dataclass
from operator import getitem

import torch

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.executable import OpCode

MODES = ("off", "auto", "on")
"""``off``: none. ``auto``: stretches of several ops, each compared with its ops once and left alone if it fails.
``on``: every stretch that can be, and one that fails is an error."""

_HOST_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@dataclass(frozen=True)
class GraphRules:
    """What becomes a graph in a mode.

    Attributes
    ----------
    least
        Ops in a graph. Replaying one costs about what issuing two or three ops costs; `auto` wants a clear gain.
    checked
        Whether the first replay is compared with the ops themselves, and a failure is no error.
    """

    least: int
    checked: bool


def graph_rules(mode: str) -> GraphRules | None:
    """The rules of a mode; None for ``off``.

    Raises
    ------
    InputError
        If there is no such mode.
    """
    if mode not in MODES:
        raise InputError(f"cuda_graphs is {mode!r}; use {', '.join(MODES[:-1])} or {MODES[-1]}")
    if mode == "off":
        return None
    return GraphRules(least=8, checked=True) if mode == "auto" else GraphRules(least=2, checked=False)


def refusal(code: OpCode) -> str | None:
    """Why an op cannot be captured; None if it can."""
    if code.random:
        return f"op {code.op!r} draws random numbers: every step seeds them anew"
    if code.role == "update":
        return f"op {code.op!r} updates a parameter: its arithmetic depends on the number of the step"
    for instruction in code.instructions:
        target = instruction.target
        if target is getitem:
            continue
        if not isinstance(target, torch._ops.OpOverload):
            return f"op {code.op!r} is no operator of torch"
        if _HOST_READS.intersection(target.tags):
            return f"op {code.op!r} makes the host wait for numbers ({target})"
        if any(isinstance(value, torch.device) and value.type == "cpu" for value in instruction.kwargs.values()):
            return f"op {code.op!r} copies to the host"
    return None
