"""``dlplacer hybrid``."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.cli.arguments.constraint_options import add_colocate_option, constrained_by
from dlplacer.cli.arguments.model_argument import add_job_options, graph_of
from dlplacer.cli.arguments.problem_options import (
    add_problem_arguments,
    add_solver_arguments,
    given_options,
    options_of,
    quantity_of,
)
from dlplacer.cli.arguments.topology_argument import topology_to_plan_for
from dlplacer.cli.output.hybrid_table import print_hybrid
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import add_picture_options, save_pictures
from dlplacer.core.errors import InputError
from dlplacer.core.units import parse_quantity
from dlplacer.machines.costs.gradient_codecs import CODECS

if TYPE_CHECKING:
    from threading import Event

    from dlplacer.core.graph import OpGraph
    from dlplacer.core.topology import Topology
    from dlplacer.planning.hybrid.communication.step_times import StepTimes
    from dlplacer.planning.hybrid.hybrid import HybridProblem
    from dlplacer.planning.hybrid.measurements import Measurements
    from dlplacer.planning.hybrid.placed_workers import ModelParallel, Placed
    from dlplacer.planning.hybrid.scaling_fit import ScalingFits
    from dlplacer.planning.hybrid.step_workload import Work

HELP = "Data parallelism, model parallelism or both on N devices: step time x steps x epochs of every strategy."
EXAMPLES = (
    (
        "hybrid inception_v3-train dgx1-v100-8gpu --devices 64 --epochs epochs.json --network '100 Gbit/s'",
        "up to 64 GPUs in boxes of eight; epochs.json: epochs by number of workers, format dlplacer.epochs/1",
    ),
    (
        "hybrid inception_v3-train dgx1-v100-2gpu --devices 256 --epochs epochs.json --scaling-efficiency 1 "
        "--speedup 2=1.32",
        "the paper's assumptions",
    ),
)
_MOST_DEVICES = 65536
_METHOD, _NETWORK_LATENCY = "ilp", "5 us"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_problem_arguments(parser)
    parser.add_argument("--devices", type=int, required=True, metavar="N", help="plan for every budget from 1 to N")
    parser.add_argument(
        "--epochs",
        type=Path,
        metavar="FILE",
        help="epochs by workers, or by batch (dlplacer.epochs/1); without it one worker alone, whose batch stays",
    )
    parser.add_argument("--degrees", metavar="M[,M...]", help="model-parallel degrees to consider (2 to 8)")
    parser.add_argument(
        "--speedup", action="append", default=[], metavar="M=S", help="known speedup of M devices, in place of solving"
    )
    scaling = parser.add_argument_group("step times of data parallelism (default: over the links of the topology)")
    scaling.add_argument("--scaling-efficiency", type=float, metavar="SE", help="a constant; the paper assumes 1")
    scaling.add_argument("--overhead-ratio", type=float, metavar="R", help="Lemma 3.1: (1 + R) / (1 + N R)")
    scaling.add_argument(
        "--measured", metavar="N=S,...", help="measured step times per device count, to be fitted: 1=0.5s,8=90ms"
    )
    scaling.add_argument("--network", metavar="RATE", help='join copies of the topology, each by a card of "12.5 GB/s"')
    scaling.add_argument("--network-latency", metavar="T", help="between devices of two copies (5 us)")
    scaling.add_argument("--codecs", metavar="C[,C...]", help=f"some of {', '.join(CODECS)} (all)")
    scaling.add_argument(
        "--measurements",
        type=Path,
        metavar="FILE",
        help="measured codecs, collectives, network, and factors of epochs (dlplacer.measurements/1)",
    )
    scaling.add_argument("--no-overlap", action="store_true", help="exchange gradients after the backward pass")
    add_solver_arguments(parser, "each solve", default_s=10.0)
    parser.add_argument("--method", metavar="NAME", help="of each solve, as for `dlplacer solve` (ilp)")
    parser.add_argument(
        "--split", choices=("both", "placement", "pipeline"), help="how a worker's devices share (both)"
    )
    parser.add_argument("--jobs", type=int, metavar="J", help="place in so many processes side by side")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep placements there, and go on from them")
    add_colocate_option(parser)
    # Taken only to say why not: other commands have it.
    parser.add_argument("--pin", action="append", help=argparse.SUPPRESS)
    add_picture_options(parser, "hybrid plan")
    parser.add_argument("--html", metavar="F", type=output_file, help="one page with every budget")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, draw the picture, and print the table."""
    from dlplacer.cli.output.progress import count_line, interruptible
    from dlplacer.planning.hybrid.hybrid import plan_hybrid
    from dlplacer.planning.hybrid.plan_notes import plan_notes

    if arguments.pin:
        raise InputError("--pin: each worker of a hybrid gets devices of its own; use --colocate, or pin in `solve`")
    if arguments.devices < 1:
        raise InputError(f"--devices is {arguments.devices}; it must be at least 1")
    if arguments.devices > _MOST_DEVICES:
        raise InputError(f"--devices is {arguments.devices}; at most {_MOST_DEVICES} budgets are planned, one by one")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise InputError(f"--jobs is {arguments.jobs}; it must be at least 1")
    _require_used(arguments)
    # There is no plan before the end: after the first Ctrl-C nothing new is begun.
    with interruptible("giving up after the solve at hand; once more to give up at once") as stop:
        problem, fits, graph = _problem(arguments, stop)
        with count_line("device counts") as report:
            plan = plan_hybrid(problem, arguments.devices, report)
    epochs_fit = problem.efficiency.fit()
    warnings = (*_superlinear(arguments), *_too_large(arguments, problem), *plan_notes(plan, graph))
    if arguments.html:
        from dlplacer.files import write_text
        from dlplacer.report.page.hybrid_page import hybrid_page

        write_text(arguments.html, hybrid_page(plan, [("warning", warning) for warning in warnings]))
    tell_written(*save_pictures(arguments, "hybrid plan", plan), arguments.html)
    if arguments.json:
        extra: dict[str, Any] = {"warnings": list(warnings)}
        if fits is not None:
            extra["scaling_fit"] = _fit_object(fits)
        if epochs_fit is not None:
            extra["epochs_fit"] = epochs_fit.to_dict()
        print(json.dumps(plan.to_dict() | extra))
    else:
        notes = [("scaling efficiency", fits.verdict)] if fits is not None else []
        notes += [("epochs", str(epochs_fit))] if epochs_fit is not None else []
        print_hybrid(plan, notes)
        for warning in warnings:
            print(f"dlplacer: {warning}", file=sys.stderr)
    return 0


