"""The ops of one device, run and timed on their own: what they read from elsewhere is a tensor of its shape."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.executable import Instruction, OpCode, Value
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.kernels import kernel_for
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.devices.worker import T
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.segment_graph import values_read
from dlplacer.runtime.placed.guards import require_data
from dlplacer.runtime.placed.variant import Variant, layouts_of, part_of
from dlplacer.runtime.program.lower import Order
from dlplacer.runtime.program.program import Program, Recv


class OwnStep:
    """The ops of one device of an order, with the segments that the device has there, but without its neighbours.

    It holds the tensors of these ops alone. What is sent is dropped, and what is received lies in memory that all
    received tensors share. Parameters and buffers are the given ones by name; those that the ops write to are copied.
    `leaves` are the flat inputs of the step.
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
        self.device, self.home, self._leaves = device, home, leaves
        own = part_of(captured, set(order[home]))

        def links(program: Program) -> StandIns:
            received = {action.tensor for action in program.actions[home] if isinstance(action, Recv)}
            return StandIns(captured, received, device.torch_device, tensors)

        updater = Updater(None if job is None else job.update)
        how: dict[str, Any] = {"segments": segments, "starts": starts or {}, "links": links, "away_on_device": True}
        self._variant = Variant(own, order, {home: device}, updater, layouts_of(leaves), **how)
        written = {code.name for code in own.executable.of_role("mutation", "update")}
        self._tensors = {}
        for name in dict.fromkeys(code.name for code in own.executable.of_role("parameter", "buffer", "mutation")):
            require_data(name, tensors[name])
            self._tensors[name] = tensors[name].detach().to(device.torch_device, copy=name in written)

    def recorded(self) -> dict[str, float]:
        """Op → seconds in a step, from the end of the op before it to its own."""
        variant = self._variant
        state = variant.joint.start(self._bound(), record=True)
        variant.joint.run(state)
        assert state.timeline is not None
        return {span.op: span.end_s - span.start_s for span in state.timeline[self.home].spans(self.device)}

    def plain(self) -> float:
        """Seconds for which the device is busy in a step that is not recorded."""
        state = self._variant.joint.start(self._bound())
        begin = time.perf_counter()
        self._variant.joint.run(state)
        self.device.drain()
        wall_s = time.perf_counter() - begin
        self.issued_s = state.worked_s[self.home]
        return self.issued_s if streams_of(self.device) is None else wall_s

    issued_s = 0.0
    """Seconds for which the last step that was not recorded held the device's thread."""

    def _bound(self) -> Any:
        return self._variant.with_tangent(self._variant.bind(self._tensors, self._leaves, 0), None)


def side_by_side(take: Callable[[OwnStep], T], steps: Sequence[OwnStep], keeps_busy: bool = False) -> list[T]:
    """The results of all steps, taken at the same time. If each `keeps_busy`, those that end go on with steps of their
    own until all have ended, so that none is alone at its end.
    """
    left = [None] * len(steps)

    def taken(step: OwnStep) -> T:
        try:
            return take(step)
        finally:
            left.pop()
            while keeps_busy and left:
                step.plain()

    if len(steps) == 1:
        return [take(steps[0])]
    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(taken, steps))


