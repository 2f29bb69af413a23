"""A decoder and its workload as a chain of ops with times, on a machine without its reserved memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_bytes
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.device_table import EFFICIENCY
from dlplacer.machines.costs.links import Wiring
from dlplacer.machines.costs.roofline import Rates, rates_of, roofline_s
from dlplacer.planning.fit.decoder import Decoder, DecoderPart, Serving


def step_graph(
    decoder: Decoder, serving: Serving, topology: Topology, whole: str = "layers", left_out: Iterable[str] = ()
) -> OpGraph:
    """The chain of ops for an average step of the objective.

    A request of a prompt and 128 tokens, for example, is 129 steps. The times of ops and the bytes of edges are means
    over these steps, so the makespan is the time of the request ÷ 129.

    The head's `weight_bytes` exclude the weights shared with the embedding; ``meta["shared_bytes"]`` counts them.
    """
    rates = {device.type: (_known_rates(device), _all_reduce(device)) for device in topology.devices}
    names = [device.id for device in topology.devices if not {device.id, device.type} & {*left_out}]
    if not names:
        raise InputError("all devices are left out; name some that may be used")
    devices = tuple(names) if len(names) < len(topology.devices) else None
    ops = [_op(decoder, serving, parts, rates, devices) for parts in units_of(decoder, whole)]
    steps = sum(count for count, _ in serving.steps)
    sent = sum(count * step.batch * step.tokens for count, step in serving.steps) / steps
    size = round(sent * decoder.hidden * decoder.activation_bytes)
    edges = tuple(Edge(one.id, other.id, 0 if "vision" in one.meta["kinds"] else size) for one, other in pairwise(ops))
    if decoder.tied_bytes:
        meta = {**ops[-1].meta, "shared_bytes": decoder.tied_bytes}
        ops[-1] = replace(ops[-1], weight_bytes=ops[-1].weight_bytes - decoder.tied_bytes, meta=meta)
    return OpGraph(tuple(ops), edges, decoder.name, "costs by the roofline of the device table")


def with_copies(graph: OpGraph, placement: Mapping[str, str]) -> OpGraph:
    """The graph in which a head on another device than the embedding has a copy of the shared weights."""
    ops = graph.ops
    shared = ops[-1].meta.get("shared_bytes", 0)
    embedding = next((op.id for op in ops if op.kind == "embedding"), ops[-1].id)
    if not shared or placement[embedding] == placement[ops[-1].id]:
        return graph
    head = replace(ops[-1], weight_bytes=ops[-1].weight_bytes + shared, meta={**ops[-1].meta, "shared_bytes": 0})
    return replace(graph, ops=(*ops[:-1], head))


def steps_in(serving: Serving) -> float:
    """The number of steps in the objective; the costs in `step_graph` are means over these steps."""
    return sum(count for count, _ in serving.steps)


def units_of(decoder: Decoder, whole: str) -> list[list[DecoderPart]]:
    """The groups of parts; each group becomes one op."""

    def key(numbered: tuple[int, DecoderPart]) -> tuple[object, ...]:
        number, part = numbered
        if part.layer is None or whole == "parts":
            return (number,)
        return (part.layer, whole == "experts" and part.kind == "experts", "layer")

    return [[part for _, part in group] for _, group in groupby(enumerate(decoder.parts), key)]


def _op(
    decoder: Decoder,
    serving: Serving,
    parts: Sequence[DecoderPart],
    rates: Mapping[str, tuple[Rates, AlphaBeta]],
    devices: tuple[str, ...] | None,
) -> Op:
    first, kinds = parts[0], [part.kind for part in parts]
    steps = steps_in(serving)
    work = [
        (count / steps, kernel)
        for count, step in serving.steps
        for part in parts
        for kernel in decoder.work(part, step)
    ]
    kernels = [
        (share, Op("kernel", "", flops=flops, bytes_accessed=size, dtype=kind)) for share, (flops, size, kind) in work
    ]
    # Devices that divide a layer sum its vectors after attention and after the MLP.
    sums = [
        (count / steps, step.batch * step.tokens * decoder.hidden * decoder.activation_bytes)
        for count, step in serving.steps
        for part in parts
        if part.kind in ("attention", "mlp", "experts")
    ]
    times = {
        kind: sum(share * roofline_s(op, known) for share, op in kernels)
        + sum(share * line.time_s(size) for share, size in sums)
        for kind, (known, line) in rates.items()
    }
    name = first.kind if first.layer is None else f"layer.{first.layer}"
    if first.layer is not None and first.kind != "attention":
        name = f"{name}.{first.kind}"
    return Op(
        name,
        first.kind if len(parts) == 1 else "layer",
        time_s=times,
        flops=sum(share * op.flops for share, op in kernels),
        bytes_accessed=sum(share * op.bytes_accessed for share, op in kernels),
        dtype=decoder.dtype,
        weight_bytes=sum(part.weight_bytes for part in parts),
        state_bytes=decoder.cache_bytes(parts, serving),
        module=first.modules[0],
        devices=devices,
        meta={
            "layer": first.layer,
            "kinds": kinds,
            "modules": [module for part in parts for module in part.modules],
        },
    )


def _all_reduce(device: Device) -> AlphaBeta:
    """The all-reduce cost of a device that stands for several; 0 for other devices."""
    return AlphaBeta(*device.meta.get("all_reduce", (0.0, 0.0)))


def _known_rates(device: Device) -> Rates:
    rates = rates_of(device)
    if rates is None or rates.memory_bytes_per_s is None or rates.peak_flops_per_s(None) is None:
        raise InputError(
            f"device {device.id!r} of type {device.type!r} has no rates; give it memory_bytes_per_s and flops_per_s, "
            "or a type of `dlplacer list devices`"
        )
    return rates


def usable(topology: Topology, reserve_bytes: int, working_bytes: int) -> Topology:
    """The machine whose devices have only the memory left for weights and cache; raises InputError if none is left."""
    left = []
    for device in topology.devices:
        if device.memory_bytes is None:
            left.append(device)
            continue
        free = device.memory_bytes - reserve_bytes - working_bytes
        if free <= 0:
            raise InputError(
                f"device {device.id!r} has {format_bytes(device.memory_bytes)}, of which {format_bytes(reserve_bytes)} "
                f"are reserved and {format_bytes(working_bytes)} hold vectors: nothing is left for weights; lower "
                "reserve, chunk or batch, or remove the device"
            )
        meta = {**device.meta, "capacity_bytes": device.memory_bytes, "working_bytes": working_bytes}
        left.append(replace(device, memory_bytes=free, meta={**meta, "reserve_bytes": reserve_bytes}))
    return replace(topology, devices=tuple(left))


def streaming(topology: Topology) -> Topology:
    """The machine in which a GPU computes with the weights in RAM; every step sends them over the fastest path."""
    gpus = [device for device in topology.devices if device.asynchronous]
    if not gpus or len(gpus) == len(topology.devices):
        raise InputError("stream needs weights in RAM and a GPU to use them; describe both, or drop stream")
    wiring = Wiring(topology)

    def streamed(device: Device) -> Device:
        if device.asynchronous:
            return device
        s_per_byte, nearest = min(
            ((wiring.channel(device.id, gpu.id).s_per_byte, gpu) for gpu in gpus), key=lambda path: path[0]
        )
        # Link rates are effective, so the roofline's efficiency must not reduce them again.
        rate = 1 / s_per_byte / EFFICIENCY.value
        slower = min(rate, device.memory_bytes_per_s or rate)
        # Times depend on the type, and another RAM of the same type may be farther from a GPU.
        kind = f"{device.type} streamed to {nearest.type} at {1e-9 / s_per_byte:.3g} GB/s"
        return replace(device, type=kind, flops_per_s=nearest.flops_per_s, memory_bytes_per_s=slower)

    return replace(topology, devices=tuple(map(streamed, topology.devices)))
