"""Ctrl-C at any moment: one line and exit code 130, also while packages are imported.

This module runs first, and imports no other module of dlplacer before it is ready.
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
            # Of several ranks of a terminal one says so.
            if os.getpid() == owner and os.environ.get("RANK", "0") == "0":
                _say(b"dlplacer: interrupted\n")
            os._exit(INTERRUPTED)

        signal.signal(signal.SIGINT, end)
        # Then Python takes its modules apart, which with torch takes a good part of a second, and puts the system's
        # handler in the place of ours, but not of this one: a command that is done has succeeded.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def end_with_launcher() -> None:
    """Under torchrun, have the system end this rank when torchrun ends, and end it now if that has happened already.

    Torchrun that is killed tells its ranks nothing, and they would wait for its store for minutes.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    from dlplacer.planning.interrupt import end_with_parent

    parent = os.getppid()
    end_with_parent(parent)
    # An orphan belongs to the first process of the system, which is torchrun itself in some containers.
    if parent == 1 and not _is_python(parent):
        os._exit(1)


def _is_python(process: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{process}/exe", "/proc/self/exe")
    except OSError:
        return False


def _say(text: bytes) -> None:
    """Write to stderr without its buffer, whose lock the interrupted code may hold."""
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)  # a progress line hides it
        os.write(2, text)