class StandIns:
    """Links of an executor whose other devices do not exist: tensors of the right shape arrive at once.

    Those `received` of a dtype share one memory, as large as the largest; parameters and buffers (`tensors`) arrive as
    they are.
    """

    def __init__(
        self, whole: Captured, received: Collection[str], device: torch.device, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self._whole, self._device, self._tensors = whole, device, tensors
        self._made: dict[str, torch.Tensor] = {}
        self._producer = whole.executable.producer
        self._received = received & self._producer.keys()
        self._memory: dict[torch.dtype, torch.Tensor] = {}
        largest: dict[torch.dtype, _Layout] = {}
        for op in {self._producer[name] for name in self._received}:
            for layout in _outputs(whole, op).values() if self._given(op) is None else ():
                largest[layout.dtype] = max(largest.get(layout.dtype, layout), layout, key=lambda each: each.length)
        for layout in largest.values():
            self._shared(layout)

    def begin(self, device: str) -> None:
        """Nothing is on its way."""

    def end(self, device: str) -> None:
        """Nothing has to leave."""

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Nobody is there to take it."""

    def fail(self) -> None:
        """Nobody waits."""

    def receive(self, tensor: str, source: str, target: str) -> torch.Tensor | None:  # noqa: ARG002
        """A tensor of the shape, dtype and strides of the one that is planned to arrive; None for a mere order."""
        if tensor in self._received and tensor not in self._made:
            self._made[tensor] = self._value(tensor, exact=True)
        return self._made.get(tensor)

    def _value(self, name: str, exact: bool) -> torch.Tensor:
        """A value of this name, by the unpacking and the views of its op; an `exact` one as the op's kernel makes it
        here, as the graph has dtypes and strides of the capture.
        """
        op = self._producer[name]
        code, given = self._whole.executable.codes[op], self._given(op)
        layouts = _outputs(self._whole, op) | (self._as_run(code) if exact and given is None else {})
        outputs = {
            place: given if given is not None else self._shared(layout) if exact else layout.tensor(self._device)
            for place, layout in layouts.items()
        }
        views = code.instructions if code.value else code.instructions[1:]
        first = code.value or code.instructions[0].result
        values: dict[str, Any] = {first: outputs if any(_unpacks(each, first) for each in views) else outputs[0]}
        for view in views:
            values[view.result] = self._called(view.target, view, values)
        found: torch.Tensor = values[name]
        return found

    def _given(self, op: str) -> torch.Tensor | None:
        """The parameter or buffer that an op brings in; None for other ops, or where another process has it."""
        code = self._whole.executable.codes[op]
        tensor = self._tensors.get(code.name) if code.role in ("parameter", "buffer") else None
        return None if tensor is None or tensor.is_meta else tensor.detach().to(self._device)

    def _as_run(self, code: OpCode) -> "dict[int, _Layout]":
        """The outputs of an op as its kernel makes them here; nothing of an op that draws, or refuses these numbers."""
        if code.value or code.random or not isinstance(code.instructions[0].target, torch._ops.OpOverload):
            return {}
        call = code.instructions[0]
        try:
            values = {name: self._value(name, exact=False) for name in values_read([code])}
            made = self._called(kernel_for(call.target, self._device.type), call, values)
        except Exception:
            return {}
        made = made if isinstance(made, (tuple, list)) else [made]
        known = _outputs(self._whole, code.op)
        return {
            place: _Layout(made[place].dtype, tuple(made[place].shape), layout.strides)
            for place, layout in known.items()
        }

    def _called(self, target: Callable[..., Any], call: Instruction, values: Mapping[str, Any]) -> Any:
        def resolved(value: Any) -> Any:
            if isinstance(value, Value):
                return values[value.name]
            if isinstance(value, torch.device):
                return self._device
            return [resolved(entry) for entry in value] if isinstance(value, (list, tuple)) else value

        kwargs = {key: resolved(value) for key, value in call.kwargs.items()}
        return target(*(resolved(value) for value in call.args), **kwargs)

    def _shared(self, layout: "_Layout") -> torch.Tensor:
        memory = self._memory.get(layout.dtype)
        if memory is None or len(memory) < layout.length:
            flat = _Layout(layout.dtype, (layout.length,), (1,))
            self._memory[layout.dtype] = memory = flat.tensor(self._device)
        return memory.as_strided(layout.shape, layout.strides)


@dataclass(frozen=True, slots=True)
class _Layout:
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def length(self) -> int:
        """Elements from the first to the last."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True) if size)

    def tensor(self, device: torch.device) -> torch.Tensor:
        """Zeros, which are indices of any table; of numbers halves, as they divide and have logarithms."""
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)
        return made.fill_(0.5 if made.is_floating_point() or made.is_complex() else 0)


def _outputs(whole: Captured, op: str) -> dict[int, _Layout]:
    """Number of an output of an op → what the graph says of it, with the strides that its readers count on."""
    code = whole.executable.codes[op]
    strides: dict[int, tuple[int, ...] | None] = {}
    if not code.value:
        first = code.instructions[0]
        strides = {0: first.strides}
        strides |= {each.args[1]: each.strides for each in code.instructions if _unpacks(each, first.result)}
    return {
        place: _Layout(
            getattr(torch, spec.dtype),
            spec.shape,
            strides.get(place) or tuple(torch.empty(spec.shape, device="meta").stride()),
        )
        for place, spec in enumerate(whole.graph.op(op).outputs)
        if spec.dtype != "none"
    }


def _unpacks(instruction: Instruction, name: str) -> bool:
    return instruction.target is getitem and instruction.args[0] == Value(name)
