"""The files that ``dlplacer run`` writes."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan


def write_run(arguments: argparse.Namespace, predicted: "Plan", measured: "Plan") -> None:
    """The files that the command line asks for: the picture and the trace of the predicted and the measured step."""
    if arguments.gantt:
        from dlplacer.report.plot import save_run_picture

        save_run_picture(arguments.gantt, predicted, measured)
    if arguments.trace:
        from dlplacer.files import write_json
        from dlplacer.report.trace import run_trace

        write_json(arguments.trace, run_trace(predicted, measured))
    for path in filter(None, (arguments.gantt, arguments.trace)):
        print(f"wrote {path}", file=sys.stderr)
