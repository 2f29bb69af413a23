"""``dlplacer compare``."""

import argparse
import json
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.calibration_option import add_calibration_option, calibrated
from dlplacer.cli.arguments.constraint_options import add_colocate_option, add_pin_option, constrained_by
from dlplacer.cli.arguments.model_argument import add_job_options
from dlplacer.cli.arguments.problem_options import (
    add_issue_option,
    add_problem_arguments,
    add_solver_arguments,
    options_of,
)
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import add_picture_options, save_pictures
from dlplacer.cli.output.progress import interruptible, progress_line
from dlplacer.cli.output.tables import new_table, print_pairs, print_table
from dlplacer.cli.output.use_of_devices import tell_use_of_devices
from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.planning.compare import Comparison

HELP = "Compare all methods on one problem: step time, speedup, gap to the best lower bound, time."
EXAMPLES = (
    ("compare inception_v3-train dgx1-v100-2gpu --time-limit 20s", "every method"),
    ("compare graph.json pcie-4gpu --methods ilp,heft,m-sct --picture methods.png", "some of them, with a picture"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_problem_arguments(parser)
    parser.add_argument("--methods", metavar="NAME[,NAME...]", help="only these (all)")
    add_solver_arguments(parser, "each method")
    add_issue_option(parser)
    add_pin_option(parser)
    add_colocate_option(parser)
    add_picture_options(parser, "comparison")
    parser.add_argument("--html", metavar="F", type=output_file, help="one page with the schedules of all methods")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_calibration_option(parser)
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Run every method, draw the picture, and print the table."""
    from dlplacer.planning.compare import compare

    options = options_of(arguments)
    graph, topology = calibrated(arguments)
    graph = constrained_by(arguments, graph, topology)
    names = arguments.methods
    with interruptible() as stop, progress_line("comparing", arguments.time_limit) as report:
        comparison = compare(
            graph,
            topology,
            options,
            methods=None if names is None else [name for name in names.split(",") if name],
            time_limit_s=arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            on_progress=report,
            stop=stop,
            issue=arguments.issue,
        )
    if arguments.html:
        from dlplacer.files import write_text
        from dlplacer.report.page.comparison_page import comparison_page

        write_text(arguments.html, comparison_page(comparison))
    tell_written(*save_pictures(arguments, "comparison", comparison), arguments.html)
    if arguments.json:
        print(json.dumps(comparison.to_dict()))
    else:
        _print(comparison)
    best = comparison.rows[0].plan
    if best is not None:
        tell_use_of_devices(best)
    return 0


def _print(comparison: "Comparison") -> None:
    table = new_table("method", "status", "step time", "speedup", "gap", "solved in", names=2, title=comparison.name)
    for row in comparison.rows:
        speedup, gap = comparison.speedup(row), comparison.gap(row)
        table.add_row(
            row.method,
            row.status,
            "-" if row.makespan_s is None else format_seconds(row.makespan_s),
            "-" if speedup is None else f"{speedup:.3f}x",
            "-" if gap is None else f"{100 * gap:.2f} %",
            format_seconds(row.solve_s),
        )
    print_table(table)
    single_s = comparison.single_device_s
    print_pairs(
        [
            ("lower bound", format_seconds(comparison.lower_bound_s)),
            ("best single device", FITS_NONE if single_s is None else format_seconds(single_s)),
        ]
    )
