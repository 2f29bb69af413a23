"""Source of straight-line functions, written from numbers alone, and the objects that its names stand for."""

from collections.abc import Callable, Collection, Hashable
from types import CodeType
from typing import Any

Function = Callable[[Any], None]


class FunctionSource:
    """A function of one argument ``row`` (`DeviceRun`) that is being written, line by line.

    Whatever comes from outside (kernels, constants, names of ops and tensors) enters as an object of the function's
    namespace, under a name that is a letter and a number. No text of a user's model, plan or file is ever part of
    the source, so that compiling it can run nothing that is not written in this package.

    A value of the device is a local variable from its first use to its FREE, ``del``, so that its memory is given back
    at that moment; the variable's number is then used again. Values that other functions made are read from the
    dictionaries of the row, those that this one leaves are written back at its end.

    Parameters
    ----------
    number
        Of the function among those of its program.
    freed
        What is freed in this function: it leaves the row's dictionary when it is first read.
    """

    def __init__(self, number: int, freed: Collection[Hashable]) -> None:
        self._name = f"actions_{number}"
        self._freed = freed
        # No builtins: the lines need none.
        self._namespace: dict[str, Any] = {"__builtins__": {}}
        self._names: dict[Any, str] = {}
        self._lines = [f"def {self._name}(row):"]
        self._positions = [-1]
        self._variables: dict[Hashable, str] = {}
        self._made: set[Hashable] = set()
        self._unused: list[str] = []
        self._count = 0
        self._position = -1
        self._depth = 1

    def turn_to(self, position: int) -> None:
        """Attribute the lines that follow to the action at this position."""
        self._position = position

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
        """The variable that holds a value, brought from the row if need be."""
        if value not in self._variables:
            store, key = _store(value), self.bound(value)
            load = f"{store}.pop({key})" if value in self._freed else f"{store}[{key}]"
            self.line(f"{self._variable(value)} = {load}")
        return self._variables[value]

    def write(self, value: Hashable, text: str) -> None:
        """Assign an expression, which may read this and other values, to a value."""
        self.line(f"{self._variable(value)} = {text}")
        self._made.add(value)

    def free(self, value: Hashable) -> None:
        """Drop a value."""
        if value in self._variables:
            variable = self._variables.pop(value)
            self._made.discard(value)
            self._unused.append(variable)
            self.line(f"del {variable}")
        else:
            self.line(f"del {_store(value)}[{self.bound(value)}]")

    def finish(self) -> tuple[Function, CodeType, tuple[int, ...]]:
        """The function, its code, and by line the position of the action that the line belongs to."""
        self._position = -1
        for value in [value for value in self._variables if value in self._made]:
            self.line(f"{_store(value)}[{self.bound(value)}] = {self._variables[value]}")
        self.line("return")
        exec(compile("\n".join(self._lines), "<actions of a device>", "exec"), self._namespace)
        function = self._namespace.pop(self._name)
        return function, function.__code__, tuple(self._positions)

    def _variable(self, value: Hashable) -> str:
        if value not in self._variables:
            if not self._unused:
                self._unused.append(f"v{self._count}")
                self._count += 1
            self._variables[value] = self._unused.pop()
        return self._variables[value]


def _store(value: Hashable) -> str:
    """Where values live between functions: tensors by name, copies under way by (tensor, target)."""
    return "values" if isinstance(value, str) else "copies"
