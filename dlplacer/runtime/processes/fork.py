"""Forking a worker from a device's thread."""

import gc
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe

import torch

from dlplacer.core.errors import RunError
from dlplacer.planning.interrupt import blocked_interrupts, leave_signals_to_parent
from dlplacer.runtime.devices.cpu import CpuDevice, pin_thread

_forking = threading.Lock()


def fork_worker(thread: CpuDevice, core: int, serve: Callable[[Connection], None]) -> tuple[int, Connection]:
    """Process id of a new process that serves one end of a connection on a core, and the other end.

    Parameters
    ----------
    thread
        A device whose thread forks: it has never used a pool of threads, of which a fork has none, and it lives as long
        as the device. (A worker is told of the end of the thread that forked it, not of its process's.)

    Raises
    ------
    RunError
        If the system makes no process: too many of them, or too little memory.
    """
    try:
        return thread.submit(lambda: _fork(core, serve)).result()
    except OSError as error:
        raise RunError(
            f"no process can be made for core {core}: {error.strerror}; end other processes, or apply the plan with "
            'processes="off"'
        ) from error


def _fork(core: int, serve: Callable[[Connection], None]) -> tuple[int, Connection]:
    # One at a time: a worker that held the end of another's connection would hide that one's death.
    # No Ctrl-C between fork and the moment at which the worker leaves it to its parent.
    with _forking, blocked_interrupts(), warnings.catch_warnings():
        # Python warns that threads are not forked: workers use none.
        warnings.simplefilter("ignore", DeprecationWarning)
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                _live_as_worker(parent, core)
                serve(theirs)
                code = 0
            except BaseException:
                if os.environ.get("DLPLACER_DEBUG"):
                    traceback.print_exc()
            finally:
                # Nothing of the parent's is to be tidied up here, or written out a second time.
                os._exit(code)
        theirs.close()
    return pid, ours


def _live_as_worker(parent: int, core: int) -> None:
    # What the parent has made is not this process's to clean up: finalizers would end its other workers.
    gc.freeze()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    leave_signals_to_parent(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    pin_thread(core)
    torch.set_num_threads(1)
