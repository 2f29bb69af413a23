"""``dlplacer run`` over several processes: ``--replicas N``, devices as ``rank0/cpu:0``, or under torchrun."""

import argparse
import json
import os
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.model_argument import build_job
from dlplacer.cli.output.run_files import write_run

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan
    from dlplacer.measure.fidelity.ranks_report import RanksReport
    from dlplacer.measure.fidelity.ranks_run import RanksRun

_LAUNCH_LIMIT_S = 24 * 3600.0


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Options of a run over several processes."""
    group = parser.add_argument_group(
        "several processes (devices as rank0/cpu:0,rank1/cpu:1; they are started here, or by torchrun)"
    )
    group.add_argument("--replicas", type=int, metavar="N", help="train N copies of the plan on N parts of the batch")
    group.add_argument(
        "--bucket-bytes", type=int, metavar="B", help="gradients are exchanged in buckets of B bytes (25 MiB)"
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="wait S seconds for another rank (120)"
    )


def over_ranks(arguments: argparse.Namespace, plan: "Plan") -> bool:
    """Whether the arguments, the plan or torchrun ask for more than one process."""
    wanted = arguments.replicas is not None or _planned_replicas(plan) > 1 or "rank" in arguments.devices
    return wanted or int(os.environ.get("WORLD_SIZE", "1")) > 1


def execute_over_ranks(arguments: argparse.Namespace, plan: "Plan") -> int:
    """Run on all ranks, which are forked unless torchrun has started them, and print on the first."""
    from dlplacer.runtime.distributed.launch import launch, results_of, under_launcher
    from dlplacer.runtime.distributed.ranks import parse_ranks

    replicas = _planned_replicas(plan) if arguments.replicas is None else arguments.replicas
    ranks = parse_ranks(plan, arguments.devices, replicas)

    def work(rank: int) -> "RanksRun | None":
        done = _measured(arguments, plan, replicas)
        return done if rank == 0 else None

    if under_launcher():
        done = work(int(os.environ["RANK"]))
    else:
        done = results_of(launch(ranks.count, work, _LAUNCH_LIMIT_S))[0]
    if done is None:
        return 0
    if arguments.json:
        print(json.dumps(done.report.to_dict()))
    else:
        _print(done.report)
    write_run(arguments, done.predicted, done.measured)
    return 0


def _planned_replicas(plan: "Plan") -> int:
    return int((plan.graph.capture or {}).get("collectives", {}).get("replicas", 1))


def _measured(arguments: argparse.Namespace, plan: "Plan", replicas: int) -> "RanksRun":
    from dlplacer.measure.fidelity.ranks_run import run_over_ranks
    from dlplacer.runtime.distributed.replicate import DEFAULT_BUCKET_BYTES

    whole = argparse.Namespace(**vars(arguments))
    if whole.batch_size is not None:
        whole.batch_size *= replicas
    job = build_job(whole)
    return run_over_ranks(
        job,
        plan,
        arguments.devices.split(","),
        replicas=replicas,
        cut=whole.batch_size is not None,
        steps=arguments.steps,
        warmup=arguments.warmup,
        bucket_bytes=DEFAULT_BUCKET_BYTES if arguments.bucket_bytes is None else arguments.bucket_bytes,
        timeout_s=arguments.timeout,
    )


def _print(report: "RanksReport") -> None:
    from dlplacer.cli.output.run_tables import DRAWS, print_details
    from dlplacer.cli.output.tables import new_table, print_table
    from dlplacer.core.units import format_seconds

    replicas = "1 replica" if report.replicas == 1 else f"{report.replicas} replicas"
    table = new_table(f"{replicas}, {report.ranks} ranks", "predicted", "measured")
    table.add_row("step time", format_seconds(report.predicted_s), format_seconds(report.measured_s))
    table.add_row("samples per second", f"{report.predicted_speedup:.3f}x", f"{report.measured_speedup:.3f}x")
    table.add_row("one device, plain PyTorch", "", format_seconds(report.baseline_s))
    table.add_row("error of the prediction", "", f"{100 * report.prediction_error:.2f} %")
    table.add_row("largest difference to one process", "", f"{report.max_abs_error:.3g}{DRAWS[report.draws]}")
    if report.full_batch_error is not None:
        table.add_row("largest difference to the full batch", "", f"{report.full_batch_error:.3g}")
    if report.buckets:
        line = f"{format_seconds(report.all_reduce_latency_s)} + {report.all_reduce_s_per_byte * 1e9:.3g} s/GB"
        table.add_row(f"{report.buckets} all-reduces of the gradients", "", line)
    print_table(table)
    print_details(report)
