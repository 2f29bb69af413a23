"""A graph on a machine as pipelines see it: its blocks, and what its ops take for any number of micro-batches."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.pipeline.micro_batch import MicroBatchCosts
from dlplacer.planning.pipeline.stages.blocks import blocks_of


class PipelineWorkload:
    """A graph on a machine, prepared once for all numbers of stages and micro-batches."""

    def __init__(self, graph: OpGraph, topology: Topology) -> None:
        self.graph, self.topology = with_times(graph, topology), topology
        self.costs = MicroBatchCosts(self.graph, topology)
        self.blocks = blocks_of(self.graph)
        self.wiring = Wiring(topology)
        self._times: dict[tuple[str, int], list[float]] = {}

    def times(self, device_type: str, micro_batches: int) -> list[float]:
        """[op] → seconds for one micro-batch on a type of device.

        Raises
        ------
        InputError
            If an op has no time on it.
        """
        if (device_type, micro_batches) not in self._times:
            self._times[device_type, micro_batches] = self.costs.times(device_type, micro_batches)
        return self._times[device_type, micro_batches]

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
