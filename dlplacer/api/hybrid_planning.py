"""Data parallelism, model parallelism or both: `hybrid`."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Unpack

from dlplacer.api.parameters import StepOptions, checked
from dlplacer.api.solving import Together, held_graph
from dlplacer.api.subjects import GraphLike, OptionsLike, TopologyLike, graph_of, machine_of, note, options_of, silent
from dlplacer.core.errors import InputError, RunError
from dlplacer.core.expect import expect_number, refuse
from dlplacer.core.topology import Topology

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from dlplacer.planning.hybrid.epochs import EpochsData
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.hybrid.measurements import Measurements
    from dlplacer.planning.hybrid.scaling import ScalingEfficiency, ScalingFits
    from dlplacer.planning.hybrid.step_times import StepTimes
    from dlplacer.planning.hybrid.workers import ModelParallel, Placed

_MOST_DEVICES = 65536
_NETWORK_LATENCY_S = 5e-6


@checked
def hybrid(
    graph: GraphLike,
    topology: TopologyLike,
    devices: int,
    epochs: "str | PathLike[str] | Mapping[int, float | None] | EpochsData | None" = None,
    options: OptionsLike = None,
    *,
    network: float | str | None = None,
    scaling_efficiency: float | None = None,
    measured: Mapping[int, float] | None = None,
    measurements: str | PathLike[str] | None = None,
    degrees: Sequence[int] | None = None,
    speedups: Mapping[int, float] | None = None,
    codecs: Sequence[str] | None = None,
    overlap: bool = True,
    split: str | None = None,
    colocate: Together = (),
    method: str | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int | None = None,
    jobs: int | None = None,
    cache: str | PathLike[str] | None = None,
    on_progress: Callable[[int, int], None] = silent,
    stop: Event | None = None,
    **step: Unpack[StepOptions],
) -> "HybridPlan":
    """The best strategy for every number of devices up to a budget: data parallelism, model parallelism or both.

    Raises InfeasibleError if no strategy trains the model, saying why.

    Examples
    --------
    >>> import dlplacer as dp
    >>> plan = dp.hybrid("inception_v3-train", "dgx1-v100-4gpu", 4, {1: 4, 4: 6}, speedups={2: 1.7})
    >>> plan.at(4).best.workers
    2
    """
    from dlplacer.machines.costs.roofline_times import with_times
    from dlplacer.planning.hybrid.hybrid import DEGREES, HybridProblem, plan_hybrid, plan_notes
    from dlplacer.planning.hybrid.measurements import NOTHING_MEASURED, read_measurements
    from dlplacer.planning.hybrid.step_times import ClosedForm, fastest_work
    from dlplacer.planning.hybrid.workers import Placed, PlaceSettings, SpeedupTable

    if devices > _MOST_DEVICES:
        raise InputError(f"devices is {devices}; at most {_MOST_DEVICES} budgets are planned, one by one")
    solving = {"split": split, "method": method, "jobs": jobs, "cache": cache}
    _refuse_unused("speedups say what a solve would find", bool(speedups), solving)
    _refuse_unused("split 'pipeline' places nothing", split == "pipeline", {"jobs": jobs, "cache": cache})
    scaling, fits = _scaling(scaling_efficiency, measured, network, (codecs, measurements, overlap))
    found = NOTHING_MEASURED if measurements is None else read_measurements(Path(measurements))
    box, known = machine_of(topology), epochs_of(epochs)
    timed = with_times(held_graph(graph_of(graph, step=step), box, (), colocate), box)
    machine = box if scaling is not None else _machine(box, devices, network, found)
    work = fastest_work(timed, box)
    known.require_mini_batch(work.mini_batch)
    _require_told(degrees or (), speedups)
    chosen = tuple(degrees or speedups or DEGREES)
    assumed = options_of(options)
    assumed.require_makespan("hybrid")
    settings = PlaceSettings(assumed, method or "ilp", time_limit_s, seed=seed, workers=workers)
    placed = None if speedups else Placed(timed, work.step_s, settings, stop)
    if placed is not None and split != "pipeline" and (jobs is not None or cache is not None):
        _presolve(placed, machine, devices, chosen, jobs or 1, cache, on_progress)
    problem = HybridProblem(
        replace(work, mini_batch=work.mini_batch or known.mini_batch),
        found.applied_to(known.efficiency),
        SpeedupTable(dict(speedups or {})) if placed is None else _split(placed, split),
        machine,
        _exchanges(machine, codecs, overlap, found) if scaling is None else ClosedForm(scaling),
        chosen,
        placed,
        known.samples,
        f"{timed.name or 'graph'} on {devices} devices of {machine.name}",
    )
    plan = plan_hybrid(problem, devices, on_progress)
    doubts = (*_doubts(chosen if degrees or speedups else (), speedups or {}, machine), *plan_notes(plan, timed))
    return replace(plan, warnings=doubts, scaling_fit=fits, epochs_fit=problem.efficiency.fit())


def epochs_of(value: "str | PathLike[str] | Mapping[int, float | None] | EpochsData | None") -> "EpochsData":
    """The epochs that are meant; raises InputError."""
    from dlplacer.planning.hybrid.epochs import EpochsData, EpochsTable, StatisticalEfficiency, one_batch, read_epochs

    if value is None:
        return one_batch()
    if isinstance(value, EpochsData):
        return value
    if isinstance(value, Mapping):
        for workers, epochs in value.items():
            expect_number("epochs", workers=workers)
            expect_number("epochs", optional=True, **{f"of {workers} workers": epochs})
        table = EpochsTable({float(workers): epochs for workers, epochs in value.items()})
        return EpochsData(StatisticalEfficiency(table))
    if isinstance(value, (str, PathLike)):
        return read_epochs(fspath(value))
    raise refuse("", "epochs", value, "the path of an epochs file, or a dict from workers to epochs: {1: 4, 64: 7}")


def _refuse_unused(reason: str, holds: bool, given: Mapping[str, object]) -> None:
    """Raise InputError for an argument that another one leaves without use."""
    for name, value in given.items():
        if holds and value is not None:
            raise InputError(f"{name} has no use where {reason}; drop it")


def _scaling(
    efficiency: float | None, measured: Mapping[int, float] | None, network: object, of_links: tuple[object, ...]
) -> "tuple[ScalingEfficiency | None, ScalingFits | None]":
    """The closed form of the step times, if the arguments ask for one, and the fit behind it; None for links."""
    from dlplacer.planning.hybrid.scaling import ConstantEfficiency, fit_scaling

    sources = {"scaling_efficiency": efficiency, "measured": measured, "network": network}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} each give the step times; keep one of them")
    codecs, measurements, overlap = of_links
    unused = {"codecs": codecs, "measurements": measurements, "overlap": None if overlap else False}
    _refuse_unused(f"{''.join(given)} gives the step times", bool(given) and network is None, unused)
    if measured is not None:
        fits = fit_scaling(list(measured.items()))
        return fits.best.model, fits
    return None if efficiency is None else ConstantEfficiency(efficiency), None


def _machine(box: Topology, devices: int, network: float | str | None, measured: "Measurements") -> Topology:
    """The machine itself, or as many copies of it as the budget takes, joined by network cards."""
    from dlplacer.planning.hybrid.worker_layout import cluster

    boxes = -(-devices // len(box.devices))
    if measured.network is not None and network is not None:
        raise InputError("network is given, and the measurements have a measured one; drop one of them")
    if measured.network is not None and boxes > 1:
        return cluster(box, boxes, measured.network.bytes_per_s, measured.network.latency_s)
    if network is not None:
        return cluster(box, boxes, float(network), _NETWORK_LATENCY_S)
    if boxes > 1:
        raise InputError(
            f"devices is {devices}; topology {box.name!r} has {len(box.devices)}: join copies of it with "
            'network="12.5 GB/s", or assume a scaling_efficiency of 1'
        )
    return box


def _split(placed: "Placed", split: str | None) -> "ModelParallel":
    from dlplacer.planning.hybrid.workers import PipelinedWorkers, Several

    pipelined = PipelinedWorkers(placed.graph, placed.single_s)
    return {"placement": placed, "pipeline": pipelined}.get(split or "", Several(placed, pipelined))


def _require_told(degrees: Sequence[int], speedups: Mapping[int, float] | None) -> None:
    for degree in degrees:
        if speedups and degree not in speedups:
            raise InputError(f"degrees has {degree}, of which speedups says nothing; drop one, or say how fast it is")


def _presolve(
    placed: "Placed",
    topology: Topology,
    devices: int,
    degrees: tuple[int, ...],
    jobs: int,
    cache: str | PathLike[str] | None,
    on_progress: Callable[[int, int], None],
) -> None:
    """Solve all placements ahead, in processes of their own."""
    from dlplacer.planning.hybrid.workers import presolve

    def report(done: int, total: int) -> None:
        if placed.stop is not None and placed.stop.is_set():
            raise KeyboardInterrupt
        on_progress(done, total)

    with process_pool(jobs) as pool:
        rows = presolve(placed, topology, devices, degrees, pool, None if cache is None else Path(cache), report)
    for row in rows:
        if row.error:
            note(f"{row.name}: {row.error}")


@contextmanager
def process_pool(jobs: int) -> "Iterator[Executor]":
    """So many processes, which Ctrl-C ends."""
    import multiprocessing
    import threading
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    from dlplacer.planning.interrupt import leave_signals_to_parent, stop_on_interrupt

    def end_all() -> None:
        for process in multiprocessing.active_children():
            process.kill()

    # Not forked: threads of the user's framework, which importing the training may have started, would be missing.
    spawned, stop = multiprocessing.get_context("spawn"), threading.Event()
    pool = ProcessPoolExecutor(jobs, spawned, leave_signals_to_parent, (os.getpid(),))
    try:
        # A training or a solve may go on for hours, so that Ctrl-C does not wait for those that run.
        with stop_on_interrupt(stop, end_all), pool as executor:
            yield executor
    except BrokenProcessPool:
        if stop.is_set():
            raise KeyboardInterrupt from None
        raise RunError(
            "a worker process has ended without a word, as for want of memory; use fewer jobs, and a file or folder "
            "that keeps what has been done to go on from it"
        ) from None


def _exchanges(machine: Topology, codecs: Sequence[str] | None, overlap: bool, measured: "Measurements") -> "StepTimes":
    from dlplacer.machines.costs.gradient_codecs import CODECS, exchanges
    from dlplacer.planning.hybrid.step_times import OnMachine, memory_rate
    from dlplacer.planning.hybrid.worker_layout import WorkerLayout

    chosen = tuple(CODECS if codecs is None else codecs)
    if not chosen:
        raise InputError(f"codecs is empty; name some of {', '.join(CODECS)}")
    found = exchanges(memory_rate(machine), chosen, measured.codecs)
    return OnMachine(WorkerLayout(machine), found, overlap=overlap, measured=measured.collectives)


def _doubts(degrees: Iterable[int], speedups: Mapping[int, float], machine: Topology) -> Iterator[str]:
    """Speedups above the number of devices, and degrees for which the machine has no room."""
    there = len(machine.devices)
    for degree, speedup in speedups.items():
        if speedup > degree:
            yield (
                f"a speedup of {speedup:g} says that {degree} devices are more than {degree} times as fast as one; "
                "check that both steps do the same work"
            )
    for degree in sorted({*degrees, *speedups}):
        if degree > there:
            yield (
                f"no worker of {degree} devices is looked at: a worker stays within topology {machine.name!r} of "
                f"{there}; give a larger one, or join copies of it with a network"
            )
