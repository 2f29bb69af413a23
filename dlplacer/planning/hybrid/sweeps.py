"""Many solves on any executor, resumable: what is solved already is read, not solved again."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dlplacer.core.errors import DlplacerError, FileFormatError, InputError
from dlplacer.core.version import __version__
from dlplacer.files.text import read_json, write_json

FORMAT = "dlplacer.sweep/1"


class SweepTask(Protocol):
    """One thing to compute. It is pickled to wherever the executor runs it."""

    @property
    def name(self) -> str:
        """For people: rows, progress and messages."""

    def content(self) -> Any:
        """A JSON value that holds everything the result depends on."""

    def run(self) -> Any:
        """The result, as a JSON value."""


@dataclass(frozen=True)
class SweepRow:
    """What became of a task.

    Attributes
    ----------
    key
        Hash of its content: the name of its file in the cache.
    value
        Its result; None if it failed.
    error
        Why it failed, or an empty text. Failures are not kept: the next run tries them again.
    cached
        Whether the result was read from the cache.
    """

    name: str
    key: str
    value: Any
    error: str = ""
    cached: bool = False


Report = Callable[[int, int, SweepRow], None]


def sweep(
    tasks: Iterable[SweepTask],
    executor: Executor,
    cache: str | Path | None = None,
    on_progress: Report = lambda done, total, row: None,
) -> tuple[SweepRow, ...]:
    """A row per task, in the order of the tasks.

    Equal tasks are computed once. Each result is written to the cache as soon as it is there, atomically, so that a
    sweep that was interrupted goes on where it stopped, also with more tasks or on another executor.

    Parameters
    ----------
    executor
        Any `concurrent.futures.Executor`: threads, processes, MPI (mpi4py.futures), Dask (``client.get_executor()``).
        It is not shut down.
    cache
        A folder, made if it is not there; None keeps nothing.
    on_progress
        Called in the calling thread with how many tasks are done, of how many, and the row just finished.

    Raises
    ------
    InputError
        If the cache cannot be written.
    """
    waiting = list(tasks)
    folder = None if cache is None else _folder(Path(cache))
    keys = [task_key(task) for task in waiting]
    rows: dict[str, SweepRow] = {}
    done = 0

    def finish(key: str, row: SweepRow) -> None:
        nonlocal done
        rows[key] = row
        done += keys.count(key)
        on_progress(done, len(keys), row)

    futures: dict[Future[Any], tuple[str, SweepTask]] = {}
    for key, task in dict(zip(keys, waiting, strict=True)).items():
        known = _read(folder, key)
        if known is not None:
            finish(key, SweepRow(task.name, key, known["result"], cached=True))
        else:
            futures[executor.submit(task.run)] = (key, task)
    try:
        for future in as_completed(futures):
            key, task = futures[future]
            finish(key, _collected(folder, key, task, future))
    except BaseException:
        # Ctrl-C or a mistake of a task: an executor would run all that is queued before it lets the program end.
        for future in futures:
            future.cancel()
        raise
    return tuple(replace(rows[key], name=task.name) for key, task in zip(keys, waiting, strict=True))


def task_key(task: SweepTask) -> str:
    """Hash over the kind and the content of a task, and the version of dlplacer."""
    # Another version may find another plan: what it keeps is its own.
    value = [type(task).__name__, __version__, task.content()]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sweep_frame(rows: Sequence[SweepRow]) -> Any:
    """A pandas DataFrame with a row per task: its name, the fields of its result, and why it failed."""
    import pandas

    def fields(row: SweepRow) -> dict[str, Any]:
        return row.value if isinstance(row.value, dict) else {"value": row.value}

    return pandas.DataFrame([{"task": row.name, **fields(row), "error": row.error} for row in rows])


def _collected(folder: Path | None, key: str, task: SweepTask, future: "Future[Any]") -> SweepRow:
    try:
        value = future.result()
    except DlplacerError as error:
        return SweepRow(task.name, key, None, f"{type(error).__name__}: {error}")
    if folder is not None:
        write_json(folder / f"{key}.json", {"format": FORMAT, "task": task.name, "result": value})
    return SweepRow(task.name, key, value)


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the cache folder {folder}: {error.strerror or error}; choose another") from error
    return folder


def _read(folder: Path | None, key: str) -> Any:
    """What the cache has; None if nothing, or nothing that can be read: then it is computed again."""
    path = None if folder is None else folder / f"{key}.json"
    if path is None or not path.exists():
        return None
    try:
        known = read_json(path)
    except FileFormatError:
        return None
    return known if isinstance(known, dict) and known.get("format") == FORMAT and "result" in known else None
