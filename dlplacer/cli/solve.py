"""``dlplacer solve``."""

import argparse
import json
import time
from pathlib import Path

from dlplacer.cli.arguments.calibration_option import add_calibration_option, calibrated
from dlplacer.cli.arguments.constraint_options import (
    add_colocate_option,
    add_pin_option,
    constrained_by,
    plan_of_option,
)
from dlplacer.cli.arguments.model_argument import add_job_options
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.problem_options import (
    add_issue_option,
    add_problem_arguments,
    add_solver_arguments,
    options_of,
    share_option,
)
from dlplacer.cli.arguments.split_option import add_split_options, refuse_without_split, solve_with_splits
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.progress import interruptible, progress_line
from dlplacer.cli.output.tables import print_result
from dlplacer.cli.output.use_of_devices import tell_use_of_devices
from dlplacer.cli.output.verbosity import note
from dlplacer.core.errors import NoPlanError
from dlplacer.planning.garbage import fewer_collections

_WRITE_FACTOR = 0.8
"""Time to write a plan ÷ time to read its graph: 0.6 to 0.9 on 106,000 ops, which take seconds."""

HELP = "Find the plan of least step time, with a lower bound and a gap."
EXAMPLES = (
    ("solve inception_v3-train dgx1-v100-2gpu -o plan.json", "a graph and a machine that ship; see dlplacer list"),
    (
        "solve my_model:build my_box.json --batch-size 8 --time-limit 5min -o plan.json",
        "a model and a box of yours",
    ),
    ("solve model.onnx pcie-4gpu --dim batch=8", "an ONNX file"),
    (
        "solve graph.json pcie-4gpu --pin embedding=gpu0 --colocate 'decoder.*' -o plan.json",
        "hold ops in place",
    ),
    ("solve graph.json pcie-4gpu --warm-start plan.json -o better.json", "go on from a plan"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_problem_arguments(parser)
    parser.add_argument("-o", "--output", metavar="PLAN", type=output_file, help="plan file to write")
    parser.add_argument(
        "--method", default="ilp", metavar="NAME", help="ilp (default) or one that `dlplacer compare` lists"
    )
    add_solver_arguments(parser, "the whole solve, reading a graph file included")
    parser.add_argument(
        "--gap", type=share_option, default=0.0, metavar="G", help="stop at this gap: 0.01 and 1%% are one percent (0)"
    )
    add_issue_option(parser)
    add_pin_option(parser)
    add_colocate_option(parser)
    parser.add_argument(
        "--warm-start",
        metavar="PLAN",
        type=Path,
        help="begin with this plan: go on with an earlier solve, or start from a plan of a similar graph or machine",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_calibration_option(parser)
    add_job_options(parser)
    add_split_options(parser)


@fewer_collections()
def execute(arguments: argparse.Namespace) -> int:
    """Solve, write the plan, and print the result."""
    from dlplacer.files import write_plan
    from dlplacer.planning.place import place

    if arguments.split is not None:
        return solve_with_splits(arguments)
    refuse_without_split(arguments)
    options = options_of(arguments)
    began = time.monotonic()
    warm = plan_of_option("--warm-start", arguments.warm_start)
    graph, topology = calibrated(arguments)
    graph = constrained_by(arguments, graph, topology)
    # A capture does not count, as the user's code may take longer than the limit.
    read_s = 0.0 if is_entry(arguments.model) else time.monotonic() - began
    files_s = read_s * (1 + (_WRITE_FACTOR if arguments.output is not None else 0))
    limit_s = max(arguments.time_limit - files_s, arguments.time_limit / 2)
    with interruptible() as stop:
        try:
            with progress_line(limit_s=limit_s) as report:
                result = place(
                    graph,
                    topology,
                    options,
                    method=arguments.method,
                    time_limit_s=limit_s,
                    gap=arguments.gap,
                    seed=arguments.seed,
                    workers=arguments.workers,
                    on_progress=report,
                    stop=stop,
                    warm_start=warm,
                    issue=arguments.issue,
                )
        except NoPlanError:
            if stop.is_set():
                raise KeyboardInterrupt from None
            raise
        # A Ctrl-C that comes now is too late to cost the plan.
        if warm is not None:
            note(f"warm start: {result.plan.provenance['warm_start']}")
        if arguments.output is not None:
            write_plan(arguments.output, result.plan)
            tell_written(arguments.output)
    from dlplacer.planning.launch_bound import launch_note
    from dlplacer.planning.pipeline.hint import pipeline_hint

    hint = pipeline_hint(graph, topology, result.plan.makespan_s)
    launch_bound = launch_note(result)
    if launch_bound is not None:
        note(launch_bound)
    if arguments.json:
        print(json.dumps({**result.to_dict(), "pipeline": None if hint is None else hint.to_dict()}))
    else:
        print_result(result)
    tell_use_of_devices(result.plan, result.bounds.get("critical_path_s"))
    if hint is not None and hint.is_faster:
        note(str(hint))
    return 0
