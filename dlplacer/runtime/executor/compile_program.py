"""The actions of a device in a program → straight-line functions, which its thread calls one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any

import torch

from dlplacer.core.errors import RunError, first_line
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.transfer import brought
from dlplacer.runtime.executor.device_run import DeviceRun
from dlplacer.runtime.executor.function_source import FunctionSource
from dlplacer.runtime.executor.hand_over import EMPTY
from dlplacer.runtime.executor.op_source import write_op
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.process_links import ProcessLinks
from dlplacer.runtime.executor.stream_steps import compile_stream_action
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Hold, Recv, Send

LONGEST = 2000
"""Actions in one function. Compiling takes a time that grows with their number, but the parser's memory is for all of a
function at once, and the interpreter's quick way to the objects of a namespace ends at 65,536 of them."""


@dataclass(frozen=True)
class CompiledActions:
    """The actions of one device in one program.

    Attributes
    ----------
    functions
        To be called one after another.
    positions
        Of each function its code, and by line the position of the action that it belongs to.
    """

    actions: Sequence[Action]
    functions: tuple[Callable[[DeviceRun], None], ...]
    positions: tuple[tuple[CodeType, tuple[int, ...]], ...]

    def failing(self, error: BaseException) -> Action | None:
        """The action at which an error left the functions; None if it did not come from one."""
        trace = error.__traceback__
        while trace is not None:
            for code, positions in self.positions:
                if trace.tb_frame.f_code is code:
                    position = positions[trace.tb_lineno - 1]
                    return self.actions[position] if position >= 0 else None
            trace = trace.tb_next
        return None


