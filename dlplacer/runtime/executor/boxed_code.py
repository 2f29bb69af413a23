"""The adapter to torch.fx's code generation: functions that take their arguments in a list, which they empty."""

from typing import Any

from torch import fx
from torch.fx.graph import CodeGen


class BoxedCode(CodeGen):
    """Writes ``forward(self, boxed)``, which takes every argument out of the list ``boxed``.

    The caller of a function with positional arguments keeps each of them until the function returns. Taken out of a
    list, an argument lives until its last use, after which the generated code drops it.
    """

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:  # noqa: ARG002
        """The head of the function: one assignment for each placeholder."""
        names = [text.split(":")[0].split("=")[0].strip() for text in free_vars if text != "self"]
        lines = [f"def forward(self, boxed){maybe_return_annotation}:"]
        if names:
            lines += [f"    {', '.join(names)}, = boxed", "    boxed.clear()"]
        return "\n".join(lines)


def boxed_module(graph: fx.Graph, attributes: dict[str, Any]) -> fx.GraphModule:
    """The module of a graph, whose ``forward`` takes a list."""
    graph.set_codegen(BoxedCode())
    return fx.GraphModule(attributes, graph, "Segment")