def _require_used(arguments: argparse.Namespace) -> None:
    """Raise InputError for an option that another one leaves without use."""
    unused: dict[str, Sequence[str]] = {}
    if arguments.speedup:
        unused["--speedup says what a solve would find"] = ("split", "method", "jobs", "cache")
    if arguments.split == "pipeline":
        unused["--split pipeline places nothing"] = ("jobs", "cache")
    if arguments.network is None:
        unused["there is no --network"] = ("network_latency",)
    for reason, names in unused.items():
        for option in given_options(arguments, names):
            raise InputError(f"{option} has no use where {reason}; drop it")


def _problem(arguments: argparse.Namespace, stop: "Event") -> "tuple[HybridProblem, ScalingFits | None, OpGraph]":
    from dlplacer.machines.costs.roofline_times import with_times
    from dlplacer.planning.hybrid.epochs.epochs_file import one_batch, read_epochs
    from dlplacer.planning.hybrid.hybrid import DEGREES, HybridProblem
    from dlplacer.planning.hybrid.measurements import NOTHING_MEASURED
    from dlplacer.planning.hybrid.measurements_file import read_measurements
    from dlplacer.planning.hybrid.placed_workers import SpeedupTable
    from dlplacer.planning.hybrid.step_workload import fastest_work

    epochs = one_batch() if arguments.epochs is None else read_epochs(arguments.epochs)
    measured = NOTHING_MEASURED if arguments.measurements is None else read_measurements(arguments.measurements)
    box = topology_to_plan_for(arguments.topology)
    graph = with_times(constrained_by(arguments, graph_of(arguments), box), box)
    step_times, fits = _closed_form(arguments)
    topology = box if step_times is not None else _machine(arguments, box, measured)
    work = fastest_work(graph, box)
    if epochs.mini_batch is not None and work.mini_batch not in (None, epochs.mini_batch):
        raise InputError(
            f"{arguments.epochs} is for mini-batches of {epochs.mini_batch}, the graph for {work.mini_batch}; capture "
            f"the model with --batch-size {epochs.mini_batch}, or correct the file"
        )
    speedups = _speedups(arguments)
    degrees = _degrees(arguments.degrees) or tuple(speedups) or DEGREES
    placed, both = (None, None) if speedups else _solved(arguments, graph, work, topology, degrees, stop)
    problem = HybridProblem(
        replace(work, mini_batch=work.mini_batch or epochs.mini_batch),
        measured.applied_to(epochs.efficiency),
        both or SpeedupTable(speedups),
        topology,
        step_times or _on_machine(arguments, topology, measured),
        degrees,
        placed,
        epochs.samples,
        f"{graph.name or 'graph'} on {arguments.devices} devices of {topology.name}",
    )
    return problem, fits, graph


