"""The ops of one device, run and timed on their own: what they read from elsewhere is a tensor of its shape."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any, TypeVar, cast

import torch

from dlplacer.core.op import TensorSpec
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Instruction, Value
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.segment_backend import SegmentBackend
from dlplacer.runtime.placed.guards import require_data
from dlplacer.runtime.placed.variant import Variant, layouts_of
from dlplacer.runtime.program.actions import Recv
from dlplacer.runtime.program.lower import Order
from dlplacer.runtime.program.program import Program

T = TypeVar("T")


class OwnStep:
    """The ops of one device of an order, with the segments that the device has there, but without its neighbours.

    It holds the tensors of these ops alone. What is sent is dropped, and what is received lies in memory that all
    received tensors share. Parameters are the given ones; those that the ops write to are copied.

    Parameters
    ----------
    order
        Every op of the graph once; those of `home` are run.
    tensors
        Parameters and buffers by name.
    leaves
        Flat inputs of the step.
    """

    def __init__(
        self,
        captured: Captured,
        order: Order,
        home: str,
        device: RuntimeDevice,
        tensors: Mapping[str, torch.Tensor],
        leaves: Sequence[Any],
        *,
        job: Job | None = None,
        segments: str = "eager",
        starts: Mapping[str, float] | None = None,
    ) -> None:
        self.device, self._home, self._leaves = device, home, leaves
        self._clocked = _Clocked(device)
        here = set(order[home])
        executable = captured.executable
        codes = {op: code for op, code in executable.codes.items() if op in here}
        own = replace(captured, executable=replace(executable, codes=codes, outputs=(), constants={}))
        self._variant = _OwnOps(
            own,
            order,
            {home: cast("RuntimeDevice", self._clocked)},
            Updater(None if job is None else job.update),
            layouts_of(leaves),
            captured,
            tensors,
            segments=segments,
            starts=starts or {},
        )
        written = {code.name for code in own.executable.of_role("mutation", "update")}
        self._tensors = {}
        for name in {code.name for code in own.executable.of_role("parameter", "buffer", "mutation")}:
            require_data(name, tensors[name])
            self._tensors[name] = tensors[name].detach().to(device.torch_device, copy=name in written)
        self._steps_done = 0

    def recorded(self) -> dict[str, float]:
        """Op → seconds in a step, from the end of the op before it to its own."""
        variant = self._variant
        state = variant.joint.start(self._bound(), record=True)
        variant.joint.run(state)
        assert state.timeline is not None
        return {span.op: span.end_s - span.start_s for span in state.timeline[self._home].spans(self.device)}

    def plain(self) -> float:
        """Seconds for which the device is busy in a step that is not recorded."""
        inputs = self._bound()
        before_s, begin = self._clocked.worked_s, time.perf_counter()
        self._variant.joint.run(self._variant.joint.start(inputs))
        self.device.drain()
        wall_s = time.perf_counter() - begin
        self.issued_s = self._clocked.worked_s - before_s
        return self.issued_s if streams_of(self.device) is None else wall_s

    issued_s = 0.0
    """Seconds for which the last step that was not recorded held the device's thread."""

    def _bound(self) -> Any:
        self._steps_done += 1
        return self._variant.with_tangent(self._variant.bind(self._tensors, self._leaves, 0, self._steps_done), None)


def side_by_side(take: Callable[[OwnStep], T], steps: Sequence[OwnStep]) -> list[T]:
    """What each step gives, all at the same time."""
    if len(steps) == 1:
        return [take(steps[0])]
    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(take, steps))


@dataclass(frozen=True)
class _OwnOps(Variant):
    """A variant that runs the ops of one device; its executable has those alone, the graph and the order have all."""

    whole: Captured
    tensors: Mapping[str, torch.Tensor]

    @property
    def _away_on_device(self) -> bool:
        return True

    def _executor(self, program: Program, updater: Updater, backend: SegmentBackend) -> Executor:
        ((home, device),) = self.devices.items()
        received = {action.tensor for action in program.actions[home] if isinstance(action, Recv)}
        links = StandIns(self.whole, received, device.torch_device, self.tensors)
        graph, executable = self.captured.graph, self.captured.executable
        return Executor(graph, executable, program, self.devices, updater, backend, links, self.starts)


