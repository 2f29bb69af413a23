"""What an op costs for a micro-batch."""

from dataclasses import dataclass, replace

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.roofline import Rates, rates_of, roofline_s
from dlplacer.machines.costs.roofline_times import required_time_s

WEIGHTS = ("parameter", "buffer")
"""Kinds of ops whose bytes do not shrink with the batch."""


@dataclass(frozen=True)
class MicroBatchCosts:
    """Seconds of ops when the batch is cut into micro-batches.

    An op's time shrinks as its roofline does: FLOPs and bytes by the share of the batch, but neither the weights that
    it reads nor the weight gradients that it makes, nor the least time of an op. Where no rates are known, the time
    shrinks by the share. Updates do not shrink.

    Attributes
    ----------
    graph
        With times for the whole batch.
    """

    graph: OpGraph
    topology: Topology

    def times(self, device_type: str, micro_batches: int) -> list[float]:
        """[op] → seconds for one micro-batch on a type of device.

        Raises
        ------
        InputError
            If an op has no time on it.
        """
        rates = self._rates(device_type)
        return [self._scaled(op, device_type, rates, micro_batches) for op in self.graph.ops]

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

    def _rates(self, device_type: str) -> Rates | None:
        return next((rates_of(device) for device in self.topology.devices if device.type == device_type), None)


def batch_of(graph: OpGraph) -> int | None:
    """The most plausible of `batch_sizes`; None if the graph was not captured."""
    return next(iter(batch_sizes(graph)), None)


def batch_sizes(graph: OpGraph) -> list[int]:
    """Sizes that the batch of a captured step may have: of dimension 0, or 1, in as many inputs as any other size."""
    shapes = [tuple(entry.get("shape") or ())[:2] for entry in (graph.capture or {}).get("args", ())]
    sizes = [(int(shape[dim]), dim) for dim in (0, 1) for shape in shapes if dim < len(shape)]
    shared = {size: sum(size in shape for shape in shapes) for size, _ in sizes}
    return [size for size in dict.fromkeys(size for size, _ in sizes) if shared[size] == max(shared.values())]
