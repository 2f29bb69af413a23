"""Steps on one core while processes keep the others busy: what cores share besides an interpreter."""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TypeVar

from dlplacer.core.errors import RunError
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.fidelity.step_profiler import PlacedProfiler
from dlplacer.planning.interrupt import deferred_interrupts
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes.fork import fork_worker
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.worker_handle import WorkerHandle, end_workers
from dlplacer.runtime.profile.op_times import StepSample

T = TypeVar("T")
_READY, _BEGIN, _END = b"ready", b"begin", b"end"


class NeighbourProfiler:
    """A `StepProfiler` for devices that are processes: side by side is one device at a time, beside busy processes.

    Steps of several devices in threads of one process would wait for its interpreter, which processes do not share.
    What they share, caches, memory and what a virtual machine makes of its cores, shows in a step beside processes that
    take the same step on the other cores.

    Parameters
    ----------
    job
        With the module of which every process takes steps on a copy.
    profiler
        Times the steps; of the same devices.
    """

    def __init__(
        self, job: Job, captured: Captured, devices: Sequence[CpuDevice], profiler: PlacedProfiler | None = None
    ) -> None:
        self._profiler = profiler or PlacedProfiler(job, captured, devices)
        self._job, self._captured, self._devices = job, captured, devices
        self._neighbours: dict[int, WorkerHandle] = {}
        self._handles: list[WorkerHandle] = []
        self._finalizer = weakref.finalize(self, end_workers, self._handles)

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        """A step on each of these devices, timed op by op, while all others of them work."""
        return self._in_turn(self._profiler.recorded_steps, positions)

    def plain_steps(self, positions: Sequence[int]) -> list[float]:
        """Seconds of a step on each of these devices while all others of them work."""
        return self._in_turn(self._profiler.plain_steps, positions)

    def close(self) -> None:
        """End the processes."""
        with deferred_interrupts():
            self._finalizer()

    def _in_turn(self, take: Callable[[Sequence[int]], list[T]], positions: Sequence[int]) -> list[T]:
        found = []
        for position in positions:
            with self._busy([other for other in positions if other != position]):
                found += take([position])
        return found

    @contextmanager
    def _busy(self, positions: Sequence[int]) -> Iterator[None]:
        """Keep the cores of these devices busy for a while."""
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
        job, captured, inline = self._job, self._captured, InlineDevice(device.name, device.type)

        def serve(connection: Connection) -> None:
            steps = PlacedProfiler(replace(job, module=copy.deepcopy(job.module)), captured, [inline])
            steps.plain_steps([0])
            connection.send_bytes(_READY)
            while connection.recv_bytes() == _BEGIN:
                connection.send_bytes(_BEGIN)
                while not connection.poll():
                    steps.plain_steps([0])
                connection.recv_bytes()
                connection.send_bytes(_END)

        return serve


def _say(neighbour: WorkerHandle, word: bytes) -> None:
    """Tell a process to begin or to end its steps, and wait until it does."""
    try:
        neighbour.connection.send_bytes(word)
        neighbour.connection.recv_bytes()
    except (EOFError, OSError) as error:
        # Its connection ends a moment before it does.
        neighbour.kill()
        neighbour.bury()
        raise RunError(
            f"the process that keeps the core of device {neighbour.device!r} busy for a prediction {neighbour.ending}; "
            'run the plan with processes="off"'
        ) from error
