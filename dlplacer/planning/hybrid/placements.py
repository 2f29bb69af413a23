"""Placements of all kinds of workers, solved ahead side by side and kept in a folder."""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlplacer.core.errors import DlplacerError, FileFormatError, InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.core.version import __version__
from dlplacer.files.graph_file import graph_to_dict
from dlplacer.files.text import read_json, write_json
from dlplacer.files.topology_file import topology_to_dict
from dlplacer.planning.hybrid.worker_layout import WorkerLayout, signature, sub_topology
from dlplacer.planning.hybrid.workers import Placed, PlaceSettings, WorkerSplit, gradient_shares, used_devices

FORMAT = "dlplacer.placement/1"


@dataclass(frozen=True)
class Placement:
    """A worker's machine that was solved.

    Attributes
    ----------
    value
        Fields of the result, with each device's share of the gradients and how many devices run ops; None if the solve
        failed.
    error
        Why it failed, or an empty text. Failures are not kept: the next run tries them again.
    cached
        True if the result was read from the folder.
    """

    name: str
    value: Any
    error: str = ""
    cached: bool = False


def presolve(
    placed: Placed,
    topology: Topology,
    devices: int,
    degrees: Sequence[int],
    executor: Executor,
    cache: str | Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Placement, ...]:
    """Solve, side by side, every placement that the planner will ask `placed` for; it then finds them solved.

    A machine for which there is no plan has no split. What failed for another reason stays unsolved: the planner meets
    the same error.

    Parameters
    ----------
    devices
        The planner's budget.
    executor
        Any `concurrent.futures.Executor`: threads, processes, MPI, Dask. It is not shut down.
    cache
        A folder for the results, made if it is not there, each written atomically as soon as it is known.
    on_progress
        Called in the calling thread with how many are done, and of how many.

    Raises
    ------
    InputError
        If the cache cannot be written.
    """
    machines = _machines(topology, devices, degrees)
    # One solver thread each: the executor keeps the cores busy.
    settings = replace(placed.settings, workers=1)
    folder = None if cache is None else _folder(Path(cache))
    found: dict[Any, Placement] = {}
    futures: dict[Future[Any], Any] = {}
    paths = {key: _path(folder, placed.graph, machine, settings) for key, machine in machines.items()}
    for key, machine in machines.items():
        kept = _read(paths[key])
        if kept is not None:
            found[key] = Placement(_name(placed.graph, machine, settings), kept, cached=True)
            on_progress(len(found), len(machines))
        else:
            futures[executor.submit(_solved, placed.graph, machine, settings)] = key
    try:
        for future in as_completed(futures):
            key = futures[future]
            name = _name(placed.graph, machines[key], settings)
            try:
                found[key] = Placement(name, future.result())
            except (InfeasibleError, NoPlanError) as error:
                found[key], placed.solved[key] = Placement(name, None, str(error)), None
            except DlplacerError as error:
                found[key] = Placement(name, None, str(error))
            path, value = paths[key], found[key].value
            if path is not None and value is not None:
                write_json(path, {"format": FORMAT, "task": name, "result": value})
            on_progress(len(found), len(machines))
    except BaseException:
        # Ctrl-C or a mistake: an executor would run all that is queued before it lets the program end.
        for future in futures:
            future.cancel()
        raise
    for key, row in found.items():
        if row.value is not None:
            speedup, shares = placed.single_s / row.value["makespan_s"], tuple(row.value["gradient_shares"])
            placed.solved[key] = WorkerSplit(speedup, "placement", 1, shares, row.value["used"])
    return tuple(found[key] for key in machines)


def _machines(topology: Topology, devices: int, degrees: Sequence[int]) -> dict[Any, Topology]:
    """Signature → a machine of one worker, for all that the planner asks about."""
    layout = WorkerLayout(topology)
    found: dict[Any, Topology] = {}
    for degree in degrees:
        for count in layout.telling_counts(devices, degree):
            for worker in layout.kinds(count, degree):
                machine = sub_topology(topology, worker)
                found.setdefault(signature(machine), machine)
    return found


def _solved(graph: OpGraph, topology: Topology, settings: PlaceSettings) -> dict[str, Any]:
    result = settings.place(graph, topology)
    shares, used = list(gradient_shares(result.plan)), used_devices(result.plan)
    return {**result.to_dict(), "gradient_shares": shares, "used": used}


def _name(graph: OpGraph, topology: Topology, settings: PlaceSettings) -> str:
    machine = topology.name or f"{len(topology.devices)} devices"
    return f"{graph.name or 'graph'} on {machine}, {settings.method}"


def _path(folder: Path | None, graph: OpGraph, topology: Topology, settings: PlaceSettings) -> Path | None:
    """The file of a result, named by a hash of all that it depends on; another version may find another plan."""
    if folder is None:
        return None
    chosen = {**vars(settings), "options": settings.options.to_dict()}
    value = [__version__, graph_to_dict(graph), topology_to_dict(topology), chosen]
    return folder / f"{hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()}.json"


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the cache folder {folder}: {error.strerror or error}; choose another") from error
    return folder


def _read(path: Path | None) -> Any:
    """The result in the file; None if it cannot be read, so that it is computed again."""
    if path is None or not path.exists():
        return None
    try:
        known = read_json(path)
    except FileFormatError:
        return None
    return known["result"] if isinstance(known, dict) and known.get("format") == FORMAT and "result" in known else None
