"""A graph on a machine as pipelines see it: its blocks, and the costs of its ops for any number of micro-batches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.machines.costs.roofline import Rates, rates_of, roofline_s
from dlplacer.machines.costs.roofline_times import required_time_s, with_times
from dlplacer.planning.pipeline.blocks import blocks_of

WEIGHTS = ("parameter", "buffer")
"""Kinds of ops whose bytes do not shrink with the batch."""


def batch_of(graph: OpGraph) -> int | None:
    """The most plausible of `batch_sizes`; None if the graph was not captured."""
    return next(iter(batch_sizes(graph)), None)


def batch_sizes(graph: OpGraph) -> list[int]:
    """Sizes that the batch of a captured step may have: of dimension 0, or 1, in as many inputs as any other size."""
    shapes = [tuple(entry.get("shape") or ())[:2] for entry in (graph.capture or {}).get("args", ())]
    sizes = [(int(shape[dim]), dim) for dim in (0, 1) for shape in shapes if dim < len(shape)]
    shared = {size: sum(size in shape for shape in shapes) for size, _ in sizes}
    return [size for size in dict.fromkeys(size for size, _ in sizes) if shared[size] == max(shared.values())]


_ALWAYS_EVALUATES = "no_training"
_TRAINING_ARGUMENT = 5


def mixing_warnings(graph: OpGraph, micro_batches: int) -> tuple[str, ...]:
    """Warnings of results that a step computes differently in micro-batches; empty if no such op is known.

    Batch norm in training mode takes mean and variance over the samples of one micro-batch. Its outputs, gradients and
    running statistics then differ from those of a step on the whole batch.
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

    An op's time for a micro-batch shrinks as its roofline does: FLOPs and bytes by the share of the batch, but neither
    the weights that it reads nor the weight gradients that it makes, nor the least time of an op. Where no rates are
    known, the time shrinks by the share. Updates do not shrink.
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
        made = {edge.output: edge.bytes for edge in self.graph.edges_from[op.id] if self._is_gradient(edge.target)}
        return read + sum(made.values())

    def _is_gradient(self, op_id: str) -> bool:
        return self.graph.op(op_id).kind == "gradient"

    def block_s(self, times: Sequence[float]) -> Any:
        """[block] → seconds, forward and backward, of ops that take these; updates are left out."""
        ops = self.graph.ops
        return np.array(
            [
                sum(times[op] for op in (*ahead, *behind) if ops[op].phase != "optimizer")
                for ahead, behind in zip(self.blocks.members, self.blocks.backward, strict=True)
            ]
        )

    @cached_property
    def rank(self) -> dict[int, int]:
        """Op → its place in topological order."""
        return {self.graph.index[name]: place for place, name in enumerate(self.graph.topological_order)}

    @cached_property
    def single_device_s(self) -> float | None:
        """Seconds of the whole batch on the best device whose memory holds all; None if none does."""
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
