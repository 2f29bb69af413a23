"""Backends that run segments: PyTorch's kernels one by one, code compiled by TorchInductor, or CUDA graphs."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import InputError, RunError, first_line
from dlplacer.frontend.torch.executable import OpCode
from dlplacer.runtime.devices.cuda import COMPUTE_STREAM, Streams, capturing
from dlplacer.runtime.executor.segment_graph import SegmentGraph, boxed_module
from dlplacer.runtime.executor.stateful_ops import generator_lock

SegmentFunction = Callable[[list[Any]], Sequence[Any]]
"""A function that empties the list of its inputs, and returns its outputs."""

_logger = logging.getLogger(__name__)
_HOST_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_WARMUP = 2
"""Eager steps before a capture: libraries then choose algorithms and allocate workspaces, which no capture allows."""

_MOST_CAPTURES = 4  # a segment that needs a capture again and again gains nothing


class SegmentBackend:
    """The eager backend, whose straight-line code from torch.fx calls one kernel after another; the base class.

    `leaves_values`: whether tensors stay in place until the next run, so that runs must not overlap.
    """

    leaves_values = False

    def refusal(self, code: OpCode) -> str | None:  # noqa: ARG002
        """The reason why an op cannot be in a segment of this backend; None if it can."""
        return None

    def function(self, code: SegmentGraph) -> SegmentFunction:
        """The function of a segment."""
        function: SegmentFunction = boxed_module(code.graph, code.attributes).forward
        return function


def segment_backend(name: str) -> SegmentBackend:
    """A new backend for one program; InputError if the name is unknown."""
    if name not in BACKENDS:
        *others, last = BACKENDS
        raise InputError(f"segments is {name!r}; use {', '.join(others)} or {last}")
    return BACKENDS[name]()


class Inductor(SegmentBackend):
    """Compiles a segment with TorchInductor at its first call; random ops and updates stay eager."""

    def refusal(self, code: OpCode) -> str | None:
        """Like `captured_refusal`."""
        return captured_refusal(code)

    def function(self, code: SegmentGraph) -> SegmentFunction:
        """A function that compiles the segment at its first call."""
        module = fx.GraphModule(code.attributes, code.graph, "Segment")
        made: list[Callable[..., Sequence[Any]]] = []

        def call(boxed: list[Any]) -> Sequence[Any]:
            if not made:
                import torch._inductor

                try:
                    # Torch's compilers keep state per process.
                    with _compiling:
                        made.append(torch._inductor.compile(module, list(boxed)))
                except Exception as error:
                    reason = f"TorchInductor cannot compile a segment: {first_line(error)}"
                    raise RunError(f"{reason}; use segments='eager'") from error
            results = made[0](*boxed)
            boxed.clear()
            return results

        return call


_compiling = threading.Lock()


def captured_refusal(code: OpCode) -> str | None:
    """The reason why an op can be in no compiled segment or CUDA graph; None if it can."""
    if code.random:
        return f"op {code.op!r} draws random numbers: every step seeds them anew"
    if code.role == "update":
        return f"op {code.op!r} updates a parameter, whose state is made in the first step"
    for instruction in code.instructions:
        target = instruction.target
        if target is getitem:
            continue
        if not isinstance(target, torch._ops.OpOverload):
            return f"op {code.op!r} calls a function that is no operator of torch"
        if _HOST_READS.intersection(target.tags):
            return f"op {code.op!r} makes the host wait for numbers ({target})"
    return None


@dataclass
class CudaGraphs(SegmentBackend):
    """The segments of one program as CUDA graphs; a segment that cannot be captured issues its ops one by one.

    `least`: fewest kernels for a graph; a replay costs about as much as issuing two or three ops. `notes`: why
    segments are not replayed; `replays`: number of replays. The first graphs of a device's segments share a memory
    pool: they are replayed in the order of capture, so a graph may reuse memory that an earlier graph has freed.
    `static` keeps outputs of graphs alive: (id of streams, name) → the tensor that a graph writes in every step.
    """

    least: int = 8
    leaves_values: bool = True
    notes: list[str] = field(default_factory=list)
    replays: int = 0
    static: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    _pools: dict[int, Any] = field(default_factory=dict)

    def refusal(self, code: OpCode) -> str | None:
        """Like `captured_refusal`; a new reason is added to `notes`."""
        reason = captured_refusal(code)
        if reason is not None and reason not in self.notes:
            self.notes.append(reason)
        return reason

    def function(self, code: SegmentGraph) -> SegmentFunction:
        """A function that captures the segment after two calls; an eager one if it is short, or without CUDA graphs."""
        eager, streams = super().function(code), code.device.streams
        kernels = sum(node.op == "call_function" and node.target is not getitem for node in code.graph.nodes)
        if streams is None or kernels < self.least or not hasattr(streams.backend.torch, "CUDAGraph"):
            return eager
        if id(streams) not in self._pools:
            self._pools[id(streams)] = streams.backend.torch.graph_pool_handle()
        return _Captured(eager, code, streams, self, self._pools[id(streams)])


@dataclass
class _Captured:
    function: SegmentFunction
    code: SegmentGraph
    streams: Streams
    graphs: CudaGraphs
    pool: Any
    _calls: int = 0
    _captures: int = 0
    _given_up: bool = False
    _graph: Any = None
    _held: list[Any] = field(default_factory=list)
    _made: list[Any] = field(default_factory=list)

    def __call__(self, boxed: list[Any]) -> Sequence[Any]:
        self._calls += 1
        if self._given_up or self._calls <= _WARMUP:
            return self.function(boxed)
        given = list(boxed)
        boxed.clear()
        if self._graph is not None and any(
            value is not None and self._stays(position, value) and not _same_memory(held, value)
            for position, (held, value) in enumerate(zip(self._held, given, strict=True))
        ):
            # A parameter has moved, and the graph reads its old memory. A replay may still be running.
            self.streams.named(COMPUTE_STREAM).synchronize()
            self._graph = None
        if self._graph is None and not self._captured(given):
            return self.function(given)
        self._fill(given)
        return self._replay()

    def _captured(self, given: list[Any]) -> bool:
        """Capture the segment; True on success."""
        self._captures += 1
        if self._captures > _MOST_CAPTURES:
            return self._give_up("is not replayed: an input keeps changing its memory")
        self._held = [
            value if value is None or self._stays(position, value) else torch.empty_like(value)
            for position, value in enumerate(given)
        ]
        self._fill(given)
        cuda = self.streams.backend.torch
        # A repeated capture gets its own pool: graphs replayed after it may write to all free memory of the shared one.
        graph, pool = cuda.CUDAGraph(), self.pool if self._captures == 1 else cuda.graph_pool_handle()
        try:
            # Another thread that draws random numbers here would advance the generator that the capture holds.
            with capturing, generator_lock(self.code.device.torch_device):
                # The rules of a capture bind only this thread: others may allocate and wait for events.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self._made = list(self.function(list(self._held)))
                finally:
                    graph.capture_end()
        except Exception as error:
            return self._give_up(f"cannot be captured: {first_line(error)}")
        self._graph = graph
        return True

    def _fill(self, given: list[Any]) -> None:
        """Copy inputs that are not in place to the memory that the graph reads."""
        for held, value in zip(self._held, given, strict=True):
            if value is not None and held is not value and not _same_memory(held, value):
                held.copy_(value)

    def _replay(self) -> Sequence[Any]:
        self._graph.replay()
        self.graphs.replays += 1
        made = []
        for name, value in zip(self.code.outputs, self._made, strict=True):
            if name in self.code.fresh and value is not None:
                made.append(value.clone())
            else:
                made.append(value)
                self.graphs.static[id(self.streams), name] = value
        return made

    def _give_up(self, reason: str) -> bool:
        ops = list(dict.fromkeys(self.code.op_of.values()))
        text = f"the segment from op {ops[0]!r} to {ops[-1]!r} on {self.code.device.name} {reason}"
        self._given_up, self._graph, self._held, self._made = True, None, [], []
        self.graphs.notes.append(text)
        _logger.warning("%s", text)
        return False

    def _stays(self, position: int, value: torch.Tensor) -> bool:
        """True if a tensor has the same memory in every step: it comes from outside, or another graph writes it."""
        code = self.code
        name = code.read[position] if position < len(code.read) else ""
        return position in code.lasting or self.graphs.static.get((id(self.streams), name)) is value


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


BACKENDS: dict[str, Callable[[], SegmentBackend]] = {
    "eager": SegmentBackend,
    "inductor": Inductor,
    "cuda_graph": CudaGraphs,
}
