"""Source of straight-line functions, written from numbers alone, and the objects that its names stand for."""

from collections.abc import Callable, Collection, Hashable
from types import CodeType
from typing import Any

Function = Callable[[Any], None]
HeldValue = tuple[int, Hashable]
"""A value of the device with this number: a tensor by name, a copy under way by (tensor, target)."""


class FunctionSource:
    """A function of one argument ``rows`` (a `DeviceRun` for each device) that is being written, line by line.

    Whatever comes from outside (kernels, constants, names of ops and tensors) enters as an object of the function's
    namespace, under a name that is a letter and a number. No text of a user's model, plan or file is ever part of
    the source, so that compiling it can run nothing that is not written in this package.

    A value of a device is a local variable from its first use to its FREE, ``del``, so that its memory is given back
    at that moment; the variable's number is then used again. Values that other functions made are read from the
    dictionaries of the device's row, those that this one leaves are written back at its end.

    Parameters
    ----------
    number
        Of the function among those of its program.
    devices
        Numbers of the devices whose actions it takes.
    freed
        What is freed in this function: it leaves the row's dictionary when it is first read.

    Attributes
    ----------
    here
        Number of the device to which the lines belong that are being written.
    """

    def __init__(self, number: int, devices: Collection[int], freed: Collection[HeldValue]) -> None:
        self.here = 0
        self._name = f"actions_{number}"
        self._freed = freed
        # No builtins: the lines need none.
        self._namespace: dict[str, Any] = {"__builtins__": {}}
        self._names: dict[Any, str] = {}
        self._lines: list[str] = []
        self._positions: list[int] = []
        self._variables: dict[HeldValue, str] = {}
        self._made: set[HeldValue] = set()
        self._unused: list[str] = []
        self._count = 0
        self._position = -1
        self._depth = 0
        self.line(f"def {self._name}(rows):")
        self.indent(1)
        self.line("inputs = rows[0].inputs")
        self.line("bound = inputs.bound")
        for device in devices:
            self.line(f"row_{device} = rows[{device}]")
            for name in ("values", "copies", "device", "timeline"):
                self.line(f"{name}_{device} = row_{device}.{name}")

    def turn_to(self, position: int, device: int) -> None:
        """Attribute the lines that follow to the action at this position, of this device."""
        self._position = position
        self.here = device

    def line(self, text: str) -> None:
        """Add a statement."""
        self._lines.append(" " * self._depth + text)
        self._positions.append(self._position)

    def indent(self, by: int) -> None:
        """Begin (1) or end (-1) the block of a compound statement."""
        self._depth += by

    def bound(self, thing: Any) -> str:
        """The name of an object in the function's namespace."""
        key = thing if isinstance(thing, str) else id(thing)
        if key not in self._names:
            self._names[key] = name = f"c{len(self._names)}"
            # The namespace also keeps the object alive, so that its id stays its own.
            self._namespace[name] = thing
        return self._names[key]

    def read(self, value: Hashable) -> str:
        """The variable that holds a value of the device, brought from its row if need be."""
        held = self.here, value
        if held not in self._variables:
            store, key = _store(held), self.bound(value)
            load = f"{store}.pop({key})" if held in self._freed else f"{store}[{key}]"
            self.line(f"{self._variable(held)} = {load}")
        return self._variables[held]

    def write(self, value: Hashable, text: str) -> None:
        """Assign an expression, which may read this and other values, to a value of the device."""
        held = self.here, value
        self.line(f"{self._variable(held)} = {text}")
        self._made.add(held)

    def free(self, value: Hashable) -> None:
        """Drop a value of the device."""
        held = self.here, value
        if held in self._variables:
            variable = self._variables.pop(held)
            self._made.discard(held)
            self._unused.append(variable)
            self.line(f"del {variable}")
        else:
            self.line(f"del {_store(held)}[{self.bound(value)}]")

    def finish(self) -> tuple[Function, CodeType, tuple[int, ...]]:
        """The function, its code, and by line the position of the action that the line belongs to, -1 for none."""
        self._position = -1
        for held in [held for held in self._variables if held in self._made]:
            self.line(f"{_store(held)}[{self.bound(held[1])}] = {self._variables[held]}")
        exec(compile("\n".join(self._lines), "<actions of a device>", "exec"), self._namespace)
        function = self._namespace.pop(self._name)
        return function, function.__code__, tuple(self._positions)

    def _variable(self, held: HeldValue) -> str:
        if held not in self._variables:
            if not self._unused:
                self._unused.append(f"v{self._count}")
                self._count += 1
            self._variables[held] = self._unused.pop()
        return self._variables[held]


def _store(held: HeldValue) -> str:
    """Where values live between functions: tensors by name, copies under way by (tensor, target)."""
    device, value = held
    return f"{'values' if isinstance(value, str) else 'copies'}_{device}"
