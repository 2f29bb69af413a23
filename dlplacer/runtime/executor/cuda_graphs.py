"""Segments captured as CUDA graphs and replayed: one launch in place of one for every kernel."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch

from dlplacer.core.errors import first_line
from dlplacer.frontend.torch.executable import OpCode
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams, streams_of
from dlplacer.runtime.devices.stream_backend import capturing
from dlplacer.runtime.executor.random_state import generator_lock
from dlplacer.runtime.executor.segment_backend import Eager, SegmentFunction, SegmentUse, captured_refusal
from dlplacer.runtime.executor.segment_graph import SegmentGraph

_logger = logging.getLogger(__name__)

_WARMUP = 2
"""Steps that issue the ops first: libraries choose algorithms and allocate workspaces then, which no capture may do."""

_MOST_CAPTURES = 4
"""A segment that has to be captured again and again gains nothing."""

_TOLERANCE = 1e-4
"""Largest difference to what the ops gave, relative to their largest number: kernels that add atomically differ."""


@dataclass
class GraphMemory:
    """What the graphs of one device in one program share.

    Attributes
    ----------
    pool
        The memory of their first captures. They are replayed in the order of these, so that one may use again what
        another has left; what they hand on stays alive, and is no other's.
    static
        Tensor → where a graph leaves it in every step.
    """

    pool: Any
    static: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class CudaGraphs:
    """The segments of one program as graphs; a segment that cannot be captured is left to its ops.

    Attributes
    ----------
    least
        Kernels in a graph: replaying one costs about what issuing two or three ops costs.
    checked
        Whether each graph is compared with its ops once.
    notes
        Why segments are not replayed.
    replays
        How often graphs were replayed.
    """

    least: int = 8
    checked: bool = True
    leaves_values: bool = True
    notes: list[str] = field(default_factory=list)
    replays: int = 0
    _memory: dict[int, GraphMemory] = field(default_factory=dict)

    def refusal(self, code: OpCode) -> str | None:
        """As `captured_refusal`."""
        reason = captured_refusal(code)
        if reason is not None and reason not in self.notes:
            self.notes.append(reason)
        return reason

    def function(self, code: SegmentGraph, use: SegmentUse) -> SegmentFunction:
        """A function that captures the segment after some steps; the eager one on a device without streams."""
        eager, streams = Eager().function(code), streams_of(use.device)
        kernels = sum(node.op == "call_function" and node.target is not getitem for node in code.graph.nodes)
        if streams is None or kernels < self.least:
            return eager
        if id(streams) not in self._memory:
            self._memory[id(streams)] = GraphMemory(streams.backend.graph_pool())
        return _Captured(eager, code, use, streams, self, self._memory[id(streams)])


@dataclass
class _Captured:
    function: SegmentFunction
    code: SegmentGraph
    use: SegmentUse
    streams: Streams
    graphs: CudaGraphs
    memory: GraphMemory
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
        if self._graph is not None and not self._still_fits(given):
            # A parameter moved, or a number changed: what was captured reads elsewhere. A replay may be under way.
            self.streams.named(COMPUTE_STREAM).synchronize()
            self._graph = None
        if self._graph is None:
            return self._capture(given)
        self._fill(given)
        return self._replay()

    def _capture(self, given: list[Any]) -> Sequence[Any]:
        self._captures += 1
        if self._captures > _MOST_CAPTURES:
            self._give_up("is not replayed: a number that it reads changes, or a tensor moves")
            return self.function(given)
        self._held = [
            value if _is_number(value) or self._stays(position, value) else torch.empty_like(value)
            for position, value in enumerate(given)
        ]
        self._fill(given)
        expected, written = self._issued(given) if self.graphs.checked else (None, [])
        try:
            self._graph, self._made = self._captured()
        except Exception as error:
            self._give_up(f"cannot be captured: {first_line(error)}")
            return self.function(given) if expected is None else self._keep(given, expected, written)
        made = self._replay()
        if expected is None:
            return made
        found = [given[position] for position in self._written]
        if all(map(_close, [*made, *found], [*expected, *written])):
            return made
        self._give_up("is not replayed: its graph gives other numbers than its ops")
        return self._keep(given, expected, written)

    def _captured(self) -> tuple[Any, list[Any]]:
        """The graph, and what it leaves."""
        backend, device = self.streams.backend, self.use.device.torch_device
        # One that is captured again comes after those that are replayed behind it, which write to all that was free.
        graph, pool = backend.graph(), self.memory.pool if self._captures == 1 else backend.graph_pool()
        # A thread that draws random numbers on this device meanwhile would move the generator that a capture holds.
        with capturing, generator_lock(device):
            # Only this thread is kept from what a capture forbids: others allocate and wait for events.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                made = self.function(list(self._held))
            finally:
                graph.capture_end()
        return graph, list(made)

    def _issued(self, given: list[Any]) -> tuple[Sequence[Any], list[Any]]:
        """What the ops give and write, without a trace in what they write to."""
        saved = [given[position].clone() for position in self._written]
        made = self.function(list(given))
        written = [given[position].clone() for position in self._written]
        for position, value in zip(self._written, saved, strict=True):
            given[position].copy_(value)
        return made, written

    def _fill(self, given: list[Any]) -> None:
        """Bring what comes from outside to where the graph reads it."""
        for held, value in zip(self._held, given, strict=True):
            if not _is_number(value) and held is not value and not _same_memory(held, value):
                held.copy_(value)

    def _replay(self) -> Sequence[Any]:
        self._graph.replay()
        self.graphs.replays += 1
        made = []
        for name, value in zip(self.code.outputs, self._made, strict=True):
            if name in self.use.fresh and not _is_number(value):
                made.append(value.clone())
            else:
                made.append(value)
                self.memory.static[name] = value
        return made

    def _keep(self, given: list[Any], expected: Sequence[Any], written: Sequence[Any]) -> Sequence[Any]:
        """Leave what the ops gave."""
        for position, value in zip(self._written, written, strict=True):
            given[position].copy_(value)
        return expected

    def _give_up(self, reason: str) -> None:
        ops = list(dict.fromkeys(self.code.op_of.values()))
        text = f"the segment from op {ops[0]!r} to {ops[-1]!r} on {self.use.device.name} {reason}"
        self._given_up, self._graph, self._held, self._made = True, None, [], []
        self.graphs.notes.append(text)
        _logger.warning("%s", text)

    @property
    def _written(self) -> list[int]:
        """Positions of the inputs to which the segment writes."""
        return [position for position, name in enumerate(self._names) if name in self.code.written]

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.code.read, *self.code.bound)

    def _stays(self, position: int, value: torch.Tensor) -> bool:
        """Whether a tensor is at the same place in every step."""
        name = self._names[position]
        if position >= len(self.code.read):
            return name in self.code.lasting
        return name in self.use.lasting or self.memory.static.get(name) is value

    def _still_fits(self, given: list[Any]) -> bool:
        """Whether the graph reads what it has to in this step, once inputs are filled in."""
        for position, (held, value) in enumerate(zip(self._held, given, strict=True)):
            if _is_number(value):
                if value is not held and value != held:
                    return False
            elif self._stays(position, value) and not _same_memory(held, value):
                return False
        return True


def _is_number(value: Any) -> bool:
    """Whether a value is no tensor: a Python number, or the mark of an order."""
    return value is None or isinstance(value, (bool, int, float, complex, str))


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def _close(found: Any, expected: Any) -> bool:
    if _is_number(expected):
        return bool(found is expected or found == expected)
    if not expected.is_floating_point() and not expected.is_complex():
        return torch.equal(found, expected)
    wide = torch.promote_types(expected.dtype, torch.float32)
    finite = expected.to(wide)[torch.isfinite(expected)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(found.to(wide), expected.to(wide), rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True)
