"""Gradient exchange as part of the step: a rewrite that adds one collective op for every bucket of gradients.

A bucket becomes three ops. ``pack`` copies its gradients into one vector where their parameters live; ``all_reduce``,
of kind ``collective``, takes the mean of that vector over the replicas on the network; ``unpack`` gives every parameter
its part, which is what gradients and updates then read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.plan import Plan
from dlplacer.files.structure_hash import structure_sha256
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.runtime.distributed.ranks import NETWORK

if TYPE_CHECKING:
    from dlplacer.runtime.distributed.group import RankGroup

COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients are exchanged together; all live on one device of the plan."""

    device: str
    parameters: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As in the ``capture`` of a graph file."""
        return {"device": self.device, "parameters": list(self.parameters)}

    @classmethod
    def of_dict(cls, value: Mapping[str, Any]) -> "Bucket":
        """The bucket of a graph file."""
        return cls(str(value["device"]), tuple(map(str, value["parameters"])))


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of a vector over replicas, in place; without a group the vector itself, as for timing alone."""

    bucket: str
    group: "RankGroup | None" = None

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            # Divided first, as by DistributedDataParallel: a sum of float16 may be too large where a mean is not.
            flat.div_(self.group.ranks.replicas)
            with self.group.waiting(f"{self.bucket} from ranks {self.group.ranks.peers_of(self.group.rank)}"):
                dist.all_reduce(flat, group=self.group.peers)
        return flat


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One vector of all elements."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unpack(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The parts of a vector in their shapes, sharing its memory."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(tuple(shape)) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]


def with_collectives(captured: Captured, plan: Plan) -> Captured:
    """The captured step with the collectives that a plan has; the same object if it has none."""
    described = (plan.graph.capture or {}).get("collectives")
    if described is None:
        return captured
    devices = [device.id for device in plan.topology.devices if device.id != NETWORK]
    return add_collectives(captured, list(map(Bucket.of_dict, described["buckets"])), devices)


def add_collectives(captured: Captured, buckets: Sequence[Bucket], devices: Sequence[str]) -> Captured:
    """The captured step with a collective for every bucket; all other ops are kept off the network.

    Ops that name no device may run on `devices`. Raises MismatchError if a bucket names a parameter that has no
    gradient.
    """
    graph = with_collective_ops(captured.graph, buckets, devices)
    codes = dict(captured.executable.codes)
    gradients = {code.name: code.reads[0] for code in captured.executable.of_role("gradient")}

    def call(op: str, target: Callable[..., Any], *args: Any, reads: Iterable[str]) -> None:
        codes[op] = OpCode(op, "call", tuple(reads), instructions=(Instruction(op, target, args, {}),))

    for number, bucket in enumerate(buckets):
        packed, mean, unpacked = names_of(number)
        values = [gradients[name] for name in bucket.parameters]
        shapes = [list(_gradient_spec(captured.graph, name).shape) for name in bucket.parameters]
        call(packed, pack, list(map(Value, values)), reads=dict.fromkeys(values))
        call(mean, Mean(mean), Value(packed), reads=[packed])
        call(unpacked, unpack, Value(mean), shapes, reads=[mean])
        named = enumerate(map(_mean_of, bucket.parameters))
        parts = (Instruction(name, getitem, (Value(unpacked), position), {}) for position, name in named)
        codes[unpacked] = replace(codes[unpacked], instructions=(*codes[unpacked].instructions, *parts))
    exchanged = {name for bucket in buckets for name in bucket.parameters}
    for op, code in list(codes.items()):
        if code.role in ("gradient", "update") and code.name in exchanged:
            mean_of = {gradients[code.name]: _mean_of(code.name)}
            codes[op] = replace(code, reads=tuple(mean_of.get(read, read) for read in code.reads))
    return Captured(graph, replace(captured.executable, codes={op.id: codes[op.id] for op in graph.ops}))


def with_collective_ops(graph: OpGraph, buckets: Sequence[Bucket], devices: Sequence[str]) -> OpGraph:
    """The graph with three ops for every bucket, between the gradients and their readers."""
    ops = {op.id: op if op.devices is not None else replace(op, devices=tuple(devices)) for op in graph.ops}
    edges = list(graph.edges)
    for number, bucket in enumerate(buckets):
        packed, mean, unpacked = names_of(number)
        specs = tuple(_gradient_spec(graph, name) for name in bucket.parameters)
        size = sum(spec.bytes for spec in specs)
        flat = TensorSpec((sum(torch.Size(spec.shape).numel() for spec in specs),), specs[0].dtype, size)
        here: dict[str, Any] = {"phase": "backward", "devices": (bucket.device,), "dtype": specs[0].dtype}
        ops[packed] = Op(packed, "pack", bytes_accessed=2 * size, outputs=(flat,), output_bytes=size, **here)
        attrs = {"device": bucket.device, "parameters": list(bucket.parameters)}
        ops[mean] = Op(mean, COLLECTIVE, outputs=(flat,), phase="backward", devices=(NETWORK,), attrs=attrs)
        ops[unpacked] = Op(unpacked, "unpack", 0.0, outputs=specs, **here)
        edges += [Edge(packed, mean, 0, 0, packed), Edge(mean, unpacked, 0, 0, mean)]
        for position, (name, spec) in enumerate(zip(bucket.parameters, specs, strict=True)):
            sink = _sink(graph, name)
            gradient = graph.edges_into[sink.id][0]
            readers = (sink.id, f"{name}.update")
            moved = [edge for edge in edges if edge.target in readers and edge.tensor == gradient.tensor]
            edges = [edge for edge in edges if edge not in moved]
            if not any(edge.target == packed and edge.tensor == gradient.tensor for edge in edges):
                edges.append(replace(gradient, target=packed))
            edges += [Edge(unpacked, edge.target, spec.bytes, position, _mean_of(name)) for edge in moved]
    # In an order in which they can run: what reads a mean comes last.
    last = {op for bucket in buckets for name in bucket.parameters for op in (f"{name}.grad", f"{name}.update")}
    ordered = sorted(ops.values(), key=lambda op: op.id in last)
    extended = replace(graph, ops=tuple(ordered), edges=tuple(edges))
    return replace(extended, structure_sha256=structure_sha256(extended))


def with_group(executable: Executable, group: "RankGroup") -> Executable:
    """The executable whose collectives really talk to the other replicas."""

    def bound(code: OpCode) -> OpCode:
        instructions = tuple(
            replace(entry, target=replace(entry.target, group=group)) if isinstance(entry.target, Mean) else entry
            for entry in code.instructions
        )
        return replace(code, instructions=instructions)

    return replace(executable, codes={op: bound(code) for op, code in executable.codes.items()})


def names_of(number: int) -> tuple[str, str, str]:
    """Ids of a bucket's ops: those that pack, take the mean and unpack."""
    return f"pack.{number}", f"all_reduce.{number}", f"unpack.{number}"


def _mean_of(parameter: str) -> str:
    return f"{parameter}.grad.mean"


def _sink(graph: OpGraph, parameter: str) -> Op:
    name = f"{parameter}.grad"
    if name not in graph.index:
        raise MismatchError(f"a collective exchanges the gradient of {parameter!r}, which the step does not compute")
    return graph.op(name)


def _gradient_spec(graph: OpGraph, parameter: str) -> TensorSpec:
    """Shape, dtype and bytes of a gradient: those of its parameter."""
    group = _sink(graph, parameter).colocate
    return next(op for op in graph.ops if op.kind == "parameter" and op.colocate == group).outputs[0]
