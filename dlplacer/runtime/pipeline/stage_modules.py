"""The modules that the stages of a pipeline run: a forward pass cut up, with live values passed along."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from dlplacer.core.errors import InputError
from dlplacer.runtime.pipeline.forward_graph import Forward, named_tensor


@dataclass(frozen=True)
class StageModule:
    """A part of a model.

    Attributes
    ----------
    module
        Takes the live values of the stage before as positional arguments and the model's inputs by keyword; returns
        the live values for the stage behind, or the model's output. Its parameters are those of the model, under their
        names.
    receives, sends
        Names of the live values: made in a stage before, read in this one or behind it.
    examples_in, examples_out
        Tensors on the meta device with their shapes.
    """

    module: nn.Module
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    examples_in: tuple[torch.Tensor, ...]
    examples_out: tuple[torch.Tensor, ...]


def stage_modules(forward: Forward, stage_of: Mapping[str, int], stages: int) -> list[StageModule]:
    """A module for each stage; together they compute what the model does.

    A value that a later stage reads passes through all stages between, since a stage talks to its neighbours alone.

    Parameters
    ----------
    stage_of
        Op → stage; an op that is not named runs with what it reads.

    Raises
    ------
    InputError
        If a stage reads from a later one, or two stages read one parameter.
    """
    place = _places(forward, stage_of)
    last_use = {node.name: max([place[node.name], *_uses(node, place)]) for node in forward.nodes}
    last_use[forward.output.name] = stages - 1
    _require_one_owner(forward, place)
    live = [
        [node for node in forward.nodes if place[node.name] <= border < last_use[node.name] and _is_handed_on(node)]
        for border in range(stages - 1)
    ]
    return [
        _stage(forward, place, stage, live[stage - 1] if stage else [], live[stage] if stage < stages - 1 else None)
        for stage in range(stages)
    ]


def _places(forward: Forward, stage_of: Mapping[str, int]) -> dict[str, int]:
    place: dict[str, int] = {}
    for node in forward.nodes:
        read = [place[source.name] for source in node.all_input_nodes if source.name in place]
        wanted = stage_of.get(node.name, max(read, default=0))
        if node.target is operator.getitem and read:
            wanted = read[0]
        if read and max(read) > wanted:
            raise InputError(
                f"op {node.name!r} of stage {wanted} reads from stage {max(read)}; cut the model elsewhere"
            )
        place[node.name] = wanted
    return place


def _uses(node: fx.Node, place: Mapping[str, int]) -> list[int]:
    return [place[user.name] for user in node.users if user.name in place]


def _is_handed_on(node: fx.Node) -> bool:
    """Whether the value is a tensor; of a tuple the tensors taken out of it are passed."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def _require_one_owner(forward: Forward, place: Mapping[str, int]) -> None:
    owner: dict[int, tuple[int, str]] = {}
    for node in forward.nodes:
        for source in node.all_input_nodes:
            target = forward.tensors.get(source.name)
            if isinstance(target, str):
                tensor = named_tensor(forward, target)
                stage, name = owner.setdefault(id(tensor), (place[node.name], target))
                if stage != place[node.name]:
                    raise InputError(
                        f"weight {name!r} is read in stages {stage} and {place[node.name]}; all that reads a tied "
                        "weight must be in one stage"
                    )


def _stage(
    forward: Forward, place: Mapping[str, int], stage: int, receives: Sequence[fx.Node], sends: list[fx.Node] | None
) -> StageModule:
    graph = fx.Graph()
    values: dict[str, fx.Node] = {}
    for node in receives:
        values[node.name] = graph.placeholder(f"live_{node.name}")
    for name in forward.inputs:
        values[name] = graph.placeholder(f"input_{name}", default_value=None)
    for node in receives:
        values[node.name] = graph.call_function(_landed, (values[node.name],))
    attributes: dict[str, Any] = {}
    for node in (node for node in forward.nodes if place[node.name] == stage):
        for source in node.all_input_nodes:
            if source.name in forward.tensors and source.name not in values:
                target = forward.tensors[source.name]
                path = target if isinstance(target, str) else f"constant_{source.name}"
                attributes[path] = named_tensor(forward, target)
                values[source.name] = graph.get_attr(path)
        values[node.name] = graph.node_copy(node, lambda source: values[source.name])
    returned = [forward.output] if sends is None else sends
    packed = tuple(graph.call_method("contiguous", (values[node.name],)) for node in returned)
    graph.output(packed[0] if sends is None else packed)
    module = fx.GraphModule(attributes, graph)
    trained = _differentiable(forward)
    examples = [tuple(_example(node, node.name in trained) for node in nodes) for nodes in (receives, returned)]
    names = [tuple(node.name for node in nodes) for nodes in (receives, returned)]
    return StageModule(module, names[0], names[1], examples[0], examples[1])


def _differentiable(forward: Forward) -> set[str]:
    """Values that a trained parameter comes before."""
    found: set[str] = set()
    for node in forward.nodes:
        value = node.meta["val"]
        floating = not isinstance(value, torch.Tensor) or value.is_floating_point()
        if floating and node.target is not torch.ops.aten.detach.default:
            for source in node.all_input_nodes:
                target = forward.tensors.get(source.name)
                trained = target is not None and named_tensor(forward, target).requires_grad
                if trained or source.name in found:
                    found.add(node.name)
    return found


def _example(node: fx.Node, differentiable: bool) -> torch.Tensor:
    value = node.meta["val"]
    return torch.empty(value.shape, dtype=value.dtype, device="meta", requires_grad=differentiable)


class _Landing(torch.autograd.Function):
    """A value as it came; its gradient in one piece, as it has to be to travel."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient.contiguous()


def _landed(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    landed: torch.Tensor = _Landing.apply(value)  # type: ignore[no-untyped-call]
    return landed
