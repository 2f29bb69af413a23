"""The actions of a program → straight-line functions, which a device's thread calls one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any

from dlplacer.core.errors import RunError, first_line
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.transfer import brought
from dlplacer.runtime.executor.device_run import DeviceRun, RankLinks
from dlplacer.runtime.executor.function_source import FunctionSource, HeldValue
from dlplacer.runtime.executor.hand_over import EMPTY
from dlplacer.runtime.executor.op_source import write_op
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.stream_steps import compile_stream_action
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Hold, Recv, Send

LONGEST = 2000
"""Actions in one function. Compiling takes a time that grows with their number, but the parser's memory is for all of a
function at once, and the interpreter's quick way to the objects of a namespace ends at 65,536 of them."""


Entry = tuple[str, Action]
"""A device's name in the program, and one of its actions."""


@dataclass(frozen=True)
class CompiledActions:
    """Actions of one device in one program, or of all devices in an order that they can take by turns.

    Attributes
    ----------
    devices
        Names of the devices, in the order of the rows that the functions take.
    functions
        To be called one after another.
    positions
        Of each function its code, and by line the position of the entry that it belongs to.
    """

    entries: Sequence[Entry]
    devices: tuple[str, ...]
    functions: tuple[Callable[[Sequence[DeviceRun]], None], ...]
    positions: tuple[tuple[CodeType, tuple[int, ...]], ...]

    def failing(self, error: BaseException) -> Entry | None:
        """The action at which an error left the functions; None if it did not come from one."""
        trace = error.__traceback__
        while trace is not None:
            for code, positions in self.positions:
                if trace.tb_frame.f_code is code:
                    position = positions[trace.tb_lineno - 1]
                    return self.entries[position] if position >= 0 else None
            trace = trace.tb_next
        return None


