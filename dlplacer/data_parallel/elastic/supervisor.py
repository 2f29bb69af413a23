"""Starts the workers of asynchronous training, watches them, and leaves none behind."""

import contextlib
import os
import time
import warnings
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from dlplacer.core.errors import InputError, RunError
from dlplacer.data_parallel.elastic.async_process import INSIDE_WORKER, WorkerTask, run_worker
from dlplacer.data_parallel.elastic.async_worker import BEGIN, WRITE_CENTRE, JoinedModel
from dlplacer.data_parallel.elastic.shared_centre import LOST, SharedCentre

_LOOK_S = 0.5
_END_S = 1.0
_CALLER = 6
"""Frames from `Supervisor._lose` to who calls `run_async`."""


class Supervisor:
    """The workers' processes.

    Attributes
    ----------
    results
        What workers returned.
    lost
        Worker → how it ended.
    """

    def __init__(self, context: BaseContext, task: WorkerTask, centre: SharedCentre, timeout_s: float) -> None:
        self.results: dict[int, Any] = {}
        self.lost: dict[int, str] = {}
        self._context = context
        self._task = task
        self._centre = centre
        self._timeout_s = timeout_s
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._joined: dict[int, JoinedModel] = {}
        self._first: int | None = None
        self._written = False
        self._begun = False
        self._reprieve_s = 0.0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            # A context that was not entered is not left: those that have started would wait for the others.
            self.__exit__(type(error), error, None)
            raise
        return self

    def _start(self) -> None:
        for rank in range(self._task.settings.workers):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(  # type: ignore[attr-defined]
                target=run_worker, args=(rank, self._task, theirs), name=f"worker{rank}", daemon=True
            )
            self._pipes.append(ours)
            with _inside():
                process.start()
            self._processes.append(process)
            theirs.close()
        self._reprieve_s = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + (_END_S if error is None else 0.0)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()

    def run(self) -> JoinedModel:
        """Wait until every worker has ended or is lost; returns the model that they trained.

        Raises
        ------
        InputError, RunError
            If a worker raises, all are lost, or none joined.
        """
        workers = range(len(self._processes))
        while waiting := [rank for rank in workers if rank not in self.results and rank not in self.lost]:
            ends = [end for rank in waiting for end in (self._pipes[rank], self._processes[rank].sentinel)]
            connection.wait(ends, _LOOK_S)
            for rank in waiting:
                self._hear(rank)
            self._welcome()
            self._end_stuck([rank for rank in waiting if rank not in self.results and rank not in self.lost])
        if not self.results:
            raise RunError(f"all workers were lost: {self._how_lost()}")
        if not self._joined:
            raise InputError("no worker joined with a model; train must call worker.join(model)")
        return next(iter(self._joined.values()))

    def _hear(self, rank: int) -> None:
        alive = self._processes[rank].is_alive()  # asked first: what a process says before it ends is there then
        try:
            while self._pipes[rank].poll():
                self._take(rank, *self._pipes[rank].recv())
        except (EOFError, OSError):
            alive = self._processes[rank].is_alive() and alive
        if not alive and rank not in self.results and rank not in self.lost:
            self._lose(rank, f"ended with exit code {self._processes[rank].exitcode}")

    def _take(self, rank: int, word: str, value: Any) -> None:
        if word == "done":
            self.results[rank] = value
        elif word == "lost":
            self.lost[rank] = "lost as recorded"
        elif word == "written":
            self._written = True
        elif word == "join":
            known = next(iter(self._joined.items()), None)
            if known is not None and known[1].layout != value.layout:
                raise InputError(f"worker {rank} joins with another model than worker {known[0]}; all train the same")
            self._joined[rank] = value
        else:
            name, message, code = value
            text = f"worker {rank}: {message if name in _OURS else f'{name}: {message}'}"
            raise InputError(text) if code == InputError.exit_code else RunError(text)

    def _welcome(self) -> None:
        """Let the first worker write the centre, and all begin together once it is written and they have joined."""
        coming = [rank for rank in range(len(self._processes)) if rank not in self.lost and rank not in self.results]
        if not self._written and (self._first is None or self._first in self.lost):
            self._first = coming[0] if coming and coming[0] in self._joined else None
            if self._first is not None:
                self._answer(self._first, WRITE_CENTRE)
        if self._written and not self._begun and set(coming) <= set(self._joined):
            self._begun = True
            for rank in coming:
                self._answer(rank, BEGIN)

    def _answer(self, rank: int, word: str) -> None:
        # Who is gone is found lost by its process.
        with contextlib.suppress(OSError):
            self._pipes[rank].send(word)

    def _lose(self, rank: int, how: str) -> None:
        self.lost[rank] = how
        self._centre.set_state(rank, LOST)
        warnings.warn(
            f"worker {rank} {how}; the centre and the other workers go on", RuntimeWarning, stacklevel=_CALLER
        )

    def _end_stuck(self, waiting: list[int]) -> None:
        """End the worker that has been inactive for longest, if that is too long.

        One at a time: others may only wait for a lock that this one holds.
        """
        if not waiting:
            return
        now = time.monotonic()
        stuck = min(waiting, key=self._centre.active_s)
        if now - max(self._centre.active_s(stuck), self._reprieve_s) > self._timeout_s:
            self._processes[stuck].kill()
            self._processes[stuck].join()
            self._lose(stuck, f"inactive for {self._timeout_s:g} s and ended")
            self._reprieve_s = now

    def _how_lost(self) -> str:
        return "; ".join(f"worker {rank} {how}" for rank, how in sorted(self.lost.items()))


_OURS = ("InputError", "RunError")


@contextlib.contextmanager
def _inside() -> Any:
    """Processes started here know that they are workers."""
    os.environ[INSIDE_WORKER] = "1"
    try:
        yield
    finally:
        del os.environ[INSIDE_WORKER]
