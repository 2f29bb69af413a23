"""Data parallelism, model parallelism or both: `hybrid`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Unpack

from dlplacer.api.parameters import StepOptions, checked
from dlplacer.api.solving import Together, held_graph
from dlplacer.api.subjects import GraphLike, OptionsLike, TopologyLike, graph_of, machine_of, note, options_of, silent
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_figure, expect_number, refuse
from dlplacer.core.topology import Topology

if TYPE_CHECKING:
    from dlplacer.planning.hybrid.epochs import EpochsData
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.hybrid.measurements import Measurements
    from dlplacer.planning.hybrid.scaling import ScalingFits
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
    network_latency_s: float | None = None,
    scaling_efficiency: float | None = None,
    overhead_ratio: float | None = None,
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

    Raises
    ------
    InfeasibleError
        If no strategy trains the model; says why.

    Examples
    --------
    >>> import dlplacer as dp
    >>> plan = dp.hybrid("inception_v3-train", "dgx1-v100-4gpu", 4, {1: 4, 4: 6}, speedups={2: 1.7})
    >>> plan.at(4).best.workers
    2
    """
    from dlplacer.machines.costs.roofline_times import with_times
    from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid, plan_notes
    from dlplacer.planning.hybrid.measurements import NOTHING_MEASURED, read_measurements
    from dlplacer.planning.hybrid.step_workload import fastest_work
    from dlplacer.planning.hybrid.workers import Placed, PlaceSettings, SpeedupTable

    _require_used(devices, speedups, split, network, method, jobs, cache, network_latency_s)
    step_times, fits = _closed_form(
        scaling_efficiency, overhead_ratio, measured, network, codecs, measurements, overlap
    )
    found = NOTHING_MEASURED if measurements is None else read_measurements(Path(measurements))
    box, known = machine_of(topology), epochs_of(epochs)
    timed = with_times(held_graph(graph_of(graph, step=step), box, (), colocate), box)
    machine = box if step_times is not None else _machine(box, devices, network, network_latency_s, found)
    work = fastest_work(timed, box)
    known.require_mini_batch(work.mini_batch)
    chosen = _degrees(degrees, speedups)
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
        step_times or _exchanges(machine, codecs, overlap, found),
        chosen,
        placed,
        known.samples,
        f"{timed.name or 'graph'} on {devices} devices of {machine.name}",
    )
    plan = plan_hybrid(problem, devices, on_progress)
    doubts = (*_doubts(degrees, speedups, machine), *plan_notes(plan, timed))
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
            if epochs is not None:
                expect_figure("epochs", f"of {workers} workers", epochs)
        table = EpochsTable({float(workers): epochs for workers, epochs in value.items()})
        return EpochsData(StatisticalEfficiency(table))
    if isinstance(value, (str, PathLike)):
        return read_epochs(fspath(value))
    raise refuse("", "epochs", value, "the path of an epochs file, or a dict from workers to epochs: {1: 4, 64: 7}")


def _require_used(
    devices: int,
    speedups: object,
    split: str | None,
    network: object,
    method: object,
    jobs: object,
    cache: object,
    latency: object,
) -> None:
    """Raise InputError for too many devices, and for an argument that another one leaves without use."""
    if devices > _MOST_DEVICES:
        raise InputError(f"devices is {devices}; at most {_MOST_DEVICES} budgets are planned, one by one")
    unused: dict[str, dict[str, object]] = {}
    if speedups:
        reason = "speedups say what a solve would find"
        unused[reason] = {"split": split, "method": method, "jobs": jobs, "cache": cache}
    if split == "pipeline":
        unused["split 'pipeline' places nothing"] = {"jobs": jobs, "cache": cache}
    if network is None:
        unused["there is no network"] = {"network_latency_s": latency}
    for reason, given in unused.items():
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name} has no use where {reason}; drop it")


def _closed_form(
    efficiency: float | None,
    overhead: float | None,
    measured: Mapping[int, float] | None,
    network: object,
    codecs: object,
    measurements: object,
    overlap: bool,
) -> "tuple[StepTimes | None, ScalingFits | None]":
    """Step times from a closed form, if the arguments ask for one, and the fit behind it; None for times over links."""
    from dlplacer.planning.hybrid.scaling import ConstantEfficiency, SerialOverhead, fit_scaling
    from dlplacer.planning.hybrid.step_times import ClosedForm

    sources = {"scaling_efficiency": efficiency, "overhead_ratio": overhead, "measured": measured, "network": network}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} each give the step times; keep one of them")
    unused = [name for name, used in (("codecs", codecs), ("measurements", measurements)) if used]
    unused += [] if overlap else ["no overlap"]
    if unused and given and given != ["network"]:
        raise InputError(f"{unused[0]} applies to step times over links, but {given[0]} gives step times; drop one")
    if efficiency is not None:
        return ClosedForm(ConstantEfficiency(efficiency)), None
    if overhead is not None:
        return ClosedForm(SerialOverhead(overhead)), None
    if measured is not None:
        fits = fit_scaling(list(measured.items()))
        return ClosedForm(fits.best.model), fits
    return None, None


