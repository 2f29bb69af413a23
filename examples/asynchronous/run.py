"""Asynchronous elastic averaging on the cores of one machine: processes around one centre in shared memory."""

import pickle
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from asynchronous.worker import (
    AsyncSettings,
    AsyncWorker,
    Event,
    SharedMemory,
    read_events,
    write_events,
)
from dlplacer.core.errors import InputError, RunError, first_line

Train = Callable[[AsyncWorker], Any]
_LOOK_S = 0.5


@dataclass(frozen=True)
class AsyncResult:
    """The outcome of asynchronous training.

    Attributes
    ----------
    centre
        The centre as a state dict of the model.
    results
        Return values of `train`, by worker.
    events
        Exchanges, in order, by worker; reads and writes are two where both are recorded. Empty for Hogwild without a
        record, whose order nobody knows.
    """

    centre: dict[str, Tensor] = field(repr=False)
    results: tuple[Any, ...]
    events: tuple[int, ...] = field(repr=False)


class WorkerError(RunError):
    """A worker of asynchronous training failed or was lost, which ended all others.

    Attributes
    ----------
    centre
        The centre as it was then, as a state dict of the model; empty before workers had joined.
    """

    def __init__(self, message: str, centre: dict[str, Tensor]) -> None:
        super().__init__(message)
        self.centre = centre


def run_async(
    train: Train,
    workers: int = 4,
    rule: str = "async",
    momentum: float = 0.0,
    lock: bool = True,
    record: str | PathLike[str] | None = None,
    *,
    pull: float | None = 0.1,
    sync_every: int = 1,
    replay: str | PathLike[str] | None = None,
    seed: int = 0,
    timeout_s: float = 600.0,
    threads: int = 1,
    start_method: str = "spawn",
) -> AsyncResult:
    """Train in several processes that exchange with one centre, each on its own (You, Buluç and Demmel 2017, 5.1).

    ``train(worker)`` runs in every process. It joins with a model, trains it in plain torch, and may return anything
    that can be pickled::

        def train(worker):
            model = worker.join(make_model())  # the centre's weights, which are worker 0's at first
            optimizer = worker.optimizer(lr=0.1)  # SGD whose steps exchange with the centre
            for batch in batches(worker.rank, worker.workers):
                optimizer.zero_grad()
                loss(model, batch).backward()
                optimizer.step()

    With an optimizer of its own it calls ``worker.exchange()`` before the step, or without a pull after it. Processes
    import the script anew: call this under ``if __name__ == "__main__":``.

    Parameters
    ----------
    train
        A function at the top of a module, as processes import it for themselves.
    rule
        Exchanges in the order of arrival (``"async"``), or of workers (``"round_robin"``), which may have to compute
        one after the other, too (``"one_at_a_time"``: original EASGD without overlap).
    momentum
        Of the optimizers that workers make (asynchronous MEASGD); without a pull, of the centre (asynchronous MSGD).
    lock
        False for Hogwild: workers read and write the centre at the same time.
    record
        File for the order of events; Hogwild's reads and writes are then whole events.
    pull, sync_every
        a = η·ρ: the share of their difference by which worker and centre move; None for SGD around a parameter server,
        which adds up what workers change, and whose values they take. Optimizer steps from one exchange to the next.
    replay
        A recorded order, which the same training follows to the bit.
    seed, threads
        Worker r begins with torch's and Python's random numbers of seed + r, and has so many threads of torch.
    timeout_s
        A worker that neither exchanges nor ends for so long counts as lost.
    start_method
        Of multiprocessing; ``"fork"`` inherits `train`, also that of a notebook, and must come before any use of CUDA.

    Raises
    ------
    InputError
        If settings contradict each other or a record, or diverge for every curvature.
    WorkerError
        If `train` raises, a worker is lost, or a replay leaves the record. It ends all workers and has the last centre.
    """
    settings = AsyncSettings(workers, rule, momentum, pull, sync_every, lock, seed)
    if not timeout_s > 0 or threads < 1:
        raise InputError(f"timeout_s is {timeout_s:g} and threads {threads}; give more than 0 seconds and a thread")
    recorded = None if replay is None else read_events(replay, settings)
    with tempfile.TemporaryDirectory(prefix="dlplacer-async-") as folder:
        shared = SharedMemory(multiprocessing.get_context(start_method), workers, Path(folder))
        in_order = lock or record is not None or recorded is not None
        _supervise((train, settings, shared, recorded, in_order, threads), start_method, shared, timeout_s)
        outcomes = [_outcome(shared, rank) for rank in range(workers)]
        centre = shared.state_dict()
    numbered = [(number, (kind, rank)) for rank, (_, own) in enumerate(outcomes) for number, kind in own]
    events: tuple[Event, ...] = tuple(event for _, event in sorted(numbered))
    if record is not None:
        write_events(record, settings, events)
    return AsyncResult(centre, tuple(result for result, _ in outcomes), tuple(rank for _, rank in events))


def _work(
    rank: int,
    train: Train,
    settings: AsyncSettings,
    shared: SharedMemory,
    recorded: tuple[Event, ...] | None,
    in_order: bool,
    threads: int,
) -> None:
    """One worker's process: train, and leave the result in the folder."""
    # Torch interrupts workers when their parent dies, which those of a shell's background job would ignore.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(threads)
    torch.manual_seed(settings.seed + rank)
    random.seed(settings.seed + rank)
    worker = AsyncWorker(rank, settings, shared, recorded, in_order)
    result = train(worker)
    worker.finish()
    try:
        content = pickle.dumps((result, worker.events))
    except Exception as error:
        raise InputError(
            f"returned what cannot be sent to the process that called run_async: {first_line(error)}"
        ) from None
    (shared.folder / f"result{rank}").write_bytes(content)


def _supervise(arguments: tuple[Any, ...], method: str, shared: SharedMemory, timeout_s: float) -> None:
    """Run all workers to their end; end them all once one fails, is killed, or is inactive for too long."""
    workers = len(shared.done)
    start: Callable[..., Any] = start_processes
    running = start(_work, arguments, nprocs=workers, join=False, daemon=True, start_method=method)
    try:
        while not running.join(timeout=_LOOK_S):
            active_s = {rank: shared.active_s[rank] for rank in range(workers) if not shared.done[rank]}
            # Others may only wait for a lock, or a turn, of the one that has been inactive for longest.
            stuck = min(active_s, key=active_s.__getitem__, default=None)
            if stuck is not None and time.monotonic() - active_s[stuck] > timeout_s:
                raise WorkerError(
                    f"worker {stuck} was inactive for {timeout_s:g} s, so all were ended", shared.state_dict()
                )
    except ProcessRaisedException as error:
        kind, _, message = str(error).strip().splitlines()[-1].partition(": ")
        if kind.endswith(".InputError"):
            raise InputError(f"worker {error.error_index} {message}") from None
        said = message if kind.endswith(".RunError") else f"raised {kind}: {message}"
        raise WorkerError(f"worker {error.error_index} {said}", shared.state_dict()) from error
    except ProcessExitedException as error:
        how = f"ended with exit code {error.exit_code}"
        raise WorkerError(f"worker {error.error_index} {how}, so all were ended", shared.state_dict()) from None
    finally:
        for process in running.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _outcome(shared: SharedMemory, rank: int) -> tuple[Any, list[tuple[int, str]]]:
    path = shared.folder / f"result{rank}"
    if not path.exists():
        raise WorkerError(f"worker {rank} ended the process within train; return from it", shared.state_dict())
    found: tuple[Any, list[tuple[int, str]]] = pickle.loads(path.read_bytes())
    return found