def _solved(
    arguments: argparse.Namespace,
    graph: "OpGraph",
    work: "Work",
    topology: "Topology",
    degrees: tuple[int, ...],
    stop: "Event",
) -> "tuple[Placed, ModelParallel]":
    """Placements, and the splits that the user wants; solved ahead, side by side, if asked for."""
    from dlplacer.planning.hybrid.pipelined_workers import PipelinedWorkers
    from dlplacer.planning.hybrid.placed_workers import Placed, PlaceSettings, Several

    settings = PlaceSettings(
        options_of(arguments),
        arguments.method or _METHOD,
        arguments.time_limit,
        seed=arguments.seed,
        workers=arguments.workers,
    )
    placed = Placed(graph, work.step_s, settings, stop)
    if arguments.split == "pipeline":
        return placed, PipelinedWorkers(graph, work.step_s)
    if arguments.jobs is not None or arguments.cache is not None:
        _presolve(arguments, placed, topology, degrees)
    return placed, placed if arguments.split == "placement" else Several(placed, PipelinedWorkers(graph, work.step_s))


def _presolve(arguments: argparse.Namespace, placed: "Placed", topology: "Topology", degrees: tuple[int, ...]) -> None:
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor

    from dlplacer.cli.output.progress import count_line
    from dlplacer.planning.hybrid.placement_task import presolve
    from dlplacer.planning.interrupt import leave_signals_to_parent

    def told(done: int, total: int, row: Any) -> None:
        if placed.stop is not None and placed.stop.is_set():
            raise KeyboardInterrupt
        report(done, total)

    jobs = arguments.jobs if arguments.jobs is not None else 1
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, spawned, leave_signals_to_parent, (os.getpid(),))
    with count_line("placements") as report, pool as executor:
        rows = presolve(
            placed,
            topology,
            arguments.devices,
            degrees,
            executor,
            arguments.cache,
            told,
        )
    for row in rows:
        if row.error:
            print(f"dlplacer: {row.name}: {row.error}", file=sys.stderr)


def _closed_form(arguments: argparse.Namespace) -> "tuple[StepTimes | None, ScalingFits | None]":
    from dlplacer.planning.hybrid.communication.step_times import ClosedForm
    from dlplacer.planning.hybrid.scaling_efficiency import ConstantEfficiency, SerialOverhead
    from dlplacer.planning.hybrid.scaling_fit import fit_scaling

    names = ("scaling_efficiency", "overhead_ratio", "measured", "network")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} both say where step times come from; give one of them")
    unused = [name for name in ("codecs", "measurements", "no_overlap") if getattr(arguments, name)]
    if unused and given and given != ["--network"]:
        raise InputError(
            f"--{unused[0].replace('_', '-')} is for step times over links, but {given[0]} says what they are; drop one"
        )
    if arguments.scaling_efficiency is not None:
        return ClosedForm(ConstantEfficiency(arguments.scaling_efficiency)), None
    if arguments.overhead_ratio is not None:
        return ClosedForm(SerialOverhead(arguments.overhead_ratio)), None
    if arguments.measured is not None:
        fits = fit_scaling(list(_pairs("--measured", arguments.measured.split(","), _seconds)))
        return ClosedForm(fits.best.model), fits
    return None, None


