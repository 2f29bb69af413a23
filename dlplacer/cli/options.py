"""The options that say what a solve assumes."""

import argparse
import sys

from dlplacer.errors import InputError
from dlplacer.options import CHOICES, PAPER_ONLY, Options


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """What is planned: MODEL|GRAPH, TOPOLOGY, and the assumptions."""
    parser.add_argument(
        "model", metavar="MODEL|GRAPH", help="module:callable, a graph file, or the name of one that ships"
    )
    parser.add_argument("topology", metavar="TOPOLOGY", help="a topology file, or the name of one that ships")
    for name, values in CHOICES.items():
        parser.add_argument(f"--{name}", choices=values, help=argparse.SUPPRESS if name == "step" else None)
    parser.add_argument("--paper", action="store_true", help="assume what the paper's equations 7-13 assume")


def add_solver_arguments(parser: argparse.ArgumentParser, limit: str) -> None:
    """What a solve may spend; `limit` says what the time limit holds for."""
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help=f"seconds for {limit} (60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (0)")
    parser.add_argument("--workers", type=int, metavar="N", help="solver threads (the cores)")


def options_of(arguments: argparse.Namespace) -> Options:
    """The options asked for; those that are not given take the paper's values, and that is said.

    Raises
    ------
    InputError
        If one contradicts ``--paper`` or cannot be honoured yet.
    """
    paper = Options.paper().to_dict()
    given = {name: value for name in CHOICES if (value := getattr(arguments, name)) is not None}
    for name, value in given.items():
        if value != paper[name] and (arguments.paper or name in PAPER_ONLY):
            cause = "contradicts --paper" if arguments.paper else "cannot be honoured yet"
            raise InputError(
                f"--{name} {value} {cause}: this version solves with --{name} {paper[name]}, as the paper does"
            )
    if not arguments.paper:
        assumed = ", ".join(f"{name} {value}" for name, value in paper.items() if name not in given)
        print(f"dlplacer: assuming what the paper assumes: {assumed}", file=sys.stderr)
    return Options(**{**paper, **given})
