"""Processes that end with the one that started them, however that ends."""

import contextlib
import os
import threading

from dlplacer.planning.interrupt import end_with_parent


class Lifeline:
    """A pipe that nobody writes to: it closes when the process that made it is gone."""

    def __init__(self) -> None:
        self._held, self._end = os.pipe()
        self._maker = os.getpid()

    def hold_on(self) -> None:
        """In a forked process: end at once when the one that made this is gone.

        Twice: the system's signal comes whatever this process does, and the pipe where the system has no such signal.
        """
        os.close(self._end)
        end_with_parent(self._maker)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def close(self) -> None:
        """Let go, where it was made."""
        os.close(self._held)
        os.close(self._end)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._held, 1)
        os._exit(1)
