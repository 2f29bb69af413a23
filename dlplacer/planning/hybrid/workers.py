"""Model parallelism for the planner: the speedup of one worker's step on M devices, solved one by one or ahead."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from dlplacer.core.errors import DlplacerError, FileFormatError, InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.core.version import __version__
from dlplacer.files.graph_file import graph_to_dict
from dlplacer.files.text import read_json, write_json
from dlplacer.files.topology_file import topology_to_dict
from dlplacer.planning.hybrid.worker_layout import WorkerLayout, signature, sub_topology
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.place import place


@dataclass(frozen=True)
class WorkerSplit:
    """The split of a worker's step over its devices.

    Attributes
    ----------
    speedup
        SU^M: the step on one device ÷ on these.
    method
        The source of the split: ``placement``, ``pipeline``, ``given``.
    micro_batches
        Parts into which the mini-batch is cut.
    shares
        The share of the gradients that each device holds; empty for equal shares.
    used
        The number of devices that run ops; 0 stands for all.
    """

    speedup: float
    method: str = "given"
    micro_batches: int = 1
    shares: tuple[float, ...] = ()
    used: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.speedup < float("inf"):
            raise InputError(f"model-parallel speedup is {self.speedup}; it must be positive and finite")
        if self.micro_batches < 1:
            raise InputError(f"{self.micro_batches} micro-batches; there must be at least 1")


ModelParallel = Callable[[int, Topology | None], float | WorkerSplit | Iterable[WorkerSplit] | None]
"""(M, the machine of one worker) → its speedup or its possible splits; None or nothing where M devices cannot do it.

The machine is None where the planner was given none.
"""

ALONE = WorkerSplit(1.0, "one device")


def splits_of(answer: float | WorkerSplit | Iterable[WorkerSplit] | None) -> tuple[WorkerSplit, ...]:
    """The answer of a `ModelParallel` as a tuple."""
    if answer is None:
        return ()
    if isinstance(answer, WorkerSplit):
        return (answer,)
    if isinstance(answer, (int, float)):
        return (WorkerSplit(float(answer)),)
    return tuple(answer)


@dataclass(frozen=True)
class SpeedupTable:
    """Speedups that are known: M → SU^M; degrees that are not listed cannot be used."""

    speedups: Mapping[int, float]

    def __post_init__(self) -> None:
        for degree, speedup in self.speedups.items():
            if degree < 2 or not speedup > 0:
                raise InputError(f"speedup {speedup} of {degree} devices: at least 2 devices and a positive speedup")

    def __call__(self, degree: int, _topology: Topology | None) -> WorkerSplit | None:
        """The listed speedup."""
        return WorkerSplit(self.speedups[degree]) if degree in self.speedups else None


class SplitPerMachine(ABC):
    """A source of splits that looks at each kind of machine once: those that differ in names alone are one.

    Parameters
    ----------
    single_s
        Step time on one device, to which speedups refer.
    """

    def __init__(self, graph: OpGraph, single_s: float) -> None:
        if not single_s > 0:
            raise InputError(f"step time on one device is {single_s} s; it must be positive")
        self.graph, self.single_s = graph, single_s
        self.solved: dict[tuple[object, ...], WorkerSplit | None] = {}

    def __call__(self, degree: int, topology: Topology | None) -> WorkerSplit | None:
        """The split on a worker's machine; None if there is none."""
        if topology is None:
            raise InputError("a worker's step is planned on its machine; give the planner a topology")
        key = signature(topology)
        if key not in self.solved:
            self.solved[key] = self._split(degree, topology)
        return self.solved[key]

    @abstractmethod
    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        """The split on a machine that was not tried before; None if there is none."""


@dataclass(frozen=True)
class PlaceSettings:
    """The arguments of `dlplacer.planning.place.place` for each solve.

    The gap and the limit are those of many solves in a row: a percent of a worker's step decides nothing here.
    """

    options: Options = field(default_factory=Options)
    method: str = "ilp"
    time_limit_s: float = 20.0
    gap: float = 0.01
    seed: int = 0
    workers: int | None = None

    def place(self, graph: OpGraph, topology: Topology, method: str | None = None, stop: Event | None = None) -> Result:
        """The result of one solve, by another method if one is named."""
        return place(
            graph,
            topology,
            self.options,
            method=method or self.method,
            time_limit_s=self.time_limit_s,
            gap=self.gap,
            seed=self.seed,
            workers=self.workers,
            stop=stop,
        )


