"""Turn a plan for one replica into the same plan with gradients averaged between replicas.

The network is one more device of the topology: it runs collectives one at a time, while all devices compute. Edges to
the network carry no bytes, because collectives read and write the memory of the devices.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files.formats import structure_sha256
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay
from dlplacer.runtime.distributed.group import NETWORK

if TYPE_CHECKING:
    from dlplacer.runtime.distributed.group import RankGroup


COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters of one device of the plan, whose gradients are exchanged together."""

    device: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mean:
    """Averages a vector over the replicas, in place; without a group, for timing only, the vector stays as it is."""

    bucket: str
    group: "RankGroup | None" = None

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            # Divide first, like DistributedDataParallel: a float16 sum may overflow although the mean does not.
            flat.div_(self.group.ranks.replicas)
            with self.group.waiting(f"{self.bucket} from ranks {self.group.ranks.peers_of(self.group.rank)}"):
                dist.all_reduce(flat, group=self.group.peers)
        return flat


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate all elements into one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unpack(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Split a vector into tensors of these shapes, which share its memory."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(tuple(shape)) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]


def with_collectives(captured: Captured, plan: Plan) -> Captured:
    """The captured step with the plan's collectives added; the same object if the plan has none.

    Ops that may run anywhere are restricted to devices other than the network. Raises MismatchError if a bucket names a
    parameter that has no gradient.
    """
    described = (plan.graph.capture or {}).get("collectives")
    if described is None:
        return captured
    devices = [device.id for device in plan.topology.devices if device.id != NETWORK]
    buckets = [Bucket(each["device"], tuple(each["parameters"])) for each in described["buckets"]]
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
    """The graph with three ops per bucket, between the gradients and their readers."""
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
    # Keep a valid order of execution: readers of a mean come last.
    last = {op for bucket in buckets for name in bucket.parameters for op in (f"{name}.grad", f"{name}.update")}
    ordered = sorted(ops.values(), key=lambda op: op.id in last)
    extended = replace(graph, ops=tuple(ordered), edges=tuple(edges))
    return replace(extended, structure_sha256=structure_sha256(extended))


def with_group(executable: Executable, group: "RankGroup") -> Executable:
    """The executable with its collectives bound to a group of processes."""

    def bound(code: OpCode) -> OpCode:
        instructions = tuple(
            replace(entry, target=replace(entry.target, group=group)) if isinstance(entry.target, Mean) else entry
            for entry in code.instructions
        )
        return replace(code, instructions=instructions)

    return replace(executable, codes={op: bound(code) for op, code in executable.codes.items()})


def names_of(number: int) -> tuple[str, str, str]:
    """Ids of a bucket's three ops, which pack, average and unpack its gradients."""
    return f"pack.{number}", f"all_reduce.{number}", f"unpack.{number}"


def _mean_of(parameter: str) -> str:
    return f"{parameter}.grad.mean"


def _sink(graph: OpGraph, parameter: str) -> Op:
    name = f"{parameter}.grad"
    if name not in graph.index:
        raise MismatchError(f"a collective exchanges the gradient of {parameter!r}, which the step does not compute")
    return graph.op(name)


def _gradient_spec(graph: OpGraph, parameter: str) -> TensorSpec:
    """Shape, dtype and bytes of a parameter's gradient; they equal the parameter's."""
    group = _sink(graph, parameter).colocate
    return next(op for op in graph.ops if op.kind == "parameter" and op.colocate == group).outputs[0]


DEFAULT_BUCKET_BYTES = 25 * 2**20
"""The default of torch's DistributedDataParallel."""

_SLOWER = 1.25
_LEAST_LATENCY_S = 1e-9


def replicated_plan(plan: Plan, replicas: int, all_reduce: AlphaBeta, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> Plan:
    """The plan with one collective per bucket of gradients, each as early as its gradients allow.

    The plan keeps its placement and order. The readers of averaged gradients, and updates that are part of the step,
    come last on every device, in the order of the buckets.

    Parameters
    ----------
    all_reduce
        Seconds of one all-reduce over the replicas, as a linear function of the vector's bytes, for example
        `dlplacer.machines.costs.collectives.ring_all_reduce(channel, replicas)`.
    bucket_bytes
        A bucket is closed when it has at least this many bytes.

    Raises
    ------
    InputError
        If an argument is out of range.
    MismatchError
        If the plan has no gradients, has collectives already, or is of fused ops or modules.
    """
    if replicas < 2 or bucket_bytes < 1:
        raise InputError(
            f"{replicas} replicas with buckets of {bucket_bytes} bytes; at least 2 replicas and 1 byte are needed"
        )
    if any(op.kind == COLLECTIVE for op in plan.graph.ops):
        raise MismatchError("the plan exchanges gradients already; give the plan of one replica")
    if (plan.graph.capture or {}).get("granularity"):
        raise MismatchError(
            "the plan is of fused ops or modules; replicas need one of ATen ops: use --granularity aten"
        )
    ready_s = _gradients_ready_s(plan)
    if not ready_s:
        raise MismatchError("the plan computes no gradients; only training is replicated: capture with mode='train'")
    buckets = buckets_of(plan, ready_s, bucket_bytes)
    topology = with_network(plan.topology)
    graph = with_collective_ops(plan.graph, buckets, [device.id for device in plan.topology.devices])
    described = {
        "replicas": replicas,
        "buckets": [{"device": bucket.device, "parameters": [*bucket.parameters]} for bucket in buckets],
    }
    graph = replace(graph, capture={**(plan.graph.capture or {}), "collectives": described})
    graph = with_exchange_times(graph, topology, all_reduce)
    return _replayed(plan, graph, topology, buckets, ready_s)


def with_network(topology: Topology) -> Topology:
    """The topology with a pseudo-device `network`, linked to every device; InputError if a node has that name already.

    The links of the network only keep the topology connected. A route over two of them is slower than any other, so no
    tensor takes it. The time that a plan charges for these links is subtracted from the times of collectives.
    """
    if any(node.id == NETWORK for node in topology.nodes):
        raise InputError(f"the topology has a node {NETWORK!r} already; rename it: collectives run on one of that name")
    hops = len(topology.nodes) - 1
    latency_s = _SLOWER * hops * max((link.latency_s for link in topology.links), default=0.0) + _LEAST_LATENCY_S
    bytes_per_s = min((link.bytes_per_s for link in topology.links), default=1e12) / max(1, hops)
    links = (Link(device.id, NETWORK, bytes_per_s, latency_s / 2) for device in topology.devices)
    return replace(topology, devices=(*topology.devices, Device(NETWORK, NETWORK)), links=(*topology.links, *links))


def buckets_of(plan: Plan, ready_s: Mapping[str, float], bucket_bytes: int) -> list[Bucket]:
    """Buckets of the gradients per device and dtype, in the order in which the plan finishes them."""
    weights = {op.colocate: op for op in plan.graph.ops if op.kind == "parameter"}
    open_buckets: dict[tuple[str, str], tuple[list[str], int]] = {}
    closed: list[Bucket] = []
    for name in sorted(ready_s, key=lambda name: ready_s[name]):
        sink = plan.graph.op(f"{name}.grad")
        spec = weights[sink.colocate].outputs[0]
        key = plan.placement[sink.id], spec.dtype
        names, size = open_buckets.get(key, ([], 0))
        names, size = [*names, name], size + spec.bytes
        open_buckets[key] = names, size
        if size >= bucket_bytes:
            closed.append(Bucket(key[0], tuple(names)))
            del open_buckets[key]
    closed += [Bucket(device, tuple(names)) for (device, _), (names, _) in open_buckets.items()]
    return sorted(closed, key=lambda bucket: max(ready_s[name] for name in bucket.parameters))


def with_exchange_times(graph: OpGraph, topology: Topology, all_reduce: AlphaBeta) -> OpGraph:
    """The graph with times of collectives from the α-β line of an all-reduce, and times of packing from the roofline.

    Packing takes no time if the memory rate of a device is unknown; a profile has measured times instead.
    """
    route_s = 2 * max(link.latency_s for link in topology.links if link.target == NETWORK)
    kinds = [kind for kind in topology.device_types if kind != NETWORK]

    def exchanged(op: Op) -> Op:
        return replace(op, time_s={NETWORK: max(0.0, all_reduce.time_s(op.outputs[0].bytes) - route_s)})

    ops = (exchanged(op) if op.kind == COLLECTIVE else op for op in graph.ops)
    graph = with_times(replace(graph, ops=tuple(ops)), topology)
    packed = {op.id: {kind: op.time_on(kind) or 0.0 for kind in kinds} for op in graph.ops if op.kind == "pack"}
    return replace(graph, ops=tuple(replace(op, time_s=packed.get(op.id, op.time_s)) for op in graph.ops))


def _gradients_ready_s(plan: Plan) -> dict[str, float]:
    """Parameter name → time when its gradient is ready on the parameter's device."""
    arrival_s = {(transfer.tensor, transfer.target): transfer.end_s for transfer in plan.transfers}
    found = {}
    for op in plan.graph.ops:
        if op.kind == "gradient":
            (edge,) = plan.graph.edges_into[op.id]
            made_s = plan.scheduled[edge.source].end_s
            found[op.id.removesuffix(".grad")] = arrival_s.get((edge.tensor, plan.placement[op.id]), made_s)
    return found


def _replayed(
    plan: Plan, graph: OpGraph, topology: Topology, buckets: Sequence[Bucket], ready_s: Mapping[str, float]
) -> Plan:
    """The plan replayed with the exchange: each bucket after its last gradient, the readers of means last."""
    position = topology.device_index
    home = {op: position[device] for op, device in plan.placement.items()}
    place_of = {entry.op: (entry.start_s, number, 0) for number, entry in enumerate(plan.ops)}
    bucket_ready_s = [max(ready_s[name] for name in bucket.parameters) for bucket in buckets]
    for turn, number in enumerate(sorted(range(len(buckets)), key=bucket_ready_s.__getitem__)):
        bucket, at_s = buckets[number], bucket_ready_s[number]
        makers = (place_of[plan.graph.edges_into[f"{name}.grad"][0].source] for name in bucket.parameters)
        behind = max((number_there for start_s, number_there, _ in makers if start_s == at_s), default=-1)
        pack, mean, unpack = names_of(number)
        place_of[pack] = place_of[mean] = at_s, behind, 1 + turn
        home[pack] = home[unpack] = position[bucket.device]
        home[mean] = position[NETWORK]
        readers = [op for name in bucket.parameters for op in (f"{name}.grad", f"{name}.update") if op in graph.index]
        place_of |= {op: (math.inf, turn, step) for step, op in enumerate((unpack, *readers))}
    order = sorted(graph.index, key=place_of.__getitem__)
    problem = build_problem(graph, topology, plan.options)
    ops, transfers = replay(problem, [home[op.id] for op in graph.ops], [graph.index[op] for op in order])
    makespan_s = max(entry.end_s for entry in ops)
    return replace(
        plan,
        graph=graph,
        topology=topology,
        status="feasible",
        makespan_s=makespan_s,
        lower_bound_s=0.0,
        gap=1.0 if makespan_s else 0.0,
        method=f"{plan.method}, replicated",
        ops=ops,
        transfers=transfers,
        memory=memory_use(problem, ops, transfers),
    )