def _machine(
    box: Topology, devices: int, network: float | str | None, latency_s: float | None, measured: "Measurements"
) -> Topology:
    """The machine itself, or as many copies of it as the budget takes, joined by network cards."""
    from dlplacer.planning.hybrid.worker_layout import cluster

    boxes = -(-devices // len(box.devices))
    if measured.network is not None and network is not None:
        raise InputError("network is given, and the measurements have a measured one; drop one of them")
    if measured.network is not None and boxes > 1:
        return cluster(box, boxes, measured.network.bytes_per_s, measured.network.latency_s)
    if network is not None:
        return cluster(box, boxes, float(network), _NETWORK_LATENCY_S if latency_s is None else latency_s)
    if boxes > 1:
        raise InputError(
            f"devices is {devices}; topology {box.name!r} has {len(box.devices)}: join copies of it with "
            'network="12.5 GB/s", or assume a scaling_efficiency of 1'
        )
    return box


def _degrees(degrees: Sequence[int] | None, speedups: Mapping[int, float] | None) -> tuple[int, ...]:
    from dlplacer.planning.hybrid.hybrid import DEGREES

    for degree, factor in (speedups or {}).items():
        if not 0 < factor < float("inf"):
            raise InputError(f"speedups says {factor:g} of {degree} devices; it must be positive and finite")
    unknown = [degree for degree in degrees or () if speedups and degree not in speedups]
    if unknown:
        raise InputError(f"degrees has {unknown[0]}, of which speedups says nothing; drop one, or say how fast it is")
    return tuple(degrees or speedups or DEGREES)


def _split(placed: "Placed", split: str | None) -> "ModelParallel":
    from dlplacer.planning.hybrid.workers import PipelinedWorkers, Several

    pipelined = PipelinedWorkers(placed.graph, placed.single_s)
    return {"placement": placed, "pipeline": pipelined}.get(split or "", Several(placed, pipelined))


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
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from dlplacer.planning.hybrid.placements import presolve
    from dlplacer.planning.interrupt import leave_signals_to_parent

    def told(done: int, total: int) -> None:
        if placed.stop is not None and placed.stop.is_set():
            raise KeyboardInterrupt
        on_progress(done, total)

    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawned, leave_signals_to_parent, (os.getpid(),)) as executor:
        rows = presolve(placed, topology, devices, degrees, executor, None if cache is None else Path(cache), told)
    for row in rows:
        if row.error:
            note(f"{row.name}: {row.error}")


def _exchanges(machine: Topology, codecs: Sequence[str] | None, overlap: bool, measured: "Measurements") -> "StepTimes":
    from dlplacer.machines.costs.gradient_codecs import CODECS
    from dlplacer.machines.costs.gradient_exchange import exchanges
    from dlplacer.planning.hybrid.step_times import OnMachine, memory_rate
    from dlplacer.planning.hybrid.worker_layout import WorkerLayout

    chosen = tuple(CODECS if codecs is None else codecs)
    if not chosen:
        raise InputError(f"codecs is empty; name some of {', '.join(CODECS)}")
    found = exchanges(memory_rate(machine), chosen, measured.codecs)
    return OnMachine(WorkerLayout(machine), found, overlap=overlap, measured=measured.collectives)


def _doubts(degrees: Sequence[int] | None, speedups: Mapping[int, float] | None, machine: Topology) -> list[str]:
    """Speedups above the number of devices, and degrees for which the machine has no room."""
    there = len(machine.devices)
    doubts = [
        f"a speedup of {speedup:g} says that {degree} devices are more than {degree} times as fast as one; check that "
        "both steps do the same work"
        for degree, speedup in (speedups or {}).items()
        if speedup > degree
    ]
    return doubts + [
        f"no worker of {degree} devices is looked at: a worker stays within topology {machine.name!r} of {there}; give "
        "a larger one, or join copies of it with a network"
        for degree in sorted({*(degrees or ()), *(speedups or ())})
        if degree > there
    ]
