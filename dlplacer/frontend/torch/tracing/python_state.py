"""Python state that a step changes: whether the next step computes something else because of it."""

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.capture_failure import line_of
from dlplacer.frontend.torch.tracing.joint import dynamo_graph, tracing
from dlplacer.frontend.torch.tracing.quiet import quiet
from dlplacer.frontend.torch.tracing.step_module import StepModule


class _TwoSteps(nn.Module):
    """One step after the other: Dynamo keeps what the first leaves in Python, and changes nothing outside its trace."""

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self.step = step

    def forward(self, *args: Any) -> Any:
        return self.step(*args), self.step(*args)


def require_same_next_step(step: StepModule, args: tuple[Any, ...]) -> None:
    """Return if two steps in a row make the same calls on the same numbers.

    Raises
    ------
    CaptureError
        Naming the line where they differ first.
    """
    with quiet(), tracing(step.trains):
        graph = dynamo_graph(_TwoSteps(step), args).graph
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    first, second = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    other = _first_difference(first, second)
    if other is not None:
        raise CaptureError(
            f"the step changes Python state on which the next step depends{line_of(other)}; a placed step computes "
            "the same in every step: keep that state in a buffer and change it in place, or give it as an input"
        )


def _first_difference(first: Sequence[fx.Node], second: Sequence[fx.Node]) -> fx.Node | None:
    counterpart: dict[fx.Node, fx.Node] = {}
    for one, other in zip(first, second, strict=False):
        mapped = fx.map_arg((one.args, dict(one.kwargs)), lambda read: counterpart.get(read, read))
        if _code(one) != _code(other) or repr(mapped) != repr((other.args, dict(other.kwargs))):
            return other
        counterpart[one] = other
    return None if len(first) == len(second) else second[-1]


def _code(node: fx.Node) -> Any:
    """What a node calls; the sub-graph of a higher-order op by its code."""
    if node.op != "get_attr":
        return node.op, node.target
    value = getattr(node.graph.owning_module, str(node.target), None)
    return value.code if isinstance(value, fx.GraphModule) else node.target
