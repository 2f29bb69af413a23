"""The options that say what a solve assumes."""

import argparse
from collections.abc import Sequence

from dlplacer.core.errors import InputError
from dlplacer.core.options import ASSUMPTIONS, CHOICES, Options
from dlplacer.core.units import parse_quantity
from dlplacer.machines.costs.issue import ISSUES

CAPTURE_OPTIONS = (
    "batch_size",
    "input",
    "mode",
    "optimizer",
    "autocast",
    "autocast_on",
    "whole_backward",
    "colocate_backward",
    "splits_of",
    "micro_batches",
)
"""Names of the options that say how a model in torch is captured."""


def add_subject_arguments(parser: argparse.ArgumentParser) -> None:
    """What is planned: MODEL|GRAPH and TOPOLOGY."""
    parser.add_argument(
        "model",
        metavar="MODEL|GRAPH",
        help="module:callable, an .onnx file, a graph file, or the name of a graph that ships (inception_v3-train)",
    )
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        help="a topology file, or the name of one that ships (cpu-2core, dgx1-v100-2gpu, …)",
    )


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """What is planned, and the assumptions."""
    add_subject_arguments(parser)
    for name, values in CHOICES.items():
        parser.add_argument(f"--{name}", choices=values, help=f"{ASSUMPTIONS[name].decides} ({values[0]})")
    parser.add_argument("--paper", action="store_true", help="assume what the paper's equations 7-13 assume")


def add_solver_arguments(parser: argparse.ArgumentParser, limit: str, default_s: float = 60.0) -> None:
    """What a solve may spend; `limit` says what the time limit holds for."""
    parser.add_argument(
        "--time-limit",
        type=seconds_option,
        default=default_s,
        metavar="TIME",
        help=f"time for {limit}, as 30, 90s or 5min ({default_s:g} s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (0)")
    parser.add_argument("--workers", type=int, metavar="N", help="solver threads (the cores)")


def add_issue_option(parser: argparse.ArgumentParser) -> None:
    """Who issues the ops of a machine that does not say it."""
    parser.add_argument(
        "--issue",
        choices=ISSUES,
        default=ISSUES[0],
        help="eager: one process of eager PyTorch issues all ops, unless the topology gives its own cost (none)",
    )


def options_of(arguments: argparse.Namespace) -> Options:
    """The options asked for; those that are not given take their defaults, or with ``--paper`` the paper's values.

    Raises
    ------
    InputError
        If one contradicts ``--paper``.
    """
    given = {name: value for name in CHOICES if (value := getattr(arguments, name)) is not None}
    if not arguments.paper:
        return Options(**given)
    paper = Options.paper().to_dict()
    for name, value in given.items():
        if value != paper[name]:
            raise InputError(
                f"--{name} {value} contradicts --paper, which means --{name} {paper[name]}; leave out one of the two"
            )
    return Options.paper()


def quantity_of(option: str, text: str, dimension: str) -> float:
    """The value of an option such as ``--load "249 MB"``, in SI base units.

    Raises
    ------
    InputError
        If the text is not a quantity of this dimension, or it is negative.
    """
    try:
        value = parse_quantity(text, dimension)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
    if value < 0:
        raise InputError(f"{option} is {text!r}; it must not be negative")
    return value


def seconds_option(text: str) -> float:
    """The seconds of an option such as ``--time-limit 1min``, for `argparse`; a plain number is seconds."""
    return _typed(text, "seconds", "60 s, 1min or 1.5 h")


def bytes_option(text: str) -> int:
    """The bytes of an option such as ``--bucket-bytes "25 MiB"``, for `argparse`; a plain number is bytes."""
    return int(_typed(text, "bytes", "25 MiB or 1 GB"))


def share_option(text: str) -> float:
    """The share of an option such as ``--gap 1%``, for `argparse`; a plain number is the share itself."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write for example 0.01 or 1%") from None
    return value / 100 if percent else value


def _typed(text: str, dimension: str, example: str) -> float:
    try:
        return parse_quantity(text, dimension)
    except ValueError as error:
        reason = str(error).partition("; write for example")[0]
        raise argparse.ArgumentTypeError(f"{reason}; write for example {example}") from error


def given_options(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of the options that the user gave, as written: ``--batch-size``."""
    values = {name: getattr(arguments, name, None) for name in names}
    return [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None and value is not False]
