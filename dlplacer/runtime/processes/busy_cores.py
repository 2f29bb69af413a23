"""Processes that keep cores busy while something is timed on another."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from dlplacer.core.errors import RunError
from dlplacer.planning.interrupt import deferred_interrupts
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes.fork import fork_worker
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.worker_handle import WorkerHandle, end_workers

_READY, _BEGIN, _END = b"ready", b"begin", b"end"


class BusyCores:
    """A process for each core that is to be busy, forked when it first is.

    Parameters
    ----------
    work
        Called once in each process, with its core as a device: what it does again and again while it is busy.
    """

    def __init__(self, devices: Sequence[CpuDevice], work: Callable[[InlineDevice], Callable[[], object]]) -> None:
        self._devices, self._work = devices, work
        self._neighbours: dict[int, WorkerHandle] = {}
        self._handles: list[WorkerHandle] = []
        self._finalizer = weakref.finalize(self, end_workers, self._handles)

    @contextmanager
    def busy(self, positions: Sequence[int]) -> Iterator[None]:
        """Keep the cores of these devices busy for a while.

        Raises
        ------
        RunError
            If such a process ends.
        """
        neighbours = [self._neighbour(position) for position in positions]
        try:
            for neighbour in neighbours:
                _say(neighbour, _BEGIN)
            yield
            for neighbour in neighbours:
                _say(neighbour, _END)
        except BaseException:
            # A Ctrl-C may have come between what was said and the answer: nobody knows what they do now.
            self.close()
            raise

    def close(self) -> None:
        """End the processes."""
        with deferred_interrupts():
            self._finalizer()

    def _neighbour(self, position: int) -> WorkerHandle:
        if position not in self._neighbours:
            device = self._devices[position]
            with deferred_interrupts():
                made = WorkerHandle(device.name, *fork_worker(self._devices[0], device.core, self._server(device)))
                self._handles.append(made)
            made.await_ready()
            self._neighbours[position] = made
        return self._neighbours[position]

    def _server(self, device: CpuDevice) -> Callable[[Connection], None]:
        make, inline = self._work, InlineDevice(device.name, device.type)

        def serve(connection: Connection) -> None:
            work = make(inline)
            work()
            connection.send_bytes(_READY)
            while connection.recv_bytes() == _BEGIN:
                connection.send_bytes(_BEGIN)
                while not connection.poll():
                    work()
                connection.recv_bytes()
                connection.send_bytes(_END)

        return serve


def _say(neighbour: WorkerHandle, word: bytes) -> None:
    """Tell a process to begin or to end its work, and wait until it does."""
    try:
        neighbour.connection.send_bytes(word)
        neighbour.connection.recv_bytes()
    except (EOFError, OSError) as error:
        # Its connection ends a moment before it does.
        neighbour.kill()
        neighbour.bury()
        raise RunError(
            f"the process that keeps the core of device {neighbour.device!r} busy while others are timed "
            f'{neighbour.ending}; run the plan with processes="off"'
        ) from error
