"""The data of a graph on a machine for pipelines: blocks, op costs, and the sequences of devices to try."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.links import LinkDirection, Wiring
from dlplacer.machines.costs.roofline import Rates, rates_of, roofline_s
from dlplacer.machines.costs.roofline_times import required_time_s, with_times
from dlplacer.planning.pipeline.blocks import blocks_of

WEIGHTS = ("parameter", "buffer")
"""Kinds of ops whose bytes do not shrink with the batch."""


def batch_of(graph: OpGraph) -> int | None:
    """The most plausible batch size of a captured step; None if unknown."""
    return next(iter(batch_sizes(graph)), None)


def batch_sizes(graph: OpGraph) -> list[int]:
    """Possible batch sizes of a captured step, the best first: sizes of dimension 0 or 1 that most inputs share."""
    shapes = [tuple(entry.get("shape") or ())[:2] for entry in (graph.capture or {}).get("args", ())]
    sizes = [(int(shape[dim]), dim) for dim in (0, 1) for shape in shapes if dim < len(shape)]
    shared = {size: sum(size in shape for shape in shapes) for size, _ in sizes}
    return [size for size in dict.fromkeys(size for size, _ in sizes) if shared[size] == max(shared.values())]


_ALWAYS_EVALUATES = "no_training"
_TRAINING_ARGUMENT = 5


def mixing_warnings(graph: OpGraph, micro_batches: int) -> tuple[str, ...]:
    """Warnings about ops whose results change in micro-batches; empty if there are none.

    Batch norm in training mode computes mean and variance over the samples of one micro-batch. Its outputs, gradients
    and running statistics then differ from those of a step on the whole batch.
    """
    norms = list({op.origin or op.id: op for op in graph.ops if _is_training_batch_norm(op)}.values())
    if micro_batches < 2 or not norms:
        return ()
    more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
    return (
        f"batch norm {norms[0].module or norms[0].id!r}{more} will see one of {micro_batches} micro-batches at a time, "
        "not the batch: losses, gradients and running statistics change; use group norm, or micro-batches that are "
        "large enough by themselves",
    )


def _is_training_batch_norm(op: Op) -> bool:
    if "batch_norm" not in op.kind or "backward" in op.kind or _ALWAYS_EVALUATES in op.kind:
        return False
    arguments = op.attrs.get("args", ())
    return op.phase in (None, "forward") and not (
        len(arguments) > _TRAINING_ARGUMENT and arguments[_TRAINING_ARGUMENT] is False
    )


class PipelineWorkload:
    """A graph on a machine, prepared once for all numbers of stages and micro-batches.

    For a micro-batch, an op's time shrinks in proportion to its roofline time. FLOPs and bytes shrink with the batch;
    weights that the op reads, weight gradients that it writes and the least time of an op do not. Without known rates,
    the time is divided by the number of micro-batches. Updates do not shrink.
    """

    def __init__(self, graph: OpGraph, topology: Topology) -> None:
        self.graph, self.topology = with_times(graph, topology), topology
        self.blocks = blocks_of(self.graph)
        self.wiring = Wiring(topology)
        self._times: dict[tuple[str, int], list[float]] = {}

    def times(self, device_type: str, micro_batches: int) -> list[float]:
        """[op] → seconds for one micro-batch on a type of device."""
        key = device_type, micro_batches
        if key not in self._times:
            rates = next((rates_of(device) for device in self.topology.devices if device.type == device_type), None)
            self._times[key] = [self._scaled(op, device_type, rates, micro_batches) for op in self.graph.ops]
        return self._times[key]

    def _scaled(self, op: Op, device_type: str, rates: Rates | None, micro_batches: int) -> float:
        whole_s = required_time_s(op, device_type)
        if not whole_s or micro_batches == 1 or op.phase == "optimizer":
            return whole_s
        if rates is None or not (op.flops or op.bytes_accessed) or not rates.cover(op):
            return whole_s / micro_batches
        fixed = min(op.bytes_accessed, self._weight_bytes(op))
        moved = fixed + (op.bytes_accessed - fixed) / micro_batches
        part = replace(op, flops=op.flops / micro_batches, bytes_accessed=moved)
        full_s = roofline_s(op, rates)
        return whole_s * roofline_s(part, rates) / full_s if full_s else whole_s / micro_batches

    def _weight_bytes(self, op: Op) -> float:
        edges = self.graph.edges_into[op.id]
        read: float = sum(edge.bytes for edge in edges if self.graph.op(edge.source).kind in WEIGHTS)
        unread = sum(edge.bytes for edge in edges) + sum(spec.bytes for spec in op.outputs) - op.bytes_accessed
        if unread > 0:
            # An embedding reads the rows of its tokens, which shrink with the batch.
            read = max(0, read - unread) if "parts" in op.attrs else 0
        readers = ((edge, self.graph.op(edge.target)) for edge in self.graph.edges_from[op.id])
        return read + sum({edge.output: edge.bytes for edge, to in readers if to.kind == "gradient"}.values())

    def block_s(self, times: Sequence[float]) -> Any:
        """[block] → seconds of its forward and backward ops, without updates, from the times of the ops."""
        ops = self.graph.ops
        return np.array(
            [
                sum(times[op] for op in (*ahead, *behind) if ops[op].phase != "optimizer")
                for ahead, behind in zip(self.blocks.members, self.blocks.backward, strict=True)
            ]
        )

    @cached_property
    def rank(self) -> dict[int, int]:
        """Op → its position in topological order."""
        return {self.graph.index[name]: place for place, name in enumerate(self.graph.topological_order)}

    @cached_property
    def single_device_s(self) -> float | None:
        """Seconds of the whole batch on the best device whose memory suffices; None if there is no such device."""
        blocks = self.blocks
        kept = sum(tensor.bytes for tensor in blocks.activations if tensor.is_saved)
        need = sum(blocks.weight_bytes) + kept + max(blocks.workspace_bytes, default=0)
        return min(
            (
                sum(self.times(device.type, 1))
                for device in self.topology.devices
                if device.memory_bytes is None or need <= device.memory_bytes
            ),
            default=None,
        )


Routes = tuple[float, ...]
Shared = frozenset[tuple[int, ...]]

MOST_CHAINS = 20_000
MOST_KEPT = 32


@dataclass(frozen=True)
class DeviceChain:
    """Devices in the order of the stages, with the routes between neighbours; stage k is on device k mod their number.

    `forward`, `backward`: [rank] → cost of the route to the next rank, and of the route back. The first rank follows
    the last.
    """

    devices: tuple[Device, ...]
    forward: tuple[AlphaBeta, ...]
    backward: tuple[AlphaBeta, ...]
    forward_directions: tuple[tuple[LinkDirection, ...], ...]
    backward_directions: tuple[tuple[LinkDirection, ...], ...]

    def routes(self, wraps: bool) -> Routes:
        """Latencies and seconds per byte of all routes that stages use."""
        count = len(self.devices) if wraps else len(self.devices) - 1
        lines = (*self.forward[:count], *self.backward[:count])
        return tuple(number for line in lines for number in (line.latency_s, line.s_per_byte))

    def shared(self, wraps: bool) -> Shared:
        """For every shared link direction, the numbers of the routes that use it; their transfers take turns."""
        count = len(self.devices) if wraps else len(self.devices) - 1
        users: dict[LinkDirection, list[int]] = defaultdict(list)
        for number, directions in enumerate((*self.forward_directions[:count], *self.backward_directions[:count])):
            for direction in directions:
                users[direction].append(number)
        return frozenset(tuple(numbers) for numbers in users.values() if len(numbers) > 1)


def chains_of(wiring: Wiring, ranks: int, wraps: bool, most: int = MOST_CHAINS) -> tuple[list[DeviceChain], bool]:
    """The sequences of `ranks` devices that no other sequence dominates, and whether all sequences were tried.

    A sequence dominates another with the same types and memories if all its routes are at least as cheap and share
    link directions only where the other's routes do. Every split is then at least as good on the dominating sequence.

    `wraps`: True if a stage on the last device sends to a stage on the first.

    Raises InfeasibleError if links join no `ranks` devices.
    """
    count = len(wiring.topology.devices)
    if not 1 <= ranks <= count:
        raise InputError(f"a pipeline over {ranks} devices; the topology has {count}: use 1 to {count}")
    found: dict[tuple[Routes, Shared, object], DeviceChain] = {}
    sequences = list(islice(_sequences(wiring.topology, ranks), most + 1))
    for names in sequences[:most]:
        chain = _chain(wiring, names)
        if chain is not None:
            kinds = tuple((each.type, each.memory_bytes) for each in chain.devices)
            found.setdefault((chain.routes(wraps), chain.shared(wraps), kinds), chain)
    if not found:
        raise InfeasibleError(f"no {ranks} devices of topology {wiring.topology.name!r} are joined by links")
    kept: list[tuple[Routes, Shared, object]] = []
    for routes, shared, own in sorted(found, key=lambda profile: (sum(profile[0]), len(profile[1]))):
        if not any(
            other == own and less <= shared and all(a <= b for a, b in zip(cheaper, routes, strict=True))
            for cheaper, less, other in kept
        ):
            kept.append((routes, shared, own))
    is_all = len(sequences) <= most and len(kept) <= MOST_KEPT
    return [found[profile] for profile in kept[:MOST_KEPT]], is_all


def _chain(wiring: Wiring, names: tuple[str, ...]) -> DeviceChain | None:
    ahead = list(zip(names, (*names[1:], names[0]), strict=True))
    lines: list[tuple[AlphaBeta, ...]] = []
    directions: list[tuple[tuple[LinkDirection, ...], ...]] = []
    try:
        for pairs in (ahead, [(b, a) for a, b in ahead]):
            lines.append(tuple(wiring.channel(a, b) for a, b in pairs))
            directions.append(tuple(wiring.directions(a, b) if a != b else () for a, b in pairs))
    except InfeasibleError:
        return None
    return DeviceChain(tuple(map(wiring.topology.device, names)), lines[0], lines[1], directions[0], directions[1])


def _sequences(topology: Topology, ranks: int) -> Iterator[tuple[str, ...]]:
    """All sequences of different devices; of interchangeable devices, only the first unused device is tried."""
    leader: dict[str, str] = {}
    for device in topology.devices:
        alike = (name for name in leader.values() if _are_twins(topology, device, topology.device(name)))
        leader[device.id] = next(alike, device.id)

    def extend(chosen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(chosen) == ranks:
            yield chosen
            return
        unused = {leader[name]: name for name in reversed(leader) if name not in chosen}
        for name in sorted(unused.values(), key=topology.device_index.__getitem__):
            yield from extend((*chosen, name))

    return extend(())


def _are_twins(topology: Topology, one: Device, other: Device) -> bool:
    """True if swapping the two devices leaves the machine unchanged."""
    if (one.type, one.memory_bytes) != (other.type, other.memory_bytes):
        return False
    links = {
        frozenset((link.source, link.target)): (link.bytes_per_s, link.latency_s, link.duplex, link.count)
        for link in topology.links
    }
    swap = {one.id: other.id, other.id: one.id}
    return all(links.get(frozenset(swap.get(end, end) for end in ends)) == cost for ends, cost in links.items())
