"""``dlplacer advise``: mini-batch and recomputation, number of GPUs, number of servers."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from dlplacer.cli.arguments.model_argument import add_job_options, graph_of
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.problem_options import add_subject_arguments, given_options, quantity_of
from dlplacer.cli.output.progress import count_line
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device
from dlplacer.core.units import format_bytes, format_seconds

HELP = "Advise on mini-batch and recomputation, GPUs for a speedup, or servers that hide behind computation."
EXAMPLES = (
    ("advise gpus --overhead 0.10 --speedup 3", "GPUs for a speedup of 3 at 10 % overhead"),
    ("advise servers --load '249 MB' --workers 8 --rate '10 Gbit/s' --compute '0.5 s'", "servers that hide behind it"),
    ("advise minibatch inception_v3-train dgx1-v100-2gpu", "what fits, and what to recompute"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    topics = parser.add_subparsers(dest="topic", required=True, metavar="TOPIC")
    _configure_minibatch(topics.add_parser("minibatch", help="mini-batch of least training time in a device's memory"))
    _configure_gpus(topics.add_parser("gpus", help="GPUs for a speedup, or the overhead that an efficiency allows"))
    _configure_servers(topics.add_parser("servers", help="servers or loaders that hide a load behind computation"))


def execute(arguments: argparse.Namespace) -> int:
    """Answer one topic."""
    answer: Callable[[argparse.Namespace], None] = arguments.advise
    answer(arguments)
    return 0


def _configure_minibatch(parser: argparse.ArgumentParser) -> None:
    add_subject_arguments(parser)
    parser.add_argument("--device", metavar="NAME", help="device to fit on (the topology's first)")
    parser.add_argument(
        "--batch-sizes", metavar="N[,N…]", help="mini-batches to try; a graph file has one of its own and takes none"
    )
    parser.add_argument("--dataset-size", type=int, metavar="N", help="samples of an epoch (by time per sample)")
    parser.add_argument("--epochs", metavar="FILE", help="dlplacer.epochs/1 file: epochs that a batch needs (always 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(advise=_minibatch)
    add_job_options(parser)


def _configure_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overhead", type=float, metavar="R", help="R_O = overhead / compute on one GPU: 0.1 is 10 %%")
    parser.add_argument("--speedup", type=float, metavar="S", help="wanted speedup over one GPU")
    parser.add_argument("--efficiency", type=float, metavar="A", help="wanted efficiency: 0.8 is 80 %%")
    parser.add_argument("--gpus", type=int, metavar="G", help="number of GPUs of that efficiency")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(advise=_gpus)


def _configure_servers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--load", required=True, metavar="SIZE", help='parameters, or bytes of a batch: "249 MB"')
    parser.add_argument("--workers", type=int, metavar="N", help="workers that pull and push; without, a plain load")
    parser.add_argument("--rate", required=True, metavar="RATE", help='of one server or loader, in bytes: "1.25 GB/s"')
    parser.add_argument("--compute", required=True, metavar="TIME", help='computation of a step: "0.5 s"')
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(advise=_servers)


def _minibatch(arguments: argparse.Namespace) -> None:
    from dlplacer.files.load import load_topology
    from dlplacer.machines.costs.roofline_times import with_times
    from dlplacer.planning.hybrid.advise.minibatch import plan_batches
    from dlplacer.planning.hybrid.advise.recompute import StepChoices, step_choices
    from dlplacer.planning.hybrid.step_workload import work_of

    topology = load_topology(arguments.topology)
    device = _device(topology.devices, arguments.device)
    if device.memory_bytes is None:
        raise InputError(f"device {device.id!r} has no memory_bytes, so every mini-batch fits; add it to the topology")
    steps: dict[int, StepChoices] = {}
    batches = _batches(arguments)
    with count_line("mini-batches") as report:
        for number, batch in enumerate(batches):
            report(number, len(batches))
            arguments.batch_size = batch
            graph = with_times(graph_of(arguments), topology)
            samples = batch or work_of(graph, device.type).mini_batch
            if samples is None:
                raise InputError(
                    f"graph {graph.name!r} does not say how many samples a step takes, on which throughput depends; "
                    'capture it from its model, or add "capture": {"args": [{"shape": [samples, ...]}]}'
                )
            steps[samples] = step_choices(graph, device.type)
    epochs = _epochs(arguments.epochs)
    plans = plan_batches(steps, device.memory_bytes, arguments.dataset_size, epochs)
    if arguments.json:
        print(json.dumps({"device": device.id, "batches": [asdict(plan) for plan in plans]}))
        return
    rows = [
        (
            str(plan.batch),
            plan.reason if plan.step_s is None else format_seconds(plan.step_s),
            "-" if plan.samples_per_s is None else f"{plan.samples_per_s:.1f}",
            "-" if plan.memory_bytes is None else format_bytes(plan.memory_bytes),
            str(len(plan.recomputed)),
            "-" if plan.training_s is None else format_seconds(plan.training_s),
        )
        for plan in plans
    ]
    ranked = "time per sample" if arguments.dataset_size is None else "training time"
    heads = ("batch", "step", "samples/s", "memory", "recomputed modules", "training")
    _print_rows(heads, rows, f"{device.id}, {format_bytes(device.memory_bytes)}: least {ranked} first")


def _gpus(arguments: argparse.Namespace) -> None:
    from dlplacer.planning.hybrid.advise.gpus import most_overhead_ratio
    from dlplacer.planning.hybrid.scaling_efficiency import SerialOverhead

    given = given_options(arguments, ("overhead", "speedup", "efficiency", "gpus"))
    if len(given) > 2:
        raise InputError(f"advise gpus takes two of its figures; {', '.join(given)} are {len(given)}: leave some out")
    if arguments.overhead is not None and (arguments.speedup is not None or arguments.gpus is not None):
        overhead = SerialOverhead(arguments.overhead)
        gpus = arguments.gpus if arguments.speedup is None else overhead.workers_for(arguments.speedup)
        efficiency = overhead.efficiency(gpus)
        found: dict[str, float] = {} if arguments.speedup is None else {"gpus": gpus}
        found |= {
            "speedup": gpus * efficiency,
            "efficiency": efficiency,
            "speedup_ceiling": overhead.speedup_ceiling,
        }
    elif arguments.efficiency is not None and arguments.gpus is not None:
        found = {"overhead_ratio": most_overhead_ratio(arguments.efficiency, arguments.gpus)}
    else:
        raise InputError(
            "advise gpus needs two of its figures: --overhead with --speedup or --gpus, or --efficiency with --gpus"
        )
    _print_found(found, arguments.json)


def _servers(arguments: argparse.Namespace) -> None:
    from dlplacer.planning.hybrid.advise.servers import fewest_channels, fewest_servers, transfer_s

    load_bytes = quantity_of("--load", arguments.load, "bytes")
    rate = quantity_of("--rate", arguments.rate, "bytes_per_s")
    compute_s = quantity_of("--compute", arguments.compute, "seconds")
    if arguments.workers is None:
        count = fewest_channels(load_bytes, rate, compute_s)
        found = {"loaders": count, "transfer_s": load_bytes / rate / count, "compute_s": compute_s}
    else:
        count = fewest_servers(load_bytes, arguments.workers, rate, compute_s)
        found = {
            "servers": count,
            "transfer_s": transfer_s(load_bytes, arguments.workers, rate, count),
            "compute_s": compute_s,
        }
    _print_found(found, arguments.json)


def _device(devices: tuple[Device, ...], name: str | None) -> Device:
    known = {device.id: device for device in devices}
    if name is None:
        return devices[0]
    if name not in known:
        raise InputError(f"--device {name!r} is not in the topology; it has {', '.join(known)}")
    return known[name]


def _batches(arguments: argparse.Namespace) -> list[int | None]:
    if not arguments.batch_sizes:
        return [arguments.batch_size]
    if not is_entry(arguments.model):
        raise InputError(
            f"--batch-sizes needs module:callable, which can be captured again; {arguments.model!r} is a graph file"
        )
    sizes = arguments.batch_sizes.split(",")
    for size in sizes:
        if not size.strip().isdecimal() or int(size) < 1:
            raise InputError(f"--batch-sizes has {size!r}; write whole numbers of at least 1, as in 8,16,32")
    return [int(size) for size in sizes]


def _epochs(path: str | None) -> Callable[[int], float | None]:
    if path is None:
        return lambda batch: 1.0
    from dlplacer.planning.hybrid.epochs.epochs_file import read_epochs

    data = read_epochs(path)
    if data.mini_batch is None:
        raise InputError(f"{path}: 'mini_batch' is missing; it tells how many samples one unit of the table stands for")
    mini_batch, base = data.mini_batch, data.efficiency.base
    return lambda batch: base.epochs(batch / mini_batch)


def _print_found(found: Mapping[str, float], as_json: bool) -> None:
    if as_json:
        # JSON has no infinity: no ceiling is null.
        print(json.dumps({name: None if value == float("inf") else value for name, value in found.items()}))
    else:
        _print_rows(("figure", "value"), [(name, f"{value:.6g}") for name, value in found.items()], "")


def _print_rows(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], title: str) -> None:
    table = new_table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    print_table(table)
