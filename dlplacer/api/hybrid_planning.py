"""Data parallelism, model parallelism or both: `hybrid`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from threading import Event
from typing import TYPE_CHECKING, Unpack

from dlplacer.api.parameters import StepOptions, checked
from dlplacer.api.solving import Together, held_graph
from dlplacer.api.subjects import GraphLike, OptionsLike, TopologyLike, graph_of, machine_of, options_of, silent
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_number, refuse
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.gradient_codecs import CODECS, exchanges
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.hybrid.scaling import ConstantEfficiency, ScalingEfficiency, ScalingFit, fit_scaling
from dlplacer.planning.hybrid.worker_layout import WorkerLayout, cluster

if TYPE_CHECKING:
    from dlplacer.planning.hybrid.epochs import EpochsData
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
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
    on_progress: Callable[[int, int], None] = silent,
    stop: Event | None = None,
    **step: Unpack[StepOptions],
) -> "HybridPlan":
    """The best strategy for every number of devices up to a budget: data parallelism, model parallelism or both.

    Raises InfeasibleError if no strategy trains the model, saying why.

    Examples
    --------
    >>> plan = dp.hybrid("inception_v3-train", "dgx1-v100-4gpu", 4, {1: 4, 4: 6}, speedups={2: 1.7})
    >>> plan.at(4).best.workers
    2
    """
    from dlplacer.planning.hybrid.hybrid import DEGREES, HybridProblem, plan_hybrid, plan_notes
    from dlplacer.planning.hybrid.step_times import ClosedForm, fastest_work
    from dlplacer.planning.hybrid.workers import Placed, SpeedupTable

    if devices > _MOST_DEVICES:
        raise InputError(f"devices is {devices}; at most {_MOST_DEVICES} budgets are planned, one by one")
    _refuse_unused("speedups say what a solve would find", bool(speedups), {"split": split, "method": method})
    scaling, fit = _scaling(scaling_efficiency, measured, network, (codecs, overlap))
    box, known = machine_of(topology), epochs_of(epochs)
    timed = with_times(held_graph(graph_of(graph, step=step), box, (), colocate), box)
    machine = box if scaling is not None else _machine(box, devices, network)
    work = fastest_work(timed, box)
    known.require_mini_batch(work.mini_batch)
    for degree in (degrees or ()) if speedups else ():
        if degree not in (speedups or {}):
            raise InputError(f"degrees has {degree}, of which speedups says nothing; drop one, or say how fast it is")
    chosen = tuple(degrees or speedups or DEGREES)
    assumed = options_of(options)
    assumed.require_makespan("hybrid")
    solving = {"options": assumed, "method": method or "ilp", "time_limit_s": time_limit_s}
    placed = None if speedups else Placed(timed, work.step_s, stop, **solving, seed=seed, workers=workers)
    problem = HybridProblem(
        replace(work, mini_batch=work.mini_batch or known.mini_batch),
        known.efficiency,
        SpeedupTable(dict(speedups or {})) if placed is None else _split(placed, split),
        machine,
        _exchanges(machine, codecs, overlap) if scaling is None else ClosedForm(scaling),
        chosen,
        placed,
        known.samples,
        f"{timed.name or 'graph'} on {devices} devices of {machine.name}",
    )
    plan = plan_hybrid(problem, devices, on_progress)
    notes = tuple(plan_notes(plan, timed, problem.efficiency))
    return replace(plan, warnings=notes, scaling_fit=fit, epochs_fit=problem.efficiency.fit())


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
) -> tuple[ScalingEfficiency | None, ScalingFit | None]:
    """The closed form of the step times, if the arguments ask for one, and the fit behind it; None for links."""
    sources = {"scaling_efficiency": efficiency, "measured": measured, "network": network}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} each give the step times; keep one of them")
    codecs, overlap = of_links
    unused = {"codecs": codecs, "overlap": None if overlap else False}
    _refuse_unused(f"{''.join(given)} gives the step times", bool(given) and network is None, unused)
    if measured is not None:
        fit = fit_scaling(list(measured.items()))
        return fit.model, fit
    return None if efficiency is None else ConstantEfficiency(efficiency), None


def _machine(box: Topology, devices: int, network: float | str | None) -> Topology:
    """The machine itself, or as many copies of it as the budget takes, joined by network cards."""
    boxes = -(-devices // len(box.devices))
    if network is not None:
        return cluster(box, boxes, float(network), _NETWORK_LATENCY_S)
    if boxes > 1:
        raise InputError(
            f"devices is {devices}; topology {box.name!r} has {len(box.devices)}: join copies of it with "
            'network="12.5 GB/s", or assume a scaling_efficiency of 1'
        )
    return box


def _split(placed: "Placed", split: str | None) -> "ModelParallel":
    from dlplacer.planning.hybrid.workers import PipelinedWorkers, splits_of

    pipelined = PipelinedWorkers(placed.graph, placed.single_s)
    both = (placed, pipelined)
    sources = {"placement": both[:1], "pipeline": both[1:]}.get(split or "", both)
    return lambda degree, machine: [found for source in sources for found in splits_of(source(degree, machine))]


def _exchanges(machine: Topology, codecs: Sequence[str] | None, overlap: bool) -> "StepTimes":
    from dlplacer.planning.hybrid.step_times import OnMachine, memory_rate

    chosen = tuple(CODECS if codecs is None else codecs)
    if not chosen:
        raise InputError(f"codecs is empty; name some of {', '.join(CODECS)}")
    return OnMachine(WorkerLayout(machine), exchanges(memory_rate(machine), chosen), overlap=overlap)