@dataclass(frozen=True)
class ActionCompiler:
    """Compiles the actions of one device.

    Parameters
    ----------
    name
        The device's name in the program.
    devices
        Name in the program → device, of those of this process.
    slots
        (tensor, target) → number of the place in the target's inbox, of what devices of this process hand each other.
    """

    graph: OpGraph
    executable: Executable
    name: str
    devices: Mapping[str, RuntimeDevice]
    slots: Mapping[tuple[str, str], int]
    updater: Updater
    links: ProcessLinks | None

    def compiled(
        self, actions: Sequence[Action], recording: bool, cuts: Sequence[int] | None = None
    ) -> CompiledActions:
        """The functions; those for a recorded step also note when every op ended.

        Parameters
        ----------
        cuts
            Where functions begin, in place of every `LONGEST` actions.
        """
        copied: set[tuple[str, str]] = set()
        functions, positions = [], []
        begins = list(range(0, len(actions), LONGEST)) if cuts is None else list(cuts)
        for first, end in pairwise([*begins, len(actions)]):
            part = actions[first:end]
            source = FunctionSource(first, _freed(part))
            self._begin(source, part, recording)
            for position, action in enumerate(part, start=first):
                source.turn_to(position)
                self._write(source, action, copied, recording)
            function, code, lines = source.finish()
            functions.append(function)
            positions.append((code, lines))
        return CompiledActions(actions, tuple(functions), tuple(positions))

    def message(self, action: Action, error: Exception) -> str | None:
        """What to tell the user of an error in an action; None if the error says it itself."""
        if isinstance(action, Compute):
            module = self.graph.op(action.op).module
            where = f" of module {module!r}" if module else ""
            return f"op {action.op!r}{where} failed on {self._device.name}: {first_line(error)}"
        if isinstance(action, Send) and action.target in self.devices:
            where = f"from {self._device.name} to {self.devices[action.target].name}"
            return f"sending tensor {action.tensor!r} {where} failed: {first_line(error)}"
        if isinstance(action, (Recv, Send)):
            return None
        return f"{action} failed on {self._device.name}: {first_line(error)}"

    @property
    def _device(self) -> RuntimeDevice:
        return self.devices[self.name]

    def _begin(self, source: FunctionSource, part: Sequence[Action], recording: bool) -> None:
        """What the lines of a function refer to, in local variables."""
        for name in ("values", "copies", "device"):
            source.line(f"{name} = row.{name}")
        source.line("bound = row.inputs.bound")
        if recording:
            source.line("timeline = row.timeline")
        targets = {action.target for action in part if isinstance(action, Send)} & self.devices.keys()
        if any(isinstance(action, Recv) and action.source in self.devices for action in part):
            targets.add(self.name)
        for target in targets:
            source.line(f"{self._inbox(target)} = row.inboxes[{source.bound(target)}]")

    def _write(self, source: FunctionSource, action: Action, copied: set[tuple[str, str]], recording: bool) -> None:
        """Write the lines of one action.

        Parameters
        ----------
        copied
            (tensor, target) that the device has copied and not sent; the action may change it.
        """
        if isinstance(action, Compute):
            exports = {edge.tensor for edge in self.graph.edges_from[action.op]}
            exports.update(self.executable.returned.intersection(self.executable.codes[action.op].results))
            write_op(source, self.executable, action.op, exports, self._device, self.updater)
            if recording:
                source.line(f"timeline.finish({source.bound(action.op)}, device)")
        elif isinstance(action, Free):
            source.free(action.tensor)
        elif isinstance(action, Recv):
            self._write_receive(source, action)
            if recording:
                source.line("timeline.resume(device)")
        elif isinstance(action, Send):
            self._write_send(source, action, copied)
        elif isinstance(action, Copy):
            copied.add((action.tensor, action.target))
            step = source.bound(compile_stream_action(action, self._device, self.devices.get(action.target)))
            source.write((action.tensor, action.target), f"{step}(row, {source.read(action.tensor)})")
        else:
            step = source.bound(compile_stream_action(action, self._device, None))
            source.line(f"{step}(row, {source.read(action.tensor) if isinstance(action, Hold) else 'None'})")

    def _write_receive(self, source: FunctionSource, action: Recv) -> None:
        if action.source not in self.devices:
            names = ", ".join(source.bound(name) for name in (action.tensor, action.source, self.name))
            source.write(action.tensor, f"{source.bound(self._receive_from_away)}(row, {names})")
            return
        slot = self.slots[action.tensor, self.name]
        inbox, empty = self._inbox(self.name), source.bound(EMPTY)
        source.line(f"if {inbox}.slots[{slot}] is {empty}: {inbox}.wait({slot})")
        source.write(action.tensor, f"device.receive({inbox}.take({slot}))")

    def _write_send(self, source: FunctionSource, action: Send, copied: set[tuple[str, str]]) -> None:
        key = action.tensor, action.target
        value = source.read(key if key in copied else action.tensor)
        if action.target not in self.devices:
            assert self.links is not None
            names = ", ".join(source.bound(name) for name in (action.tensor, self.name, action.target))
            source.line(f"{source.bound(self.links)}.send({names}, {value})")
        elif key in copied:
            source.line(f"{self._inbox(action.target)}.put({self.slots[key]}, {value})")
        else:
            target = source.bound(self.devices[action.target])
            source.line(f"{self._inbox(action.target)}.put({self.slots[key]}, device.send({value}, {target}))")
        if key in copied:
            copied.remove(key)
            source.free(key)

    def _inbox(self, target: str) -> str:
        """The local variable for the inbox of a device."""
        return f"inbox_{list(self.devices).index(target)}"

    def _receive_from_away(self, row: DeviceRun, tensor: str, origin: str, here: str) -> Any:
        assert self.links is not None
        value = self.links.receive(tensor, origin, here)
        if isinstance(value, torch.Tensor) and value.device != row.device.torch_device:
            try:
                value = brought(value, row.device)
            except Exception as error:
                where = f"from {origin} on {row.device.name}"
                raise RunError(f"receiving tensor {tensor!r} {where} failed: {first_line(error)}") from error
        return value


def slots_of(actions: Mapping[str, Sequence[Action]], here: Mapping[str, RuntimeDevice]) -> dict[tuple[str, str], int]:
    """(tensor, target) → place in the target's inbox, for all SENDs between devices of this process."""
    slots: dict[tuple[str, str], int] = {}
    counts = dict.fromkeys(here, 0)
    for name in here:
        for action in actions[name]:
            if isinstance(action, Send) and action.target in here and (action.tensor, action.target) not in slots:
                slots[action.tensor, action.target] = counts[action.target]
                counts[action.target] += 1
    return slots


def _freed(actions: Sequence[Action]) -> set[Any]:
    """What leaves the device in these actions: tensors that are freed, copies that are handed over."""
    freed: set[Any] = {action.tensor for action in actions if isinstance(action, Free)}
    return freed | {(action.tensor, action.target) for action in actions if isinstance(action, Send)}
