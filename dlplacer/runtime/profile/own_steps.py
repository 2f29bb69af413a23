"""The ops of one device, run and timed alone: inputs from elsewhere are replaced by tensors of the same shape."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice, T
from dlplacer.runtime.executor.run import RankLinks
from dlplacer.runtime.executor.segment_graph import boxed_module, segment_graph
from dlplacer.runtime.executor.stateful_ops import Updater, length
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
            return StandIns(captured, received, device, tensors)

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
        timeline = self._variant.run(self._bound(), record=True).timelines[self.home]
        return {span.op: span.end_s - span.start_s for span in timeline.spans(self.device)}

    def plain(self) -> float:
        """Seconds for which the device is busy in a step that is not recorded."""
        bound = self._bound()
        begin = time.perf_counter()
        state = self._variant.run(bound)
        self.device.drain()
        wall_s = time.perf_counter() - begin
        self.issued_s = state.worked_s[self.home]
        return self.issued_s if self.device.streams is None else wall_s

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


class StandIns(RankLinks):
    """Links of an executor whose other devices do not exist: tensors of the right shape arrive at once.

    Those `received` of a dtype share one memory, as large as the largest; parameters and buffers (`tensors`) arrive as
    they are.
    """

    def __init__(
        self, whole: Captured, received: Collection[str], device: RuntimeDevice, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self._made: dict[str, torch.Tensor] = {}
        memory: dict[torch.dtype, torch.Tensor] = {}
        wanted: dict[str, list[str]] = {}
        for name in sorted(received & whole.executable.producer.keys()):
            wanted.setdefault(whole.executable.producer[name], []).append(name)
        found: dict[str, torch.Tensor] = {}
        for op, names in wanted.items():
            code = whole.executable.codes[op]
            given = tensors.get(code.name) if code.role in ("parameter", "buffer") else None
            if given is not None and not given.is_meta and code.value in names:
                self._made[code.value] = given.detach().to(device.torch_device)
                names = [name for name in names if name != code.value]
            found |= zip(names, (_without_data(one) for one in made_by(whole, op, names, device)), strict=True)
        for name, like in sorted(found.items(), key=lambda each: -length(each[1])):
            if like.dtype not in memory:
                memory[like.dtype] = _filled((length(like),), (1,), like.dtype, device.torch_device)
            self._made[name] = memory[like.dtype].as_strided(like.shape, like.stride())

    def receive(self, tensor: str, source: str, target: str) -> torch.Tensor | None:  # noqa: ARG002
        """A tensor of the shape, dtype and strides of the one that is planned to arrive; None for a mere order."""
        return self._made.get(tensor)


def made_by(whole: Captured, op: str, names: Sequence[str], device: RuntimeDevice) -> list[torch.Tensor]:
    """Values of an op as the device's kernels make them, of made-up inputs.

    They are as in the capture if the op draws, or its kernel refuses such inputs.
    """
    executable = whole.executable
    code = segment_graph(executable, [op], names, device, Updater(None))

    def example(name: str) -> torch.Tensor:
        if name in executable.layouts:
            return _filled(*executable.layouts[name], device.torch_device)
        spec = whole.graph.op(executable.producer[name]).outputs[0]
        return _filled(spec.shape, None, getattr(torch, spec.dtype), device.torch_device)

    if not executable.codes[op].random:
        with contextlib.suppress(Exception), torch.no_grad():
            given = map(example, (*code.read, *(executable.codes[each].value for each in code.bound)))
            return list(boxed_module(code.graph, code.attributes).forward([*given]))
    return [*map(example, names)]


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _filled(
    shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Zeros, which are indices of any table; of numbers halves, as they divide and have logarithms."""
    strides = torch.empty(shape, device="meta").stride() if strides is None else strides
    real = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return real.fill_(0.5 if real.is_floating_point() or real.is_complex() else 0)
