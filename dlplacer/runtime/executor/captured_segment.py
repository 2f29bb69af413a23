"""A stretch of a device's program that is captured once and then replayed: one launch in place of one per kernel."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dlplacer.core.errors import RunError, first_line
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM, Streams
from dlplacer.runtime.devices.stream_backend import capturing
from dlplacer.runtime.executor.device_run import DeviceRun
from dlplacer.runtime.executor.random_state import generator_lock

_logger = logging.getLogger(__name__)

_WARMUP = 2
"""Steps that issue the ops first: libraries choose algorithms and allocate workspaces then, which no capture may do."""

_MOST_CAPTURES = 4
"""A stretch that has to be captured again and again gains nothing."""

_TOLERANCE = 1e-4
"""Largest difference to what the ops gave, relative to their largest number: kernels that add atomically differ."""


@dataclass(frozen=True)
class SegmentValues:
    """What a stretch of actions takes and leaves, by name.

    Attributes
    ----------
    read
        Tensors of the device that it reads and does not make.
    freed
        Those of before that it frees.
    bound
        Ops that bring a tensor in from outside → whether it is the same in every step, as a parameter is; else it is
        copied to where the graph reads.
    mutated
        Those among the ops that write to theirs.
    parameters
        Those of `read` that are the same in every step.
    fresh
        Tensors that it makes and that outlive the step: they are copied out of the graph's memory.
    """

    read: frozenset[str]
    freed: frozenset[str]
    bound: Mapping[str, bool]
    mutated: frozenset[str]
    parameters: frozenset[str]
    fresh: frozenset[str]


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
    reasons
        Why stretches are not replayed: what was found out at their capture.
    replays
        How often graphs were replayed.
    """

    pool: Any
    static: dict[str, torch.Tensor] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    replays: int = 0