def _machine(arguments: argparse.Namespace, box: "Topology", measured: "Measurements") -> "Topology":
    from dlplacer.planning.hybrid.communication.clusters import cluster

    if measured.network is not None and arguments.network is not None:
        raise InputError(
            f"--network is {arguments.network!r}, and {arguments.measurements} has a measured one; drop one of them"
        )
    if measured.network is not None and arguments.devices > len(box.devices):
        boxes = -(-arguments.devices // len(box.devices))
        return cluster(box, boxes, measured.network.bytes_per_s, measured.network.latency_s)
    if arguments.network is not None:
        rate = quantity_of("--network", arguments.network, "bytes_per_s")
        latency_s = quantity_of("--network-latency", arguments.network_latency or _NETWORK_LATENCY, "seconds")
        return cluster(box, -(-arguments.devices // len(box.devices)), rate, latency_s)
    if arguments.devices > len(box.devices):
        raise InputError(
            f"--devices is {arguments.devices}; topology {arguments.topology!r} has {len(box.devices)}: join copies "
            'of it with --network "12.5 GB/s", or assume a scaling efficiency with --scaling-efficiency 1'
        )
    return box


def _on_machine(arguments: argparse.Namespace, topology: "Topology", measured: "Measurements") -> "StepTimes":
    from dlplacer.machines.costs.gradient_exchange import exchanges
    from dlplacer.planning.hybrid.communication.steps_on_links import OnMachine, memory_rate
    from dlplacer.planning.hybrid.communication.worker_layout import WorkerLayout

    codecs = list(CODECS) if arguments.codecs is None else [name for name in arguments.codecs.split(",") if name]
    if not codecs:
        raise InputError(f"--codecs is {arguments.codecs!r}; name some of {', '.join(CODECS)}")
    found = exchanges(memory_rate(topology), codecs, measured.codecs)
    overlap = not arguments.no_overlap
    return OnMachine(WorkerLayout(topology), found, overlap=overlap, measured=measured.collectives)


def _degrees(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        found = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        found = ()
    if not found:
        raise InputError(f"--degrees is {text!r}; write whole numbers, as in 2,4")
    return found


def _speedups(arguments: argparse.Namespace) -> dict[int, float]:
    """Degree → its given speedup; each once, and for every degree that is asked for."""
    found: dict[int, float] = {}
    for degree, speedup in _pairs("--speedup", arguments.speedup):
        if not 0 < speedup < math.inf:
            raise InputError(f"--speedup says {speedup:g} of {degree} devices; it must be positive and finite")
        if found.setdefault(degree, speedup) != speedup:
            raise InputError(f"--speedup says {found[degree]:g} and {speedup:g} of {degree} devices; drop one")
    unknown = [degree for degree in _degrees(arguments.degrees) if found and degree not in found]
    if unknown:
        raise InputError(
            f"--degrees has {unknown[0]}, and no --speedup says how fast {unknown[0]} devices are; give one, or drop "
            f"{unknown[0]}"
        )
    return found


def _seconds(text: str) -> float:
    return parse_quantity(text, "seconds")


def _pairs(option: str, texts: list[str], read: Callable[[str], float] = float) -> list[tuple[int, float]]:
    found = []
    for text in texts:
        count, _, value = text.partition("=")
        try:
            found.append((int(count), read(value)))
        except ValueError:
            raise InputError(f"{option} {text!r} is not understood; write devices=number, as in 2=1.32") from None
    return found


def _superlinear(arguments: argparse.Namespace) -> list[str]:
    return [
        f"--speedup {degree}={speedup:g} says that {degree} devices are more than {degree} times as fast as one; check "
        "that both steps do the same work"
        for degree, speedup in _pairs("--speedup", arguments.speedup)
        if speedup > degree
    ]


def _too_large(arguments: argparse.Namespace, problem: "HybridProblem") -> list[str]:
    """Degrees that were asked for, and that the machine which workers are taken from has no room for."""
    if problem.topology is None or not (arguments.degrees or arguments.speedup):
        return []
    there = len(problem.topology.devices)
    return [
        f"no worker of {degree} devices is looked at: a worker stays within topology {problem.topology.name!r} of "
        f"{there}; give a larger one, or join copies of it with --network"
        for degree in sorted(set(problem.degrees))
        if degree > there
    ]


def _fit_object(fits: "ScalingFits") -> dict[str, Any]:
    forms = [
        {"form": fit.form, "parameters": vars(fit.model), "single_s": fit.single_s, "residuals": fit.residuals}
        for fit in fits.fits
    ]
    return {"verdict": fits.verdict, "forms": forms}
