"""Options that hold ops to devices and to each other, or begin with the plan of a file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlplacer.core.graph import OpGraph
    from dlplacer.core.plan import Plan
    from dlplacer.core.topology import Topology


def add_pin_option(parser: argparse.ArgumentParser) -> None:
    """The option ``--pin``."""
    parser.add_argument(
        "--pin",
        action="append",
        metavar="OP|MODULE=DEVICE",
        help="run an op, all ops of a module, or all that a glob matches ('encoder.*=gpu0') on this device or type of "
        "device; repeat for several",
    )


def add_colocate_option(parser: argparse.ArgumentParser) -> None:
    """The option ``--colocate``."""
    parser.add_argument(
        "--colocate",
        action="append",
        metavar="GLOB[,GLOB…]",
        help="run all ops and modules that these match on one device; repeat for several sets",
    )


def constrained_by(arguments: argparse.Namespace, graph: "OpGraph", topology: "Topology") -> "OpGraph":
    """The graph with the constraints of the command line.

    Raises
    ------
    InputError
        If a name or a device is not known, or pins contradict each other.
    """
    pins, colocate = getattr(arguments, "pin", None) or (), getattr(arguments, "colocate", None) or ()
    if not pins and not colocate:
        return graph
    from dlplacer.planning.constrain import constrained, parsed_pin

    return constrained(graph, topology, [parsed_pin(text, topology) for text in pins], colocate)


def plan_of_option(option: str, path: Path | None) -> "Plan | None":
    """The plan of a file that an option names, checked against every rule.

    Raises
    ------
    InputError
        If there is no such file.
    CheckError
        If the plan breaks a rule of its own problem.
    """
    if path is None:
        return None
    from dlplacer.check import check_plan
    from dlplacer.files.load import load_plan

    plan = load_plan(path)
    check_plan(plan)
    return plan
