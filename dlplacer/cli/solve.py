"""``dlplacer solve``."""

import argparse
import json
import sys
from pathlib import Path

from dlplacer.cli.model import add_job_options, graph_of
from dlplacer.cli.progress import interruptible, progress_line
from dlplacer.errors import InputError, NoPlanError
from dlplacer.options import CHOICES, Options

HELP = "Find the plan of least step time, with a lower bound and a gap."


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("model", metavar="MODEL|GRAPH", help="module:callable, a graph file, or the name of one that ships")
    parser.add_argument("topology", metavar="TOPOLOGY", help="a topology file, or the name of one that ships")
    parser.add_argument("-o", "--output", metavar="PLAN", type=Path, help="plan file to write")
    parser.add_argument("--method", default="ilp", metavar="NAME", help="ilp (default), list, heft or single")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="seconds for the whole solve (60)")
    parser.add_argument("--gap", type=float, default=0.0, metavar="G", help="stop at this gap: 0.01 is one percent (0)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (0)")
    parser.add_argument("--workers", type=int, metavar="N", help="solver threads (the cores)")
    for name, values in CHOICES.items():
        parser.add_argument(f"--{name}", choices=values, help=argparse.SUPPRESS if name == "step" else None)
    parser.add_argument("--paper", action="store_true", help="assume what the paper's equations 7-13 assume")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Solve, write the plan, and print the result."""
    from dlplacer.files import write_plan
    from dlplacer.load import load_topology
    from dlplacer.placement import place

    options = _options(arguments)
    topology = load_topology(arguments.topology)
    graph = graph_of(arguments)
    with interruptible() as stop, progress_line() as report:
        try:
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
    if arguments.output is not None:
        write_plan(arguments.output, result.plan)
    if arguments.json:
        print(json.dumps(result.to_dict()))
    else:
        from dlplacer.cli.tables import print_result

        print_result(result)
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    """The options asked for; those that are not given take the paper's values, and that is said."""
    paper = Options.paper().to_dict()
    given = {name: value for name in CHOICES if (value := getattr(arguments, name)) is not None}
    for name, value in given.items():
        if value != paper[name]:
            cause = "contradicts --paper" if arguments.paper else "cannot be honoured yet"
            raise InputError(f"--{name} {value} {cause}: this version solves with --{name} {paper[name]}, as the paper does")
    if not arguments.paper:
        assumed = ", ".join(f"{name} {value}" for name, value in paper.items() if name not in given)
        print(f"dlplacer: assuming what the paper assumes: {assumed}", file=sys.stderr)
    return Options.paper()