class Placed(SplitPerMachine):
    """Speedups from the solver: the graph is placed on the machine that a worker really gets.

    A machine whose memory the graph exceeds, or for which no plan was found in time, has no split.

    Parameters
    ----------
    settings
        Of each solve; one device needs no method.
    stop
        Once it is set, the solve at hand ends, and KeyboardInterrupt is raised instead of starting others.
    """

    def __init__(
        self, graph: OpGraph, single_s: float, settings: PlaceSettings | None = None, stop: Event | None = None
    ) -> None:
        super().__init__(graph, single_s)
        self.settings, self.stop = settings or PlaceSettings(), stop

    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        try:
            method = "single" if degree == 1 else self.settings.method
            split = self.split_of(_solved(self.graph, topology, self.settings, method, self.stop))
        except (InfeasibleError, NoPlanError):
            split = None
        # Ctrl-C ends a solve with the best plan so far, or none; the solves that would follow are not wanted either.
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt
        return split

    def split_of(self, value: Mapping[str, Any]) -> WorkerSplit:
        """The split in the fields of a `Placement`."""
        speedup, shares = self.single_s / value["makespan_s"], tuple(value["gradient_shares"])
        return WorkerSplit(speedup, "placement", 1, shares, value["used"])


def shares_of(graph: OpGraph, placed: Iterable[tuple[str, str]], topology: Topology) -> tuple[float, ...]:
    """The share of the gradients that each device holds, by (op, its device); ops without gradients may be left out."""
    held = dict.fromkeys(topology.device_index, 0)
    for op, device in placed:
        held[device] += graph.op(op).gradient_bytes
    total = sum(held.values())
    return tuple(size / total for size in held.values()) if total else ()


class Several:
    """The splits of several sources together: placements and pipelines."""

    def __init__(self, *sources: ModelParallel) -> None:
        self.sources = sources

    def __call__(self, degree: int, topology: Topology | None) -> tuple[WorkerSplit, ...]:
        """All splits of all sources."""
        return tuple(split for source in self.sources for split in splits_of(source(degree, topology)))


class PipelinedWorkers(SplitPerMachine):
    """The best pipeline over all devices of a worker, with its number of micro-batches.

    There is no split if the graph exceeds a machine's memory, or has fewer parts than the machine has devices.
    """

    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        try:
            plan = plan_pipeline(self.graph, topology, stages=degree)
        except InfeasibleError:
            return None
        placed = ((name, stage.device) for stage in plan.stages for name in stage.ops)
        shares = shares_of(self.graph, placed, topology)
        return WorkerSplit(self.single_s / plan.step_s, "pipeline", plan.micro_batches, shares)


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
    names = {
        key: f"{placed.graph.name or 'graph'} on {machine.name or f'{len(machine.devices)} devices'}, {settings.method}"
        for key, machine in machines.items()
    }

    def done(key: Any, row: Placement) -> None:
        found[key] = row
        if row.value is not None:
            placed.solved[key] = placed.split_of(row.value)
        on_progress(len(found), len(machines))

    for key, machine in machines.items():
        kept = _read(paths[key])
        if kept is not None:
            done(key, Placement(names[key], kept, cached=True))
        else:
            futures[executor.submit(_solved, placed.graph, machine, settings, settings.method)] = key
    try:
        for future in as_completed(futures):
            key = futures[future]
            try:
                row = Placement(names[key], future.result())
            except DlplacerError as error:
                row = Placement(names[key], None, str(error))
                if isinstance(error, InfeasibleError | NoPlanError):
                    placed.solved[key] = None
            path = paths[key]
            if path is not None and row.value is not None:
                write_json(path, {"format": FORMAT, "task": row.name, "result": row.value})
            done(key, row)
    except BaseException:
        # Ctrl-C or a mistake: an executor would run all that is queued before it lets the program end.
        for future in futures:
            future.cancel()
        raise
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


def _solved(
    graph: OpGraph, topology: Topology, settings: PlaceSettings, method: str, stop: Event | None = None
) -> dict[str, Any]:
    """The result of one solve, each device's share of the gradients, and how many devices run ops with a duration."""
    result = settings.place(graph, topology, method, stop)
    plan = result.plan
    shares = shares_of(graph, ((entry.op, entry.device) for entry in plan.ops), topology)
    used = len({entry.device for entry in plan.ops if entry.end_s > entry.start_s})
    return {**result.to_dict(), "gradient_shares": list(shares), "used": used}


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
