"""``dlplacer pipeline``."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from dlplacer.cli.arguments.calibration_option import add_calibration_option, calibrated
from dlplacer.cli.arguments.constraint_options import add_colocate_option, add_pin_option, constrained_by
from dlplacer.cli.arguments.model_argument import add_job_options
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.problem_options import add_subject_arguments, seconds_option
from dlplacer.cli.arguments.split_option import add_other_loss_option
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import add_picture_options, save_pictures
from dlplacer.cli.output.progress import count_line, progress_line
from dlplacer.cli.output.tables import new_table, print_pairs, print_table
from dlplacer.core.errors import DlplacerError, InputError
from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from dlplacer.core.constraints import Constraints
    from dlplacer.core.graph import OpGraph
    from dlplacer.core.topology import Topology
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan

HELP = "Cut a model into stages for pipeline parallelism: stages, schedule, bubble, speedup."
EXAMPLES = (
    ("pipeline dlplacer.models:gnmt dgx1-v100-4gpu", "the best stages, micro-batches and schedule"),
    ("pipeline inception_v3-train dgx1-v100-2gpu --stages 2 --micro-batches 8 --schedule 1f1b", "one of them"),
    ("pipeline my_model:build pcie-4gpu -o plan.json", "a plan for dlplacer run"),
)
_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_subject_arguments(parser)
    parser.add_argument(
        "--stages", type=int, metavar="N", help="devices, each with a stage, or two when interleaved (the best)"
    )
    parser.add_argument("--micro-batches", dest="parts", type=int, metavar="M", help="parts of the batch (the best)")
    add_other_loss_option(parser)
    parser.add_argument("--schedule", choices=_SCHEDULES, help="order of the micro-batches (the best)")
    parser.add_argument("-o", "--output", metavar="PLAN", type=output_file, help="plan file to write, for dlplacer run")
    parser.add_argument(
        "--time-limit",
        type=seconds_option,
        default=10.0,
        metavar="TIME",
        help="time for op placement, to compare with (10 s; 0: none)",
    )
    add_pin_option(parser)
    add_colocate_option(parser)
    add_picture_options(parser, "pipeline plan")
    parser.add_argument("--html", metavar="F", type=output_file, help="one page with the schedule and its stages")
    parser.add_argument(
        "--csv", metavar="F", type=output_file, help="the order as torch.distributed.pipelining reads it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_calibration_option(parser)
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Plan the pipeline, compare it with op placement, and print both."""
    from dlplacer.planning.pipeline.pipeline_search import plan_pipeline

    if not arguments.time_limit >= 0:
        raise InputError(f"--time-limit is {arguments.time_limit:g} s; it must be at least 0, where 0 compares nothing")
    for option, count in (("--stages", arguments.stages), ("--micro-batches", arguments.parts)):
        if count is not None and count < 1:
            raise InputError(f"{option} is {count}; it must be at least 1")
    if arguments.output is not None:
        _require_capturable(arguments)
    graph, topology = calibrated(arguments)
    graph = constrained_by(arguments, graph, topology)
    with count_line("pipelines tried") as report:
        plan = plan_pipeline(
            graph,
            topology,
            stages=arguments.stages,
            micro_batches=arguments.parts,
            schedule=arguments.schedule,
            on_progress=report,
        )
    for warning in plan.warnings:
        print(f"dlplacer: {warning}", file=sys.stderr)
    _write(arguments, plan)
    if arguments.output is not None:
        _write_plan(arguments, plan, graph.constraints)
    placed = _op_placement(graph, topology, arguments.time_limit) if arguments.time_limit else None
    if arguments.json:
        print(json.dumps({**plan.to_dict(), "op_placement": placed}))
    else:
        _print(plan, placed)
    return 0


def _write(arguments: argparse.Namespace, plan: "PipelinePlan") -> None:
    if arguments.csv is not None:
        from dlplacer.files.disk import write_bytes
        from dlplacer.planning.pipeline.schedule.action import write_csv

        write_bytes(arguments.csv, write_csv(plan.order).encode())
    if arguments.html:
        from dlplacer.files import write_text
        from dlplacer.report.page.pipeline_page import pipeline_page

        write_text(arguments.html, pipeline_page(plan))
    tell_written(arguments.csv, *save_pictures(arguments, "pipeline plan", plan), arguments.html)


def _require_capturable(arguments: argparse.Namespace) -> None:
    """A plan of micro-batches is one of another graph, which takes the model's code to make."""
    if not is_entry(arguments.model):
        raise InputError(
            f"-o needs the model as module:callable, to capture its micro-batches; {arguments.model!r} is a file: drop "
            "-o, or name the model that it was captured from"
        )
    if arguments.granularity != "aten":
        raise InputError(f"-o writes a plan of ATen calls; drop --granularity {arguments.granularity}")


def _write_plan(arguments: argparse.Namespace, pipeline: "PipelinePlan", held: "Constraints") -> None:
    from dlplacer.files import write_plan
    from dlplacer.planning.pipeline.placed_pipeline import placed_pipeline, with_copies_held

    count = pipeline.micro_batches
    rewritten = argparse.Namespace(**vars(arguments), micro_batches=count if count > 1 else None)
    graph, topology = calibrated(rewritten)
    write_plan(arguments.output, placed_pipeline(pipeline, with_copies_held(graph, held), topology))
    tell_written(arguments.output)


def _op_placement(graph: "OpGraph", topology: "Topology", time_limit_s: float) -> dict[str, Any] | None:
    """Step time and speedup of a plan of op placement, or None if none was found."""
    from dlplacer.planning.place import place

    try:
        with progress_line("op placement, to compare with", time_limit_s) as report:
            result = place(graph, topology, time_limit_s=time_limit_s, on_progress=report)
    except DlplacerError as error:
        print(f"dlplacer: no op placement to compare with: {error}", file=sys.stderr)
        return None
    return {"status": result.plan.status, "makespan_s": result.plan.makespan_s, "speedup": result.speedup}


def _print(plan: "PipelinePlan", placed: dict[str, Any] | None) -> None:
    heads = ("stage", "device", "ops", "forward", "backward", "held", "memory", "sends")
    table = new_table(*heads, names=3, title=plan.name)
    for number, stage in enumerate(plan.stages):
        table.add_row(
            str(number),
            stage.device,
            f"{len(stage.ops)}: … {stage.ops[-1]}",
            format_seconds(stage.forward_s),
            format_seconds(stage.backward_s),
            str(stage.held),
            format_bytes(stage.memory_bytes),
            format_bytes(stage.sends_bytes),
        )
    print_table(table)
    split = "best of all contiguous splits" if plan.exact else "best of the splits searched"
    rows = [
        ("schedule", f"{plan.schedule}, {plan.micro_batches} micro-batches"),
        ("step time", format_seconds(plan.step_s)),
        ("bubble", f"{100 * plan.timeline.bubble:.1f} %"),
        ("slowest part", f"{format_seconds(plan.bottleneck_s)} per micro-batch ({split})"),
    ]
    if plan.single_device_s is None:
        rows.append(("best single device", FITS_NONE))
    else:
        rows.append(("best single device", f"{format_seconds(plan.single_device_s)}; speedup {plan.speedup:.3f}x"))
    if placed is not None:
        ratio = placed["makespan_s"] / plan.step_s if plan.step_s else 0.0
        verdict = f"the pipeline is {ratio:.2f}x as fast" if ratio >= 1 else "faster than the pipeline"
        rows.append(("op placement", f"{format_seconds(placed['makespan_s'])} ({placed['status']}); {verdict}"))
    print_pairs(rows)
