"""Processes that end with the one that started them, however that ends."""

import contextlib
import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


class Lifeline:
    """A pipe that nobody writes to: it closes when the process that made it is gone."""

    def __init__(self) -> None:
        self._held, self._end = os.pipe()

    def hold_on(self) -> None:
        """In a forked process: end at once when the one that made this is gone.

        Twice: the system's signal comes whatever this process does, and the pipe where the system has no such signal.
        """
        os.close(self._end)
        end_with_parent()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def close(self) -> None:
        """Let go, where it was made."""
        os.close(self._held)
        os.close(self._end)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._held, 1)
        os._exit(1)


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends; nothing where the system does not do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
