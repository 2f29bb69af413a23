"""Asynchronous elastic averaging on the cores of one machine: processes around one centre in shared memory."""

import os
import pickle
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.elastic.async_process import INSIDE_WORKER, Train, WorkerTask, train_of
from dlplacer.data_parallel.elastic.async_worker import JoinedModel
from dlplacer.data_parallel.elastic.event_record import (
    AsyncSettings,
    EventRecord,
    read_events,
    require_same,
    write_events,
)
from dlplacer.data_parallel.elastic.shared_centre import CentreFiles, SharedCentre
from dlplacer.data_parallel.elastic.stability import ElasticRecursion, require_stable
from dlplacer.data_parallel.elastic.supervisor import Supervisor


@dataclass(frozen=True)
class AsyncResult:
    """What asynchronous training came to.

    Attributes
    ----------
    centre
        The centre as a state dict of the model.
    results
        What `train` returned, by worker; None for lost ones.
    lost
        The workers that were lost, with how they ended.
    events
        Exchanges, in order, by worker; reads and writes are two where both are recorded. Empty for Hogwild without a
        record, whose order nobody knows.
    """

    centre: dict[str, Tensor] = field(repr=False)
    results: tuple[Any, ...]
    lost: dict[int, str]
    events: tuple[int, ...] = field(repr=False)


def run_async(
    train: Train | str,
    workers: int = 4,
    rule: str = "async",
    momentum: float = 0.0,
    lock: bool = True,
    record: str | PathLike[str] | None = None,
    *,
    pull: float = 0.1,
    sync_every: int = 1,
    eta_h: tuple[float, float] | None = None,
    replay: str | PathLike[str] | None = None,
    seed: int = 0,
    timeout_s: float = 600.0,
    threads: int = 1,
    start_method: str | None = None,
) -> AsyncResult:
    """Train in several processes that exchange with one centre, each on its own (You, Buluç and Demmel 2017, 5.1).

    ``train(worker)`` runs in every process. It joins with a model, trains it in plain torch, and may return anything
    that can be pickled::

        def train(worker):
            model = worker.join(make_model())  # the centre's weights, which are worker 0's at first
            optimizer = worker.optimizer(lr=0.1)  # SGD whose steps exchange with the centre
            for images, labels in batches(worker.rank, worker.workers):
                optimizer.zero_grad()
                loss(model(images), labels).backward()
                optimizer.step()

    With an optimizer of its own it calls ``worker.exchange()`` between ``backward()`` and the step.

    A worker that is killed or ends without a word is lost: all others go on, and the result names it. One that raises
    ends the run.

    Parameters
    ----------
    train
        A callable, or ``module:callable``.
    rule
        ``"async"``, in the order of arrival, or ``"round_robin"`` (original EASGD): one worker after the other.
    momentum
        Of the optimizers that workers make (asynchronous MEASGD).
    lock
        False for Hogwild: workers read and write the centre at the same time.
    record
        File for the order of events. Hogwild's reads and writes are then whole events in an order, each worker's
        write still coming any time after its read.
    pull, sync_every, seed
        As in `AsyncSettings`.
    eta_h
        Least and greatest learning rate × curvature expected; warns if some of it diverges.
    replay
        A recorded order, which the same training follows to the bit.
    timeout_s, threads
        A worker that neither exchanges nor ends for so long is ended, and lost; its threads of torch.
    start_method
        ``"spawn"``, ``"fork"`` or ``"forkserver"`` of multiprocessing; None for spawn, or fork if `train` can only be
        inherited, as in a notebook.

    Raises
    ------
    InputError
        If settings contradict each other or a record, or diverge for every curvature.
    RunError
        If `train` raises, all workers are lost, or a replay comes to another event than the record.
    """
    _require_outside_of_workers()
    settings = AsyncSettings(workers, rule, momentum, pull, sync_every, lock, seed)
    if not timeout_s > 0 or threads < 1:
        raise InputError(f"timeout_s is {timeout_s:g} and threads {threads}; give more than 0 seconds and a thread")
    require_stable(ElasticRecursion(pull, workers, momentum, sync_every, in_turn=True), eta_h)
    recorded = None if replay is None else _recorded(replay, settings)
    context = multiprocessing.get_context(start_method or _start_method(train))
    files = CentreFiles.create(workers)
    try:
        task = WorkerTask(train, settings, files, recorded, record is not None, threads)
        return _supervised(task, context, timeout_s, record)
    finally:
        files.close()


def _require_outside_of_workers() -> None:
    if os.environ.get(INSIDE_WORKER):
        raise InputError(
            "a worker calls run_async while it imports the script; put the call under if __name__ == '__main__':"
        )


def _recorded(replay: str | PathLike[str], settings: AsyncSettings) -> EventRecord:
    found = read_events(replay)
    require_same(found.settings, settings, replay)
    return found


def _supervised(task: WorkerTask, context: Any, timeout_s: float, record: str | PathLike[str] | None) -> AsyncResult:
    """What the workers of a task come to; their order is written to `record`, if that is given."""
    centre, settings = SharedCentre(task.files), task.settings
    with Supervisor(context, task, centre, timeout_s) as supervisor:
        model = supervisor.run()
    events = tuple(centre.events())
    if record is not None:
        write_events(record, EventRecord(settings, events, tuple(sorted(supervisor.lost))))
    centre.map_values(model.count, model.dtype)
    values = state_dict_of(centre.values, model)
    results = tuple(supervisor.results.get(rank) for rank in range(settings.workers))
    return AsyncResult(values, results, supervisor.lost, tuple(event // 3 for event in events))


def state_dict_of(vector: Tensor, model: JoinedModel) -> dict[str, Tensor]:
    """Tensors by name, of their shapes and dtypes."""
    values = {}
    for name, shape, dtype, start, stop in model.tensors:
        part = vector[start:stop]
        whole = part.to(torch.uint8).view(dtype) if start >= model.float_count else part.to(dtype)
        values[name] = whole.clone().view(shape)
    return values


def _start_method(train: Train | str) -> str:
    if isinstance(train, str):
        train_of(train)
        return "spawn"
    main = train.__module__ == "__main__" and not hasattr(__import__("__main__"), "__file__")
    try:
        pickle.dumps(train)
        inherited = main
    except (pickle.PicklingError, AttributeError, TypeError):
        inherited = True
    if not inherited:
        return "spawn"
    if not hasattr(os, "fork") or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise InputError(
            "train must be importable, as processes are started anew here: define it at the top of a module, or give "
            "'module:callable'"
        )
    return "fork"
