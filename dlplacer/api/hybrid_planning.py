"""When to use what: `hybrid`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING

from dlplacer.api.solving import expect_solving
from dlplacer.api.subjects import GraphLike, OptionsLike, TopologyLike, graph_of, machine_of, options_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_figure, expect_flag, expect_number, expect_table, expect_whole, refuse, tuple_of
from dlplacer.core.topology import Topology
from dlplacer.core.units import parse_quantity

if TYPE_CHECKING:
    from dlplacer.planning.hybrid.communication.step_times import StepTimes
    from dlplacer.planning.hybrid.epochs.epochs_file import EpochsData
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan


def hybrid(
    graph: GraphLike,
    topology: TopologyLike,
    devices: int,
    epochs: "str | PathLike[str] | Mapping[int, float | None] | EpochsData | None" = None,
    options: OptionsLike = None,
    *,
    network: float | str | None = None,
    degrees: Sequence[int] | None = None,
    speedups: Mapping[int, float] | None = None,
    codecs: Sequence[str] | None = None,
    overlap: bool = True,
    method: str = "ilp",
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int | None = None,
) -> "HybridPlan":
    """Data parallelism, model parallelism or both: the best strategy for every number of devices up to a budget.

    Parameters
    ----------
    graph, topology, options
        As for `place`: the step of one worker, and the machine.
    devices
        The largest budget; all from 1 on are planned.
    epochs
        Epochs that training takes per batch: an epochs file, or a dict from data-parallel workers to epochs, None where
        it does not converge: ``{1: 4, 32: 4, 64: 7}``. None: one worker alone, whose batch stays as it is.
    network
        Rate of a network card in bytes per second or as ``"12.5 GB/s"``; it joins copies of a machine of fewer devices.
    degrees, codecs
        Model-parallel degrees to consider (None: 2 to 8, or those of `speedups`), and gradient codecs (None: all).
    speedups, overlap
        Known speedups, degree → factor, in place of solving; whether gradients travel during the backward pass.
    method, time_limit_s, seed, workers
        Of each solve, as for `place`.

    Raises
    ------
    InputError
        If an argument cannot be meant.
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
    from dlplacer.planning.hybrid.hybrid import DEGREES, HybridProblem, plan_hybrid
    from dlplacer.planning.hybrid.pipelined_workers import PipelinedWorkers
    from dlplacer.planning.hybrid.placed_workers import Placed, PlaceSettings, Several, SpeedupTable
    from dlplacer.planning.hybrid.step_workload import fastest_work

    expect_solving(method, time_limit_s, 0.0, seed, workers)
    chosen = _asked_degrees(devices, degrees, speedups, overlap)
    box, known = machine_of(topology), _epochs_of(epochs)
    timed = with_times(graph_of(graph), box)
    machine = _machine(box, devices, network)
    work = fastest_work(timed, box)
    known.require_mini_batch(work.mini_batch)
    settings = PlaceSettings(options_of(options), method, time_limit_s, seed=seed, workers=workers)
    placed = Placed(timed, work.step_s, settings) if speedups is None else None
    problem = HybridProblem(
        replace(work, mini_batch=work.mini_batch or known.mini_batch),
        known.efficiency,
        SpeedupTable(_numbers("speedups", speedups or {}))
        if placed is None
        else Several(placed, PipelinedWorkers(timed, work.step_s)),
        machine,
        _exchanges(machine, codecs, overlap),
        chosen or DEGREES,
        placed,
        known.samples,
        f"{timed.name or 'graph'} on {devices} devices of {machine.name}",
    )
    return plan_hybrid(problem, devices)


def _asked_degrees(
    devices: int, degrees: Sequence[int] | None, speedups: Mapping[int, float] | None, overlap: bool
) -> tuple[int, ...]:
    """The degrees that are asked for; an InputError if one of these arguments cannot be meant."""
    expect_whole("", devices=devices)
    expect_flag("", overlap=overlap)
    expect_table("", optional=True, speedups=speedups)
    chosen = () if degrees is None else tuple_of("", "degrees", degrees, int, "whole numbers")
    unknown = [degree for degree in chosen if speedups and degree not in speedups]
    if unknown:
        raise InputError(f"degrees has {unknown[0]}, of which speedups says nothing; drop one, or say how fast it is")
    return chosen or tuple(speedups or ())


def _epochs_of(value: "str | PathLike[str] | Mapping[int, float | None] | EpochsData | None") -> "EpochsData":
    from dlplacer.planning.hybrid.epochs.epochs import EpochsTable, StatisticalEfficiency
    from dlplacer.planning.hybrid.epochs.epochs_file import EpochsData, one_batch, read_epochs

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


def _numbers(name: str, table: Mapping[int, float]) -> dict[int, float]:
    for degree, factor in table.items():
        expect_whole(name, devices=degree)
        expect_figure(name, f"of {degree} devices", factor)
    return dict(table)


def _machine(box: Topology, devices: int, network: float | str | None) -> Topology:
    """The machine itself, or as many copies of it as the budget takes, joined by network cards."""
    from dlplacer.planning.hybrid.communication.clusters import cluster

    if devices < 1:
        raise InputError(f"devices is {devices}; the budget must be at least 1")
    if network is None:
        if devices > len(box.devices):
            raise InputError(
                f"devices is {devices}; topology {box.name!r} has {len(box.devices)}: join copies of it with "
                'network="12.5 GB/s"'
            )
        return box
    if isinstance(network, str):
        try:
            network = parse_quantity(network, "bytes_per_s")
        except ValueError as error:
            raise InputError(f"network: {error}") from error
    expect_number("", network=network)
    return cluster(box, -(-devices // len(box.devices)), network)


def _exchanges(machine: Topology, codecs: Sequence[str] | None, overlap: bool) -> "StepTimes":
    from dlplacer.machines.costs.gradient_codecs import CODECS
    from dlplacer.machines.costs.gradient_exchange import exchanges
    from dlplacer.planning.hybrid.communication.steps_on_links import OnMachine, memory_rate
    from dlplacer.planning.hybrid.communication.worker_layout import WorkerLayout

    chosen = tuple(CODECS) if codecs is None else tuple_of("", "codecs", codecs, str, "names of codecs")
    if not chosen:
        raise InputError(f"codecs is empty; name some of {', '.join(CODECS)}")
    return OnMachine(WorkerLayout(machine), exchanges(memory_rate(machine), chosen), overlap=overlap)
