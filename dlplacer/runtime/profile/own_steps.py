"""The ops of one device, run and timed alone: inputs from elsewhere are replaced by tensors of the same shape."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice, T
from dlplacer.runtime.executor.run import RankLinks
from dlplacer.runtime.executor.segment_graph import segment_graph
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
        wanted = received & whole.executable.producer.keys()
        found = sorted(fake_values(whole, wanted, device, tensors).items(), key=lambda each: -length(each[1]))
        for name, fake in found:
            code = whole.executable.codes[whole.executable.producer[name]]
            given = tensors.get(code.name) if code.role in ("parameter", "buffer") and name == code.value else None
            if given is not None and not given.is_meta:
                self._made[name] = given.detach().to(device.torch_device)
                continue
            if fake.dtype not in memory:
                memory[fake.dtype] = _filled(torch.empty(length(fake), dtype=fake.dtype, device=fake.device))
            self._made[name] = memory[fake.dtype].as_strided(fake.shape, fake.stride())

    def receive(self, tensor: str, source: str, target: str) -> torch.Tensor | None:  # noqa: ARG002
        """A tensor of the shape, dtype and strides of the one that is planned to arrive; None for a mere order."""
        return self._made.get(tensor)


def fake_values(
    whole: Captured, names: Collection[str], device: RuntimeDevice, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Values of a step as the kernels of a device make them, without their data."""
    if not names:
        return {}
    executable, graph = whole.executable, whole.graph
    makers = {op for op in map(executable.producer.get, names) if op and not executable.codes[op].random}
    code = segment_graph(executable, list(graph.topological_order), sorted(names), device, Updater(None))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():

        def given(op: str) -> torch.Tensor:
            own = executable.codes[op]
            known = own.constant if own.role == "constant" else tensors.get(own.name)
            if known is not None:
                return mode.from_tensor(known.detach(), static_shapes=True).to(device.torch_device)
            return made(op)[0]

        def made(op: str) -> list[torch.Tensor]:
            specs = (spec for spec in graph.op(op).outputs if spec.dtype != "none")
            return [
                torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device.torch_device) for spec in specs
            ]

        def really(call: fx.Node, *given: Any) -> Any:
            with unset_fake_temporarily():
                args, kwargs = pytree.tree_map_only(torch.Tensor, _filled, given)
                found = call.target(*args, **kwargs)  # type: ignore[operator]
            return pytree.tree_map_only(torch.Tensor, mode.from_tensor, found)

        class Layouts(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                op = code.op_of.get(n.name)
                try:
                    # Some kernels make other dtypes than their stand-ins: those that make what is asked for run.
                    if op in makers:
                        return really(n, *self.fetch_args_kwargs_from_env(n))
                    return super().run_node(n)
                except Exception:
                    if op is None:
                        raise
                    # A kernel that reads numbers refuses these: the graph says what it made in the capture.
                    outputs = made(op)
                    return outputs if len(outputs) > 1 else outputs[0]

        run = Layouts(fx.GraphModule(code.attributes, code.graph))
        return dict(zip(code.outputs, run.run(*map(given, code.bound)), strict=True))


def _filled(fake: torch.Tensor) -> torch.Tensor:
    """Zeros, which are indices of any table; of numbers halves, as they divide and have logarithms."""
    real = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return real.fill_(0.5 if real.is_floating_point() or real.is_complex() else 0)
