"""The option ``--calibration``: measured op times that serve any graph."""

import argparse
import sys
from pathlib import Path

from dlplacer.cli.arguments.model_argument import graph_of
from dlplacer.cli.arguments.topology_argument import topology_to_plan_for
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """Files to take measured times from; each is of one device type."""
    parser.add_argument(
        "--calibration",
        action="append",
        metavar="FILE",
        type=Path,
        default=[],
        help="measured op times of a device type, as `dlplacer profile --calibration` writes them; repeat for several",
    )


def calibrated(arguments: argparse.Namespace) -> tuple[OpGraph, Topology]:
    """Graph and topology of a command, with the measured times of the files; their coverage is reported on stderr."""
    graph, topology = graph_of(arguments), topology_to_plan_for(arguments.topology)
    if not arguments.calibration:
        return graph, topology
    from dlplacer.machines.costs.calibration import with_calibrated_links, with_calibrated_times
    from dlplacer.machines.costs.calibration_file import read_calibration
    from dlplacer.machines.costs.roofline_times import with_times

    graph = with_times(graph, topology)
    for path in arguments.calibration:
        found = read_calibration(path)
        graph, coverage = with_calibrated_times(graph, found)
        topology = with_calibrated_links(topology, found)
        share = coverage.known_time_s / coverage.time_s if coverage.time_s else 0.0
        print(
            f"{path}: measured times for {coverage.known_ops} of {coverage.ops} ops on {found.device_type}, "
            f"{100 * share:.1f} % of the serial time; the rest by roofline",
            file=sys.stderr,
        )
    return graph, topology