class StandIns:
    """Links of an executor whose other devices do not exist: tensors of the right shape arrive at once.

    Parameters
    ----------
    received
        Names of the tensors that will be asked for. Those of a dtype share one memory, as large as the largest.
    tensors
        Parameters and buffers, which arrive as they are.
    """

    on_device = True

    def __init__(
        self, whole: Captured, received: Collection[str], device: torch.device, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        producer, lengths = whole.executable.producer, dict[str, int]()
        self._device, self._tensors = device, tensors
        self._made: dict[str, torch.Tensor] = {}
        self._sources = {name: (whole, producer[name]) for name in received if name in producer}
        for source in self._sources.values():
            for spec, strides in _outputs(*source).values() if self._given(*source) is None else ():
                lengths[spec.dtype] = max(lengths.get(spec.dtype, 0), _length(spec, strides))
        self._memory = {dtype: _filled(dtype, length, device) for dtype, length in lengths.items()}

    def begin(self) -> None:
        """Nothing is on its way."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Nobody is there to take it."""

    def fail(self, error: BaseException) -> None:
        """Nobody waits."""

    def receive(self, tensor: str, source: str, target: str) -> torch.Tensor | None:  # noqa: ARG002
        """A tensor of the shape, dtype and strides of the one that is planned to arrive; None for a mere order."""
        if tensor in self._sources and tensor not in self._made:
            self._made[tensor] = self._value(tensor, *self._sources[tensor])
        return self._made.get(tensor)

    def _given(self, whole: Captured, op: str) -> torch.Tensor | None:
        """The parameter or buffer that an op brings in; None for other ops, or where another process has it."""
        code = whole.executable.codes[op]
        tensor = self._tensors.get(code.name) if code.role in ("parameter", "buffer") else None
        return None if tensor is None or tensor.is_meta else tensor.detach().to(self._device)

    def _value(self, name: str, whole: Captured, op: str) -> torch.Tensor:
        """The value of this name, as the unpacking and the views of its op make it of the op's outputs."""
        code = whole.executable.codes[op]
        given = self._given(whole, op)
        outputs = {
            place: self._memory[spec.dtype].as_strided(spec.shape, strides) if given is None else given
            for place, (spec, strides) in _outputs(whole, op).items()
        }
        views = code.instructions if code.value else code.instructions[1:]
        first = code.value or code.instructions[0].result
        values: dict[str, Any] = {first: outputs if any(_unpacks(each, first) for each in views) else outputs[0]}

        def resolved(value: Any) -> Any:
            if isinstance(value, Value):
                return values[value.name]
            return [resolved(entry) for entry in value] if isinstance(value, (list, tuple)) else value

        for view in views:
            kwargs = {key: resolved(value) for key, value in view.kwargs.items()}
            values[view.result] = view.target(*(resolved(value) for value in view.args), **kwargs)
        found: torch.Tensor = values[name]
        return found


def _outputs(whole: Captured, op: str) -> dict[int, tuple[TensorSpec, tuple[int, ...]]]:
    """Number of an output of an op → its shape and the strides that its readers count on."""
    code, specs = whole.executable.codes[op], whole.graph.op(op).outputs
    first = None if code.value else code.instructions[0]
    known = {0: first.strides} if first is not None else {}
    if first is not None:
        known |= {each.args[1]: each.strides for each in code.instructions if _unpacks(each, first.result)}
    there = {place: spec for place, spec in enumerate(specs) if spec.dtype != "none"}
    return {place: (spec, known.get(place) or _contiguous(spec.shape)) for place, spec in there.items()}


def _unpacks(instruction: Instruction, name: str) -> bool:
    return instruction.target is getitem and instruction.args[0] == Value(name)


def _filled(dtype: str, length: int, device: torch.device) -> torch.Tensor:
    """Zeros, which are indices of any table; of numbers halves, as they divide and have logarithms."""
    memory = torch.zeros(length, dtype=getattr(torch, dtype), device=device)
    return memory.fill_(0.5) if memory.is_floating_point() or memory.is_complex() else memory


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _length(spec: TensorSpec, strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, strides, strict=True) if size)


class _Clocked:
    """A device that adds up the seconds of the work that it is given."""

    def __init__(self, device: RuntimeDevice) -> None:
        self._device = device
        self.worked_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """As the device does."""

        def timed() -> T:
            begin = time.perf_counter()
            try:
                return work()
            finally:
                self.worked_s += time.perf_counter() - begin

        return self._device.submit(timed)
