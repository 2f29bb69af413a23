"""Ctrl-C at any moment prints one line and exits with code 130, even while packages are imported.

This module runs first, and imports no other module of dlplacer until its handler is installed.
"""

import atexit
import contextlib
import os
import signal
from types import FrameType

INTERRUPTED = 130
"""Exit code: 128 plus the number of SIGINT, by the convention of shells."""

_SHOW_CURSOR = b"\x1b[?25h"


def end_on_interrupt() -> None:
    """Make Ctrl-C end this process at once, unless a command installs its own handler.

    KeyboardInterrupt is not enough: during an import it leaves a half-loaded package, which an extension module's init
    reports as another error; in callbacks of the garbage collector, Python drops it. Nothing needs cleaning up, because
    files are written atomically, and child processes end with this process.
    """
    if hasattr(signal, "SIGINT"):
        owner = os.getpid()

        def end(number: int, frame: FrameType | None) -> None:
            # Of several ranks on one terminal, only rank 0 prints the line.
            if os.getpid() == owner and os.environ.get("RANK", "0") == "0":
                _say(b"dlplacer: interrupted\n")
            os._exit(INTERRUPTED)

        signal.signal(signal.SIGINT, end)
        # While Python unloads its modules (with torch, for much of a second), it replaces our handler by the system's,
        # but keeps SIG_IGN. So Ctrl-C cannot fail a command that is done.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def end_with_launcher() -> None:
    """Under torchrun, have the system end this rank when torchrun ends, or end it now if torchrun has ended.

    A killed torchrun does not notify its ranks, which would wait for minutes for its store.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    from dlplacer.planning.interrupt import end_with_parent

    parent = os.getppid()
    end_with_parent(parent)
    # Process 1 adopts orphans, but in some containers it is torchrun itself.
    if parent == 1 and not _is_python(parent):
        os._exit(1)


def _is_python(process: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{process}/exe", "/proc/self/exe")
    except OSError:
        return False


def _say(text: bytes) -> None:
    """Write to stderr unbuffered, because the interrupted code may hold the buffer's lock."""
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)  # a progress line hides it
        os.write(2, text)
