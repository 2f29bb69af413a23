"""What makes the code of a segment callable: PyTorch as it is, or a compiler."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Protocol

import torch
from torch import fx

from dlplacer.core.errors import RunError, first_line
from dlplacer.frontend.torch.executable import OpCode
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.boxed_code import boxed_module
from dlplacer.runtime.executor.segment_graph import SegmentGraph

SegmentFunction = Callable[[list[Any]], Sequence[Any]]
"""Takes its inputs out of a list, and returns its outputs."""


@dataclass(frozen=True)
class SegmentUse:
    """What surrounds a segment.

    Attributes
    ----------
    lasting
        Values among its inputs that are the same tensors in every step.
    fresh
        Values of the program that outlive the step.
    """

    device: RuntimeDevice
    lasting: frozenset[str]
    fresh: frozenset[str]


class SegmentBackend(Protocol):
    """A way to call segments.

    Attributes
    ----------
    leaves_values
        Whether tensors stay where they are until the next run, so that runs must not overlap.
    """

    leaves_values: bool

    def refusal(self, code: OpCode) -> str | None:
        """Why an op cannot be part of a segment of this backend; None if it can."""

    def function(self, code: SegmentGraph, use: SegmentUse) -> SegmentFunction:
        """The function of a segment."""


class Eager:
    """Calls one kernel after another, in straight-line code that torch.fx generates."""

    leaves_values = False

    def refusal(self, code: OpCode) -> str | None:  # noqa: ARG002
        """None: every op can be called."""
        return None

    def function(self, code: SegmentGraph, use: SegmentUse | None = None) -> SegmentFunction:  # noqa: ARG002
        """The generated code."""
        function: SegmentFunction = boxed_module(code.graph, code.attributes).forward
        return function


class Inductor:
    """Compiles a segment with TorchInductor when it is first called.

    Ops that draw random numbers and updates of parameters stay eager.
    """

    leaves_values = False

    def refusal(self, code: OpCode) -> str | None:
        """As `captured_refusal`."""
        return captured_refusal(code)

    def function(self, code: SegmentGraph, use: SegmentUse) -> SegmentFunction:  # noqa: ARG002
        """A function that compiles at its first call."""
        return _Compiled(fx.GraphModule(code.attributes, code.graph, "Segment"))


_compiling = threading.Lock()


@dataclass
class _Compiled:
    module: fx.GraphModule
    _function: Callable[..., Sequence[Any]] | None = field(default=None)

    def __call__(self, boxed: list[Any]) -> Sequence[Any]:
        if self._function is None:
            # Torch's compilers keep state of the process.
            with _compiling:
                self._function = self._compiled(boxed)
        made = self._function(*boxed)
        boxed.clear()
        return made

    def _compiled(self, args: list[Any]) -> Callable[..., Sequence[Any]]:
        import torch._inductor

        try:
            compiled: Callable[..., Sequence[Any]] = torch._inductor.compile(self.module, list(args))
        except Exception as error:
            raise RunError(
                f"TorchInductor cannot compile a segment: {first_line(error)}; use segments='eager'"
            ) from error
        return compiled


def captured_refusal(code: OpCode) -> str | None:
    """Why an op can be in no compiled segment and no CUDA graph; None if it can."""
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
    return None


_HOST_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
