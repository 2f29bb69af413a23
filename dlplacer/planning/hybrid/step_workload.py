"""A training step on one device, as far as scaling asks: its time, and when which gradients are ready."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.captured_chain import serial_order
from dlplacer.machines.costs.roofline_times import required_time_s
from dlplacer.planning.pipeline.pipeline_workload import batch_of

_GRADIENT = "gradient"
_FLOAT_BYTES = 4
_BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class GradientLayer:
    """Gradients that are ready together.

    Attributes
    ----------
    backward_s
        Seconds of backward ops since the gradients before.
    gradient_bytes
        As float32, which is what codecs start from.
    """

    backward_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Work:
    """A step of one worker on one device.

    Attributes
    ----------
    step_s
        The whole step: forward, backward and update.
    layers
        Gradients in the order in which the backward pass makes them; empty where there are none.
    tail_s
        Seconds of backward ops after the last gradient.
    update_s
        Seconds of the update, which waits for the exchange.
    mini_batch
        Samples of a step, if known.
    """

    step_s: float
    layers: tuple[GradientLayer, ...] = field(default=(), repr=False)
    tail_s: float = 0.0
    update_s: float = 0.0
    mini_batch: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.step_s < float("inf"):
            raise InputError(f"work {self.name!r}: step_s is {self.step_s}; it must be positive and finite")
        if min(self.tail_s, self.update_s) < 0:
            raise InputError(f"work {self.name!r}: tail_s and update_s must be at least 0")
        parts_s = self.backward_s + self.tail_s + self.update_s
        if parts_s > self.step_s * (1 + 1e-9):
            raise InputError(
                f"work {self.name!r}: its backward pass and update take {parts_s:g} s, more than the {self.step_s:g} s "
                "of the step; correct one of them"
            )

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes that data-parallel workers average at every step, as float32."""
        return sum(layer.gradient_bytes for layer in self.layers)

    @cached_property
    def backward_s(self) -> float:
        """Seconds from the first backward op to the last gradient."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def forward_s(self) -> float:
        """Seconds before the first backward op."""
        return max(0.0, self.step_s - self.backward_s - self.tail_s - self.update_s)


def work_of(graph: OpGraph, device_type: str) -> Work:
    """The step of a captured graph, all ops one after another on one device of a type.

    Gradients are ready when the op that makes them has run. Where the graph does not say which op makes a parameter's
    gradient (ops of kind ``gradient`` that are colocated with it), all of them are taken to be ready at the very end.

    Raises
    ------
    InputError
        If an op has no time on the type, or the whole graph takes none.
    """
    spent_s, update_s = 0.0, 0.0
    ready: list[tuple[float, int]] = []
    made_at: dict[str, float] = {}
    forward_s: float | None = None
    for op_id in serial_order(graph):
        op = graph.op(op_id)
        time_s = required_time_s(op, device_type)
        if op.phase == "optimizer":
            update_s += time_s
            continue
        # Ops of the backward pass that take no time may stand among the forward ops in a topological order.
        if op.phase == "backward" and time_s > 0 and forward_s is None:
            forward_s = spent_s
        spent_s += time_s
        made_at[op_id] = spent_s
        if op.kind == _GRADIENT and op.colocate in graph.index:
            size = _as_float32(graph.op(op.colocate or ""))
            if size:
                made = [made_at[edge.source] for edge in graph.edges_into[op_id] if edge.source in made_at]
                ready.append((max(made, default=spent_s), size))
    if not spent_s > 0:
        raise InputError(f"graph {graph.name!r} takes no time on a {device_type!r}; profile it first")
    rest = sum(_as_float32(op) for op in graph.ops if op.kind != _GRADIENT) - sum(size for _, size in ready)
    if rest > 0:
        ready.append((spent_s, rest))
    ready.sort()
    forward_s = spent_s if forward_s is None else forward_s
    tail_s = spent_s - max(forward_s, ready[-1][0] if ready else forward_s)
    layers = _layers(ready, forward_s)
    return Work(spent_s + update_s, layers, tail_s, update_s, batch_of(graph), graph.name)


def fastest_work(graph: OpGraph, topology: Topology) -> Work:
    """The step on the type of device that is fastest among those that can run all of it; raises as `work_of`."""
    kinds = topology.device_types
    able = [kind for kind in kinds if all(op.time_on(kind) is not None for op in graph.ops)]
    return min((work_of(graph, kind) for kind in able or kinds[:1]), key=lambda work: work.step_s)


def _layers(ready: Sequence[tuple[float, int]], start_s: float) -> tuple[GradientLayer, ...]:
    layers: list[GradientLayer] = []
    before_s = start_s
    for at_s, size in ready:
        if layers and at_s <= before_s:
            layers[-1] = GradientLayer(layers[-1].backward_s, layers[-1].gradient_bytes + size)
        else:
            layers.append(GradientLayer(max(0.0, at_s - before_s), size))
            before_s = max(before_s, at_s)
    return tuple(layers)


def _as_float32(op: Op) -> int:
    width = _BYTES_OF.get(op.outputs[0].dtype if op.outputs else op.dtype or "", _FLOAT_BYTES)
    return op.gradient_bytes * _FLOAT_BYTES // width
