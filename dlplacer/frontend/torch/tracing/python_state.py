"""A check that a step changes no Python state on which the next step depends."""

from itertools import zip_longest
from typing import Any

from torch import fx, nn

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import name_in_python, writes_in_python
from dlplacer.frontend.torch.refusals import frames_of, line_of
from dlplacer.frontend.torch.tracing.joint import dynamo_graph, tracing
from dlplacer.frontend.torch.tracing.quiet import quiet
from dlplacer.frontend.torch.tracing.step_module import StepModule

_DRAWS = ("rand", "normal", "bernoulli", "multinomial", "poisson", "dropout")


class _TwoSteps(nn.Module):
    """Two steps in a row: Dynamo keeps the Python state of the first, and changes nothing outside its trace."""

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self.step = step

    def forward(self, *args: Any) -> Any:
        first = self.step(*args)
        second = self.step(*args)
        return first, second


def require_same_next_step(step: StepModule, args: tuple[Any, ...]) -> None:
    """Refuse a step that makes other calls, or calls on other values, when it is taken again; names the line."""
    with quiet(), tracing(step.trains):
        graph = dynamo_graph(_TwoSteps(step), args).graph
    calls: dict[str, list[tuple[fx.Node, int]]] = {}
    for node, number in _numbered(graph):
        calls.setdefault(str(frames_of(node)[:1]), []).append((node, number))
    for one, other in zip_longest(*calls.values()) if len(calls) > 1 else ():
        if one is None or other is None or one[1] != other[1]:
            line = next(filter(None, (line_of(call[0]) for call in (other, one) if call is not None)), "")
            raise CaptureError(
                f"the step changes Python state on which the next step depends{line}; a placed step computes the same "
                "in every step: keep that state in a buffer and change it in place, or give it as an input"
            )


def _numbered(graph: fx.Graph) -> list[tuple[fx.Node, int]]:
    """The calls that depend on inputs, write or draw; equal calls on equal values have equal numbers.

    Other calls make the same value in every step, as a mask that the first step keeps for the next.
    """
    written = {read for node in graph.nodes if writes_in_python(node) for read in node.all_input_nodes}
    numbers: dict[Any, int] = {}
    number_of: dict[fx.Node, str] = {}
    varying: set[fx.Node] = set()
    calls = []
    for node in graph.nodes:
        arguments = fx.map_arg((node.args, dict(node.kwargs)), lambda read: number_of[read])
        number = numbers.setdefault((_code(node), repr(arguments)), len(numbers))
        number_of[node] = f"value {number}"
        is_call = node.op in ("call_function", "call_method")
        varies = node.op == "placeholder" or node in written or writes_in_python(node) or _draws(node)
        if varies or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            if is_call:
                calls.append((node, number))
    return calls


def _code(node: fx.Node) -> Any:
    """The kind of a node and the function that it calls; the sub-graph of a higher-order op comes without its names."""
    if node.op == "placeholder":
        return node.op, node.target
    value = getattr(node.graph.owning_module, str(node.target), None) if node.op == "get_attr" else None
    return node.op, _unnamed(value.graph) if isinstance(value, fx.GraphModule) else node.target


def _unnamed(graph: fx.Graph) -> tuple[Any, ...]:
    places = {node: f"value {place}" for place, node in enumerate(graph.nodes)}
    return tuple(
        node.op if node.op == "placeholder" else (_code(node), repr(fx.map_arg((node.args, node.kwargs), places.get)))
        for node in graph.nodes
    )


def _draws(node: fx.Node) -> bool:
    return any(sign in name_in_python(node) for sign in _DRAWS)