@dataclass
class CapturedSegment:
    """A function of a device's program, in whose place a graph is replayed after some steps.

    Parameters
    ----------
    function
        Runs the ops.
    where
        Names the stretch in messages.
    checked
        Whether the first replay is compared with the ops, and what cannot be captured is left to them; else that is an
        error.
    """

    function: Callable[[Sequence[DeviceRun]], None]
    values: SegmentValues
    streams: Streams
    memory: GraphMemory
    where: str
    checked: bool
    _calls: int = 0
    _captures: int = 0
    _given_up: bool = False
    _graph: Any = None
    _held: dict[str, Any] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict)

    def __call__(self, rows: Sequence[DeviceRun]) -> None:
        """On the device's thread: do what the function does for its one device."""
        (row,) = rows
        self._calls += 1
        if self._given_up or self._calls <= _WARMUP:
            self.function([row])
            return
        if self._graph is not None and not self._still_fits(row):
            # A parameter moved, or a number changed: what was captured reads elsewhere. A replay may be under way.
            self.streams.named(COMPUTE_STREAM).synchronize()
            self._graph = None
        if self._graph is None:
            self._capture(row)
            return
        self._fill(row)
        self._replay(row)

    def _capture(self, row: DeviceRun) -> None:
        self._captures += 1
        if self._captures > _MOST_CAPTURES:
            self._give_up(f"{self.where} is not replayed: a number that it reads changes, or a tensor moves")
            self.function([row])
            return
        self._held = {}
        for key, given in self._given(row).items():
            stays = _is_number(given) or self._stays(key, given)
            self._held[key] = given if stays else torch.empty_like(given)
        self._fill(row)
        expected = self._issued(row) if self.checked else None
        try:
            self._graph, self._made = self._captured(row)
        except Exception as error:
            reason = f"{self.where} cannot be captured: {first_line(error)}"
            self._give_up(reason)
            if expected is None:
                raise RunError(f"{reason}; use cuda_graphs='auto' or 'off'") from error
            self._keep(row, expected)
            return
        before = dict(row.values)
        self._replay(row)
        if expected is not None and not self._agree(row, expected):
            row.values.clear()
            row.values.update(before)
            self._give_up(f"{self.where} is not replayed: its graph gives other numbers than its ops")
            self._keep(row, expected)

    def _captured(self, row: DeviceRun) -> tuple[Any, dict[str, Any]]:
        """The graph, and what it leaves."""
        backend = self.streams.backend
        bound = {op: self._held[_bound(op)] for op in self.values.bound}
        held = dict.fromkeys(self.values.freed) | {name: self._held[name] for name in self.values.read}
        inside = replace(row, values=held, inputs=replace(row.inputs, bound=bound))
        # One that is captured again comes after those that are replayed behind it, which write to all that was free.
        graph, pool = backend.graph(), self.memory.pool if self._captures == 1 else backend.graph_pool()
        # A thread that draws random numbers on this device meanwhile would move the generator that a capture holds.
        with capturing, generator_lock(row.device.torch_device):
            # Only this thread is kept from what a capture forbids: others allocate and wait for events.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.function([inside])
            finally:
                graph.capture_end()
        outside = self.values.read | self.values.freed
        return graph, {name: value for name, value in inside.values.items() if name not in outside}

    def _issued(self, row: DeviceRun) -> dict[str, Any]:
        """What the ops themselves give, without a trace in the row or in what they change."""
        saved = {op: row.inputs.bound[op].clone() for op in self.values.mutated}
        aside = replace(row, values=dict(row.values))
        self.function([aside])
        found = {name: value for name, value in aside.values.items() if name not in row.values}
        for op, value in saved.items():
            found[_bound(op)] = row.inputs.bound[op].clone()
            row.inputs.bound[op].copy_(value)
        return found

    def _fill(self, row: DeviceRun) -> None:
        """Bring what comes from outside to where the graph reads it."""
        for key, given in self._given(row).items():
            held = self._held[key]
            if not _is_number(given) and held is not given and not _same_memory(held, given):
                held.copy_(given)

    def _replay(self, row: DeviceRun) -> None:
        self._graph.replay()
        self.memory.replays += 1
        self._leave(row, {name: self._out(name, value) for name, value in self._made.items()})
        self.memory.static.update((name, row.values[name]) for name in self._made if name not in self.values.fresh)

    def _out(self, name: str, value: Any) -> Any:
        return value.clone() if name in self.values.fresh and not _is_number(value) else value

    def _keep(self, row: DeviceRun, expected: Mapping[str, Any]) -> None:
        """Leave what the ops gave."""
        for op in self.values.mutated:
            row.inputs.bound[op].copy_(expected[_bound(op)])
        self._leave(row, {name: value for name, value in expected.items() if not name.startswith(_BOUND)})

    def _leave(self, row: DeviceRun, made: Mapping[str, Any]) -> None:
        for name in self.values.freed:
            row.values.pop(name, None)
        row.values.update(made)

    def _agree(self, row: DeviceRun, expected: Mapping[str, Any]) -> bool:
        found = {**row.values, **{_bound(op): row.inputs.bound[op] for op in self.values.mutated}}
        return all(_close(found[name], value) for name, value in expected.items())

    def _give_up(self, reason: str) -> None:
        self._given_up, self._graph = True, None
        self._held, self._made = {}, {}
        self.memory.reasons.append(reason)
        _logger.warning("%s", reason)

    def _given(self, row: DeviceRun) -> dict[str, Any]:
        """What comes from outside in this step."""
        return {name: row.values[name] for name in self.values.read} | {
            _bound(op): row.inputs.bound[op] for op in self.values.bound
        }

    def _stays(self, key: str, given: torch.Tensor) -> bool:
        """Whether a tensor is at the same place in every step."""
        if key.startswith(_BOUND):
            return self.values.bound[key.removeprefix(_BOUND)]
        return key in self.values.parameters or self.memory.static.get(key) is given

    def _still_fits(self, row: DeviceRun) -> bool:
        """Whether the graph reads what it has to in this step, once inputs are filled in."""
        for key, given in self._given(row).items():
            held = self._held[key]
            if _is_number(given):
                if given is not held and given != held:
                    return False
            elif self._stays(key, given) and not _same_memory(held, given):
                return False
        return True


_BOUND = "bound "


def _bound(op: str) -> str:
    """The key of what an op brings in; names of tensors have no spaces."""
    return _BOUND + op


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
    largest = float(expected.abs().nan_to_num().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True)
