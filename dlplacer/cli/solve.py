"""``dlplacer solve``."""

import argparse
import json
import sys

from dlplacer.cli.arguments.calibration_option import add_calibration_option, calibrated
from dlplacer.cli.arguments.model_argument import add_job_options
from dlplacer.cli.arguments.problem_options import add_problem_arguments, add_solver_arguments, options_of
from dlplacer.cli.arguments.split_option import add_split_options, refuse_without_split, solve_with_splits
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.progress import interruptible, progress_line
from dlplacer.cli.output.tables import print_result
from dlplacer.core.errors import NoPlanError

HELP = "Find the plan of least step time, with a lower bound and a gap."


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_problem_arguments(parser)
    parser.add_argument("-o", "--output", metavar="PLAN", type=output_file, help="plan file to write")
    parser.add_argument(
        "--method", default="ilp", metavar="NAME", help="ilp (default) or one that `dlplacer compare` lists"
    )
    add_solver_arguments(parser, "the whole solve")
    parser.add_argument("--gap", type=float, default=0.0, metavar="G", help="stop at this gap: 0.01 is one percent (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_calibration_option(parser)
    add_job_options(parser)
    add_split_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Solve, write the plan, and print the result."""
    from dlplacer.files import write_plan
    from dlplacer.planning.place import place

    if arguments.split is not None:
        return solve_with_splits(arguments)
    refuse_without_split(arguments)
    options = options_of(arguments)
    graph, topology = calibrated(arguments)
    with interruptible() as stop:
        try:
            with progress_line() as report:
                result = place(
                    graph,
                    topology,
                    options,
                    method=arguments.method,
                    time_limit_s=arguments.time_limit,
                    gap=arguments.gap,
                    seed=arguments.seed,
                    workers=arguments.workers,
                    on_progress=report,
                    stop=stop,
                )
        except NoPlanError:
            if stop.is_set():
                raise KeyboardInterrupt from None
            raise
        # A Ctrl-C that comes now is too late to cost the plan.
        if arguments.output is not None:
            write_plan(arguments.output, result.plan)
            tell_written(arguments.output)
    from dlplacer.planning.pipeline.hint import pipeline_hint

    hint = pipeline_hint(graph, topology, result.plan.makespan_s)
    if arguments.json:
        print(json.dumps({**result.to_dict(), "pipeline": None if hint is None else hint.to_dict()}))
    else:
        print_result(result)
    if hint is not None and hint.is_faster:
        print(f"dlplacer: {hint}", file=sys.stderr)
    return 0
