"""A Ctrl-C at a chosen place of a function: between any two instructions of Python."""

import ctypes
import dis
import functools
import re
import signal
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_trip = ctypes.pythonapi.PyErr_SetInterrupt
"""What the system's signal handler does: the interpreter looks at it where it looks at signals, and nowhere before. A
handler that Python code sends would already be answered in that code."""
_trip.argtypes = [ctypes.py_object] * 3
_trip.restype = None
_LOOKED_AT_AFTER = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")

Place = tuple[CodeType, int, CodeType, int]
"""An instruction and the one that called its function."""


def places(function: Callable[[], object], files: str = "") -> list[int]:
    """The numbers of the instructions at which signals are looked at in a call of a function, each place once.

    Parameters
    ----------
    files
        A regular expression that is found in the names of the files of the places.
    """
    found: dict[Place, int] = {}
    count = 0

    def on_instruction(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            looked_at = _name(frame.f_code, frame.f_lasti) in _LOOKED_AT_AFTER
            if looked_at and frame.f_back is not None and re.search(files, frame.f_code.co_filename):
                place = frame.f_code, frame.f_lasti, frame.f_back.f_code, frame.f_back.f_lasti
                found.setdefault(place, count - 1)
        return on_instruction

    _traced(function, on_instruction)
    return sorted(number for number in found.values() if number > 0)


def interrupted_at(number: int, function: Callable[[], object]) -> bool:
    """Call a function, with a Ctrl-C before an instruction that `places` has found; whether it went so far.

    Raises
    ------
    KeyboardInterrupt
        If the Ctrl-C was not lost.
    """
    count, struck = 0, False

    def on_instruction(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return _trip if count == number and event == "opcode" else on_instruction

    def on_signal(_: int, frame: FrameType | None) -> None:
        nonlocal struck
        sys.settrace(None)
        if not struck:
            struck = True
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        _traced(function, on_instruction, lambda: count >= number)
    finally:
        signal.signal(signal.SIGINT, before)
    return struck


def _traced(function: Callable[[], object], local: Any, done: Callable[[], bool] = lambda: False) -> None:
    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        if done():
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        function()
    finally:
        sys.settrace(before)


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {one.offset: one.opname for one in dis.get_instructions(code)}


def _name(code: CodeType, offset: int) -> str:
    return _names(code).get(offset, "")
