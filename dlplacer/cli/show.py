"""``dlplacer show``."""

import argparse
import sys
from pathlib import Path

from dlplacer.cli.output.csv_tables import write_csv_tables
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import add_picture_options, save_pictures
from dlplacer.cli.output.tables import print_plan
from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan

HELP = "Show a plan: as a table, as pictures, as a Chrome trace, as a page."
EXAMPLES = (
    ("show plan.json", "a table of devices"),
    ("show plan.json --gantt gantt.png --memory memory.png", "pictures; also .svg and .pdf"),
    ("show plan.json --html plan.html --trace trace.json", "a page, and a trace for ui.perfetto.dev"),
    ("show plan.json --csv ops.csv", "ops.csv and ops-transfers.csv"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file")
    add_picture_options(parser, "plan")
    parser.add_argument("--trace", metavar="F", type=output_file, help="Chrome trace (JSON), for ui.perfetto.dev")
    parser.add_argument(
        "--device-map", metavar="F", type=output_file, help="Hugging Face device_map (JSON): module path to device"
    )
    parser.add_argument(
        "--device-map-rule",
        choices=("majority", "exact"),
        help="of --device-map: a module spread over devices goes where most of its parameters are (default), or is "
        "refused",
    )
    parser.add_argument("--html", metavar="F", type=output_file, help="one page to walk through, with everything")
    parser.add_argument(
        "--against", metavar="PLAN", type=Path, help="a second plan, beside the first one on the page of --html"
    )
    parser.add_argument(
        "--csv", metavar="F", type=output_file, help="the ops as CSV; the transfers go to F with -transfers in its name"
    )
    parser.add_argument("--color-by", choices=("phase", "module"), help="colours of --gantt (phase)")


def execute(arguments: argparse.Namespace) -> int:
    """Print the table and write what was asked for."""
    from dlplacer.files.load import load_plan
    from dlplacer.report.whole_plan import require_whole

    if arguments.against is not None and arguments.html is None:
        raise InputError(f"--against {arguments.against} is for the page of two plans; add --html F")
    for option, value, needed in (
        ("--color-by", arguments.color_by, "gantt"),
        ("--device-map-rule", arguments.device_map_rule, "device_map"),
    ):
        if value is not None and getattr(arguments, needed) is None:
            raise InputError(f"{option} {value} is for --{needed.replace('_', '-')}; add it, or leave {option} out")
    plan = load_plan(arguments.plan)
    other = None if arguments.against is None else load_plan(arguments.against)
    print_plan(plan)
    require_whole(plan, str(arguments.plan))
    if other is not None:
        require_whole(other, str(arguments.against))
    written = save_pictures(arguments, "plan", plan)
    if arguments.trace:
        from dlplacer.files import write_json
        from dlplacer.report.trace import chrome_trace

        write_json(arguments.trace, chrome_trace(plan))
    if arguments.device_map:
        _write_device_map(arguments, plan)
    if arguments.html:
        from dlplacer.files import write_text
        from dlplacer.report.page.page import html_page

        names = (arguments.plan.stem, "" if other is None else arguments.against.stem)
        write_text(arguments.html, html_page(plan, other, names if names[0] != names[1] else ("A", "B")))
    tables = write_csv_tables(arguments.csv, plan) if arguments.csv else ()
    tell_written(*written, *tables, arguments.trace, arguments.device_map, arguments.html)
    return 0


def _write_device_map(arguments: argparse.Namespace, plan: Plan) -> None:
    from dlplacer.files import write_json
    from dlplacer.report.export.device_map import device_map, overfull_devices, spread_modules

    write_json(arguments.device_map, device_map(plan, rule=arguments.device_map_rule or "majority"))
    spread = spread_modules(plan)
    notes = [f"{len(spread)} modules are spread over devices in the plan; the map names one"] if spread else []
    for note in (*notes, *overfull_devices(plan)):
        print(f"dlplacer: {note}", file=sys.stderr)
