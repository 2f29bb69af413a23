"""Ctrl-C at any moment: one line and exit code 130, also while packages are imported.

This module imports nothing of ours: it is the first that runs.
"""

import atexit
import contextlib
import os
import signal
from types import FrameType

INTERRUPTED = 130
"""Exit code: 128 and the number of SIGINT, as shells report it."""

_SHOW_CURSOR = b"\x1b[?25h"


def end_on_interrupt() -> None:
    """From now on, end this process at Ctrl-C at once, unless a command handles it in another way.

    Not by KeyboardInterrupt: raised in the middle of an import it leaves half a package behind, which an extension
    module's init reports as another error, and Python drops it in callbacks of the garbage collector. Files are written
    atomically and processes of ours end with this one, so there is nothing to tidy up.
    """
    if hasattr(signal, "SIGINT"):
        owner = os.getpid()

        def end(number: int, frame: FrameType | None) -> None:
            if os.getpid() == owner:
                _say(b"dlplacer: interrupted\n")
            os._exit(INTERRUPTED)

        signal.signal(signal.SIGINT, end)
        # Then Python takes its modules apart, which with torch takes a good part of a second, and puts the system's
        # handler in the place of ours, but not of this one: a command that is done has succeeded.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _say(text: bytes) -> None:
    """Write to stderr without its buffer, whose lock the interrupted code may hold."""
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)  # a progress line hides it
        os.write(2, text)
