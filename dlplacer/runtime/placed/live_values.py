"""Values as mappings where Python has no dictionary of them: what a function reads, and what is in an array."""

import dis
import functools
import inspect
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from dlplacer.frontend.torch.tracing.installed_code import is_installed_file


class FunctionValues(Mapping[str, Any]):
    """The variables outside a function that it reads, and its attributes: name → value at the moment."""

    def __init__(self, function: FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells: dict[str, CellType] = {name: cell for name, cell in cells if _is_filled(cell)}
        self._globals = function.__globals__
        self._global_names = [name for name in _global_names(function.__code__) if name in self._globals]
        self._attributes = vars(function)

    def closes_over(self, name: str) -> bool:
        """Whether a variable is of the functions around this one, no global."""
        return name in self._cells

    def __getitem__(self, name: str) -> Any:
        """The value; KeyError if there is no such variable any more."""
        if name in self._cells:
            return self._cells[name].cell_contents
        return self._attributes[name] if name in self._attributes else self._globals[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._names())

    def _names(self) -> dict[str, None]:
        return dict.fromkeys((*self._cells, *self._attributes, *self._global_names))


class ArrayContents(Mapping[str, bytes]):
    """The elements of a NumPy array, which may be written in place."""

    def __init__(self, array: "np.ndarray[Any, Any]") -> None:
        self._array = array

    def __getitem__(self, name: str) -> bytes:
        """All elements, as they lie in memory."""
        if name != "elements":
            raise KeyError(name)
        return self._array.tobytes()

    def __iter__(self) -> Iterator[str]:
        """The one name."""
        yield "elements"

    def __len__(self) -> int:
        """One."""
        return 1


def is_foreign(function: FunctionType) -> bool:
    """Whether a function is of an installed package or of Python: what it reads is theirs, as registries and caches."""
    return is_installed_file(function.__code__.co_filename)


def called_methods(kind: type) -> dict[str, FunctionType]:
    """The forward of a class of modules, and what it names of the class's own functions, and these in turn.

    As they were written: without what decorators have put around them.
    """
    found: dict[str, FunctionType] = {}
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        method = inspect.getattr_static(kind, name, None)
        function = inspect.unwrap(getattr(method, "__func__", None) or getattr(method, "fget", None) or method)
        if name not in found and isinstance(function, FunctionType) and not is_foreign(function):
            found[name] = function
            waiting += _all_names(function.__code__)
    return found


def _is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Not ``co_names``: those of attributes are among them, and a script may use one of these for what it computes."""
    loads = [one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _global_names(each)]
    return tuple(dict.fromkeys([*loads, *inner]))


def _all_names(code: CodeType) -> tuple[str, ...]:
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _all_names(each)]
    return (*code.co_names, *inner)
