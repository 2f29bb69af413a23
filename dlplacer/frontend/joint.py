"""The adapter to torch's private tracing APIs: a step module → its ATen graph, forward and backward joined.

Known to work with torch 2.11 to 2.13; a golden test holds what it relies on.
"""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from dlplacer.errors import CaptureError


@dataclass(frozen=True)
class Slot:
    """What an input or output of the traced graph is.

    Attributes
    ----------
    role
        Inputs: ``parameter``, ``buffer``, ``input``, ``tangent``; outputs: ``output``, ``gradient``, ``mutation``.
    name
        Fully qualified name of the parameter or buffer, else "".
    position
        Index among the flat inputs or outputs, else 0.
    """

    role: str
    name: str = ""
    position: int = 0


@dataclass(frozen=True)
class Traced:
    """An ATen graph with the meaning of its inputs and outputs; `output_spec` rebuilds the nested outputs."""

    module: fx.GraphModule
    inputs: dict[str, Slot]
    output_slots: tuple[Slot | None, ...]
    output_spec: Any

    @property
    def outputs(self) -> list[tuple[fx.Node, Slot]]:
        """The returned nodes as the graph stands now, with what they are."""
        returned = self.module.graph.output_node().args[0]
        return [
            (node, slot)
            for node, slot in zip(returned, self.output_slots, strict=True)
            if isinstance(node, fx.Node) and slot is not None
        ]


def trace(step: nn.Module, args: tuple[Any, ...], trains: bool) -> Traced:
    """The ATen graph of ``step(*args)``, where all tensors are stand-ins of one fake tensor mode.

    Raises
    ------
    CaptureError
        With the line of the user's model that cannot be captured, and the way out.
    """
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with _quiet(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if trains else torch.no_grad())
        torch._dynamo.reset()
        try:
            captured = dynamo_graph_capture_for_export(step)(*args)
            context = torch._guards.TracingContext(captured.meta["fake_mode"])
            stack.enter_context(torch._guards.tracing(context))
            joint = aot_export_joint_with_descriptors(stack, captured, args)
        except Exception as error:
            raise CaptureError(_explain(error)) from error
        finally:
            torch._dynamo.reset()
        return _decode(joint)


def module_path(node: fx.Node) -> str | None:
    """Path of the module that a node comes from, without the step's own prefix; None outside any module."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = list(stack.values())[-1][0]
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path)
    parts = path.split(".")
    return ".".join(parts[parts.index("module") + 1 :]) or None if "module" in parts else None


def is_backward(node: fx.Node) -> bool:
    """Whether a node belongs to the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"


def sequence_number(node: fx.Node) -> int | None:
    """Equal for a forward op and the ops of its backward."""
    number: int | None = node.meta.get("seq_nr")
    return number


def _decode(joint: Any) -> Traced:
    inputs = {}
    for node in joint.graph_module.graph.find_nodes(op="placeholder"):
        inputs[node.name] = _input_slot(node.meta["desc"])
    output = joint.graph_module.graph.output_node()
    slots = tuple(None if entry is None else _output_slot(entry) for entry in output.meta["desc"])
    return Traced(joint.graph_module, inputs, slots, joint.out_spec)


def _input_slot(description: Any) -> Slot:
    kind = type(description).__name__
    if kind == "ParamAOTInput":
        return Slot("parameter", description.target.removeprefix("module."))
    if kind == "BufferAOTInput":
        return Slot("buffer", description.target.removeprefix("module."))
    if kind == "PlainAOTInput":
        return Slot("input", position=description.idx)
    if kind == "TangentAOTInput":
        return Slot("tangent", position=getattr(description.output, "idx", 0))
    raise CaptureError(f"the traced graph has an input of unknown meaning, {description}; please report this model")


def _output_slot(description: Any) -> Slot:
    kind = type(description).__name__
    if kind == "PlainAOTOutput":
        return Slot("output", position=description.idx)
    if kind == "GradAOTOutput":
        return Slot("gradient", _input_slot(description.grad_of).name)
    if kind == "InputMutationAOTOutput":
        changed = _input_slot(description.mutated_input)
        if changed.role == "input":
            raise CaptureError(
                f"the model changes its input {changed.position} in place; change a copy of it (x = x.clone()) instead"
            )
        return Slot("mutation", changed.name)
    raise CaptureError(f"the traced graph has an output of unknown meaning, {description}; please report this model")


def _explain(error: Exception) -> str:
    text = str(error).strip()
    lines = re.findall(r'File "([^"]+)", line (\d+), in (\w+)\n\s+(.+)', text)
    mine = [entry for entry in lines if "/torch/" not in entry[0] and "/dlplacer/frontend/" not in entry[0]]
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    where = f" at {mine[-1][0]}:{mine[-1][1]} ({mine[-1][3].strip()})" if mine else ""
    return (
        f"the model cannot be captured{where}: {first.rstrip('.')}; values must not decide control flow: use torch.where "
        "or torch.cond, or move that line out of the module"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's tracing warns about its own internals; none of it concerns the user."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


