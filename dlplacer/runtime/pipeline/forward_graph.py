"""The forward pass of a job as whole ops, an LSTM among them: what the stages of a pipeline run, under autograd."""

import contextlib
import operator
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError, InputError
from dlplacer.core.graph import Edge, Op, OpGraph
from dlplacer.frontend.torch.flops import tensor_bytes
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.nodes import kind_of, output_specs, picked_output

LOSS = "loss"
_BACKWARD = ".backward"


@dataclass(frozen=True)
class Forward:
    """A job's forward pass for one micro-batch, as torch.export sees it.

    Attributes
    ----------
    nodes
        The calls, in the order of the program.
    tensors
        Placeholder → name of the parameter or buffer that it is, or the constant itself.
    inputs
        Placeholders of the job's arguments, in order.
    output
        The node that the module returns.
    """

    job: Job
    micro_batches: int
    nodes: tuple[fx.Node, ...]
    tensors: Mapping[str, str | torch.Tensor]
    inputs: tuple[str, ...]
    output: fx.Node

    def chunks(self) -> list[tuple[torch.Tensor, ...]]:
        """[micro-batch] → its part of the job's arguments."""
        return _chunks(self.job.args, self.micro_batches)

    def targets(self) -> list[tuple[torch.Tensor, ...]]:
        """[micro-batch] → its part of the job's targets."""
        return _chunks(self.job.targets, self.micro_batches)


def forward_of(job: Job, micro_batches: int) -> Forward:
    """The forward pass of a training job for a part of its batch.

    Raises
    ------
    InputError
        If the job does not train, its loss is in the module, or its arguments cannot be cut along their first
        dimension.
    CaptureError
        If torch.export cannot trace the module.
    """
    _require_pipelined(job, micro_batches)
    part = _chunks(job.args, micro_batches)[0]
    try:
        with _quiet(), torch.enable_grad():
            exported = torch.export.export(job.module, part)
    except Exception as error:
        raise CaptureError(
            f"torch.export cannot trace {type(job.module).__name__}, which pipeline stages are built from: {error}"
        ) from error
    signature = exported.graph_signature
    tensors: dict[str, str | torch.Tensor] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for name, target in signature.inputs_to_lifted_tensor_constants.items():
        tensors[name] = exported.constants[target]
    calls = tuple(node for node in exported.graph.nodes if node.op == "call_function")
    returned = pytree.tree_leaves(exported.graph.output_node().args)
    if len(returned) != 1 or len(signature.user_outputs) != 1:
        raise InputError(
            f"{type(job.module).__name__} returns {len(signature.user_outputs)} tensors; a pipeline passes one to the "
            "loss: wrap the module"
        )
    return Forward(job, micro_batches, calls, tensors, tuple(map(str, signature.user_inputs)), returned[0])


def op_graph(forward: Forward, times: Mapping[str, tuple[float, float]], device_type: str) -> OpGraph:
    """The dataflow graph of the forward pass and of one backward op for each of its ops, for a micro-batch.

    Parameters
    ----------
    times
        Op → measured seconds, forward and backward; the loss is an op of its own.
    """
    ops: list[Op] = []
    edges: list[Edge] = []
    home: dict[str, tuple[str, int]] = {}
    for name in forward.inputs:
        ops.append(Op(name, "input", 0.0, phase="forward"))
        home[name] = name, 0
    for name, target in forward.tensors.items():
        ops.append(_weight(forward, name, target))
        home[name] = name, 0
    for node in forward.nodes:
        if node.target is operator.getitem and node.args[0] in forward.nodes:
            home[node.name] = home[node.all_input_nodes[0].name][0], picked_output(node)
            continue
        home[node.name] = node.name, 0
        specs = output_specs(node.meta["val"])
        ops.append(_forward_op(node.name, kind_of(node), _module(node), specs, times, device_type))
        edges += _edges_into(node.name, node.all_input_nodes, home)
    ops.append(_forward_op(LOSS, LOSS, None, (), times, device_type))
    edges += _edges_into(LOSS, [forward.output], home)
    behind = [(op, times[op.id][1]) for op in reversed(ops) if times.get(op.id, (0.0, 0.0))[1] > 0]
    kept = {op.id for op, _ in behind}
    for op, seconds in behind:
        ops.append(
            Op(op.id + _BACKWARD, f"{op.kind}_backward", {device_type: seconds}, phase="backward", colocate=op.id)
        )
    edges += [
        edge for found in list(edges) if found.target in kept for edge in _edges_behind(found, found.source in kept)
    ]
    return OpGraph(tuple(ops), tuple(edges), name=type(forward.job.module).__name__, source="torch.export, measured")


def named_tensor(forward: Forward, target: str | torch.Tensor) -> torch.Tensor:
    """The job's own parameter or buffer of a name; a constant is itself."""
    if isinstance(target, torch.Tensor):
        return target
    owner, _, name = target.rpartition(".")
    found: torch.Tensor = getattr(forward.job.module.get_submodule(owner), name)
    return found


def _weight(forward: Forward, name: str, target: str | torch.Tensor) -> Op:
    tensor = named_tensor(forward, target)
    if isinstance(target, torch.Tensor):
        return Op(name, "constant", 0.0, phase="forward", output_bytes=tensor_bytes(tensor))
    kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
    size = tensor_bytes(tensor)
    gradient = size if tensor.requires_grad else 0
    group = f"weights of {target.rpartition('.')[0]}"
    return Op(name, kind, 0.0, weight_bytes=size, gradient_bytes=gradient, phase="forward", colocate=group)


def _forward_op(
    name: str, kind: str, module: str | None, specs: Any, times: Mapping[str, tuple[float, float]], device_type: str
) -> Op:
    seconds = {device_type: times.get(name, (0.0, 0.0))[0]}
    return Op(name, kind, seconds, outputs=specs, phase="forward", module=module, colocate=name)


def _edges_into(name: str, read: list[fx.Node], home: Mapping[str, tuple[str, int]]) -> list[Edge]:
    edges = {}
    for node in read:
        source, output = home[node.name]
        edges[source, output] = Edge(source, name, tensor_bytes(node.meta["val"]), output, f"{source}:{output}")
    return list(edges.values())


def _edges_behind(edge: Edge, returns: bool) -> Iterator[Edge]:
    """The backward op reads what its forward op read, and passes a gradient of that size on."""
    yield replace(edge, target=edge.target + _BACKWARD)
    if returns:
        yield Edge(edge.target + _BACKWARD, edge.source + _BACKWARD, edge.bytes)


def _module(node: fx.Node) -> str | None:
    stack = node.meta.get("nn_module_stack")
    return (list(stack.values())[-1][0] or None) if stack else None


def _require_pipelined(job: Job, micro_batches: int) -> None:
    if job.mode != "train" or job.loss is None:
        raise InputError(
            "a pipeline runs jobs of mode 'train' with a loss of their own, loss(output, *targets); give Job(loss=…)"
        )
    if job.kwargs or job.autocast or job.optimizer:
        raise InputError("a pipeline runs jobs without keyword arguments, autocast and optimizer; drop them")
    for value in (*job.args, *job.targets):
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[0] % micro_batches:
            shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"an argument of shape {shape} cannot be cut into {micro_batches} equal micro-batches along its first "
                "dimension; use a divisor of the batch"
            )


def _chunks(values: tuple[torch.Tensor, ...], count: int) -> list[tuple[torch.Tensor, ...]]:
    parts = [value.chunk(count) for value in values]
    return [tuple(part[number] for part in parts) for number in range(count)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
