"""A plan for one replica → the same plan with its gradients exchanged between replicas.

The network is one more device of the topology: collectives run there one at a time, while all devices compute. They
read and write the memory of the devices themselves, so the edges to it carry no bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay
from dlplacer.runtime.distributed.collective_ops import COLLECTIVE, Bucket, names_of, with_collective_ops
from dlplacer.runtime.distributed.ranks import NETWORK

DEFAULT_BUCKET_BYTES = 25 * 2**20
"""As torch's DistributedDataParallel."""

_SLOWER = 1.25
_LEAST_LATENCY_S = 1e-9


def replicated_plan(plan: Plan, replicas: int, all_reduce: AlphaBeta, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> Plan:
    """The plan with one collective per bucket of gradients, each as early as its gradients allow.

    Placement and order of the plan stay. What reads the gradients' means (and the updates, where they are part of the
    step) comes last on every device, in the order of the buckets.

    Parameters
    ----------
    all_reduce
        Seconds of one all-reduce over the replicas, as a line over the bytes of the vector, for example
        `dlplacer.machines.costs.collectives.ring_all_reduce(channel, replicas)`.
    bucket_bytes
        A bucket is closed when it has at least this many bytes.

    Raises
    ------
    InputError
        If an argument is out of range.
    MismatchError
        If the plan has no gradients, or collectives already.
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
    described = {"replicas": replicas, "buckets": [bucket.to_dict() for bucket in buckets]}
    graph = replace(graph, capture={**(plan.graph.capture or {}), "collectives": described})
    graph = with_exchange_times(graph, topology, all_reduce)
    return _replayed(plan, graph, topology, buckets, ready_s)


def with_network(topology: Topology) -> Topology:
    """The machine with a pseudo-device `network`, joined to every device; InputError if a node has that name already.

    Its links only join the graph. Two of them are slower than any route, so that no tensor takes them as a short cut;
    what the plan charges for them is taken off the time of the collectives.
    """
    if any(node.id == NETWORK for node in topology.nodes):
        raise InputError(f"the topology has a node {NETWORK!r} already; rename it: collectives run on one of that name")
    hops = len(topology.nodes) - 1
    latency_s = _SLOWER * hops * max((link.latency_s for link in topology.links), default=0.0) + _LEAST_LATENCY_S
    bytes_per_s = min((link.bytes_per_s for link in topology.links), default=1e12) / max(1, hops)
    links = (Link(device.id, NETWORK, bytes_per_s, latency_s / 2) for device in topology.devices)
    return replace(topology, devices=(*topology.devices, Device(NETWORK, NETWORK)), links=(*topology.links, *links))


def buckets_of(plan: Plan, ready_s: Mapping[str, float], bucket_bytes: int) -> list[Bucket]:
    """Gradients in the order in which the plan finishes them, cut into buckets per device and dtype."""
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
    """The graph with times for its collectives by the line of an all-reduce, and for packing by the roofline.

    Packing is free where the rate of a device's memory is not known; profiling on the devices measures it.
    """
    route_s = 2 * max(link.latency_s for link in topology.links if link.target == NETWORK)
    exchanged = {
        op.id: {NETWORK: max(0.0, all_reduce.time_s(op.outputs[0].bytes) - route_s)}
        for op in graph.ops
        if op.kind == COLLECTIVE
    }
    graph = replace(graph, ops=tuple(replace(op, time_s=exchanged.get(op.id, op.time_s)) for op in graph.ops))
    graph = with_times(graph, topology)
    kinds = [kind for kind in topology.device_types if kind != NETWORK]
    packed = {op.id: {kind: op.time_on(kind) or 0.0 for kind in kinds} for op in graph.ops if op.kind == "pack"}
    return replace(graph, ops=tuple(replace(op, time_s=packed.get(op.id, op.time_s)) for op in graph.ops))


def _gradients_ready_s(plan: Plan) -> dict[str, float]:
    """Parameter name → when its gradient is on the parameter's device."""
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
    """The plan with the ops of the exchange in their turn: each bucket behind its last gradient, its readers last."""
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