@dataclass(frozen=True)
class ActionCompiler:
    """Compiles the actions of a program.

    Parameters
    ----------
    devices
        Name in the program → device, of those of this process.
    slots
        (tensor, target) → number of the place in the target's inbox, of what devices of this process hand each other.
    """

    graph: OpGraph
    executable: Executable
    devices: Mapping[str, RuntimeDevice]
    slots: Mapping[tuple[str, str], int]
    updater: Updater
    links: RankLinks | None

    def compiled(
        self, devices: tuple[str, ...], entries: Sequence[Entry], recording: bool, cuts: Sequence[int] | None = None
    ) -> CompiledActions:
        """The functions that take actions of these devices; those for a recorded step also note when every op ended.

        Parameters
        ----------
        cuts
            Where functions begin, in place of every `LONGEST` actions.
        """
        numbers = {name: number for number, name in enumerate(devices)}
        copied: set[tuple[str, str]] = set()
        functions, positions = [], []
        before = None
        begins = range(0, len(entries), LONGEST) if cuts is None else cuts
        for first, end in pairwise([*begins, len(entries)]):
            part = entries[first:end]
            source = FunctionSource(first, sorted({numbers[name] for name, _ in part}), _freed(part, numbers))
            self._bind_inboxes(source, part)
            for position, (name, action) in enumerate(part, start=first):
                source.turn_to(position, numbers[name])
                if recording and before not in (None, name):
                    # The time in which other devices had their turn is no part of the next op.
                    source.line(f"timeline_{source.here}.resume(device_{source.here})")
                before = name
                self._write(source, name, action, copied, recording)
            function, code, lines = source.finish()
            functions.append(function)
            positions.append((code, lines))
        return CompiledActions(entries, devices, tuple(functions), tuple(positions))

    def message(self, entry: Entry, error: Exception) -> str | None:
        """What to tell the user of an error in an action; None if the error says it itself."""
        name, action = entry
        here = self.devices[name].name
        if isinstance(action, Compute):
            module = self.graph.op(action.op).module
            where = f" of module {module!r}" if module else ""
            return f"op {action.op!r}{where} failed on {here}: {first_line(error)}"
        if isinstance(action, Send) and action.target in self.devices:
            where = f"from {here} to {self.devices[action.target].name}"
            return f"sending tensor {action.tensor!r} {where} failed: {first_line(error)}"
        if isinstance(action, (Recv, Send)):
            return None
        return f"{action} failed on {here}: {first_line(error)}"

    def receive_from_away(self, row: DeviceRun, tensor: str, origin: str, here: str) -> Any:
        """Called by the functions: a tensor from a device of another process."""
        assert self.links is not None
        value = self.links.receive(tensor, origin, here)
        if value is not None and value.device != row.device.torch_device:
            try:
                value = brought(value, row.device)
            except Exception as error:
                where = f"from {origin} on {row.device.name}"
                raise RunError(f"receiving tensor {tensor!r} {where} failed: {first_line(error)}") from error
        return value

    def _bind_inboxes(self, source: FunctionSource, part: Sequence[Entry]) -> None:
        """Local variables for the inboxes that the actions use."""
        used = {action.target for _, action in part if isinstance(action, Send)}
        used |= {name for name, action in part if isinstance(action, Recv) and action.source in self.devices}
        for name in sorted(used & self.devices.keys()):
            source.line(f"{self._inbox(name)} = rows[0].inboxes[{source.bound(name)}]")

    def _write(
        self, source: FunctionSource, name: str, action: Action, copied: set[tuple[str, str]], recording: bool
    ) -> None:
        """Write the lines of one action.

        Parameters
        ----------
        copied
            (tensor, target) that the device has copied and not sent; the action may change it.
        """
        device, row = self.devices[name], f"row_{source.here}"
        if isinstance(action, Compute):
            exports = {edge.tensor for edge in self.graph.edges_from[action.op]}
            exports.update(self.executable.returned.intersection(self.executable.codes[action.op].results))
            write_op(source, self.executable, action.op, exports, device, self.updater)
            if recording:
                source.line(f"timeline_{source.here}.finish({source.bound(action.op)}, device_{source.here})")
        elif isinstance(action, Free):
            source.free(action.tensor)
        elif isinstance(action, Recv):
            self._write_receive(source, name, action)
            if recording:
                source.line(f"timeline_{source.here}.resume(device_{source.here})")
        elif isinstance(action, Send):
            self._write_send(source, name, action, copied)
        elif isinstance(action, Copy):
            copied.add((action.tensor, action.target))
            step = source.bound(compile_stream_action(action, device, self.devices.get(action.target)))
            source.write((action.tensor, action.target), f"{step}({row}, {source.read(action.tensor)})")
        else:
            step = source.bound(compile_stream_action(action, device, None))
            source.line(f"{step}({row}, {source.read(action.tensor) if isinstance(action, Hold) else 'None'})")

    def _write_receive(self, source: FunctionSource, name: str, action: Recv) -> None:
        if action.source not in self.devices:
            names = ", ".join(source.bound(text) for text in (action.tensor, action.source, name))
            source.write(action.tensor, f"{source.bound(self)}.receive_from_away(row_{source.here}, {names})")
            return
        slot, inbox = self.slots[action.tensor, name], self._inbox(name)
        source.line(f"if {inbox}.slots[{slot}] is {source.bound(EMPTY)}: {inbox}.wait({slot})")
        source.write(action.tensor, f"device_{source.here}.receive({inbox}.take({slot}))")

    def _write_send(self, source: FunctionSource, name: str, action: Send, copied: set[tuple[str, str]]) -> None:
        key = action.tensor, action.target
        value = source.read(key if key in copied else action.tensor)
        if action.target not in self.devices:
            names = ", ".join(source.bound(text) for text in (action.tensor, name, action.target))
            source.line(f"{source.bound(self.links)}.send({names}, {value})")
        else:
            if key not in copied:
                value = f"device_{source.here}.send({value}, {source.bound(self.devices[action.target])})"
            source.line(f"{self._inbox(action.target)}.put({self.slots[key]}, {value})")
        if key in copied:
            copied.remove(key)
            source.free(key)

    def _inbox(self, name: str) -> str:
        """The local variable for the inbox of a device."""
        return f"inbox_{list(self.devices).index(name)}"


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


def _freed(entries: Sequence[Entry], numbers: Mapping[str, int]) -> set[HeldValue]:
    """What leaves the devices in these actions: tensors that are freed, copies that are handed over."""
    freed: set[HeldValue] = {(numbers[name], action.tensor) for name, action in entries if isinstance(action, Free)}
    sends = ((name, action) for name, action in entries if isinstance(action, Send))
    return freed | {(numbers[name], (action.tensor, action.target)) for name, action in sends}
