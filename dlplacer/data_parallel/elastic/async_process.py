"""A process of asynchronous training: one worker, from its start to its last word."""

import importlib
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from os import _exit
from typing import Any

import torch

from dlplacer.core.errors import DlplacerError, InputError, first_line
from dlplacer.data_parallel.elastic.async_worker import AsyncWorker, LostAsRecordedError
from dlplacer.data_parallel.elastic.event_record import AsyncSettings, EventRecord
from dlplacer.data_parallel.elastic.shared_centre import CentreFiles

INSIDE_WORKER = "DLPLACER_ASYNC_WORKER"
"""Set in the environment of workers, which must not start workers while they import the script."""

Train = Callable[[AsyncWorker], Any]


@dataclass(frozen=True)
class WorkerTask:
    """What a worker's process is given.

    Attributes
    ----------
    recorded
        The order to replay.
    keep_record
        Whether the order of events must be known.
    threads
        Of torch, per worker.
    """

    train: Train | str
    settings: AsyncSettings
    files: CentreFiles
    recorded: EventRecord | None
    keep_record: bool
    threads: int


def run_worker(rank: int, task: WorkerTask, pipe: Connection) -> None:
    """Train, and say how it ended: ("done", result), ("lost", None) or ("failed", (type, message, exit code))."""
    # An interrupt reaches all processes of a terminal; the one that started them ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(task.threads)
    torch.manual_seed(task.settings.seed + rank)
    random.seed(task.settings.seed + rank)
    worker = AsyncWorker(rank, task.settings, task.files, pipe, task.recorded, task.keep_record)
    try:
        result = train_of(task.train)(worker)
        worker.finish()
        said: tuple[str, Any] = ("done", result)
    except LostAsRecordedError:
        worker.finish(lost=True)
        said = ("lost", None)
    except Exception as error:
        code = error.exit_code if isinstance(error, DlplacerError) else 1
        said = ("failed", (type(error).__name__, first_line(error), code))
    try:
        pipe.send(said)
    except Exception as error:
        message = f"what train returned cannot be sent to the process that called run_async: {first_line(error)}"
        pipe.send(("failed", ("InputError", message, InputError.exit_code)))
    pipe.close()


def train_of(train: Train | str) -> Train:
    """The callable that is meant by ``module:callable``.

    Raises
    ------
    InputError
        If there is none.
    """
    if not isinstance(train, str):
        return train
    module, _, name = train.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"train is {train!r}; give a callable or 'module:callable' ({error})") from None
    if not callable(found):
        raise InputError(f"train is {train!r}, which is no callable but a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        _exit(1)
