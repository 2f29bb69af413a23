"""What a profile found: the graph with its measured times, written and summed up."""

import argparse
import json
from collections.abc import Mapping

from dlplacer.cli.output.output_files import tell_written
from dlplacer.core.graph import OpGraph
from dlplacer.core.units import format_seconds


def tell_profile(arguments: argparse.Namespace, graph: OpGraph, times: Mapping[str, Mapping[str, float]]) -> None:
    """Write the graph where ``-o`` asks for it, and print the serial time on every device type.

    Parameters
    ----------
    times
        Device type → op → seconds.
    """
    from dlplacer.files import write_graph

    if arguments.output is not None:
        write_graph(arguments.output, graph)
        tell_written(arguments.output)
    serial = {device_type: sum(by_op.values()) for device_type, by_op in times.items()}
    if arguments.json:
        print(json.dumps({"ops": len(graph.ops), "serial_s": serial}))
        return
    for device_type, total_s in serial.items():
        print(f"{graph.name} on {device_type}: {len(graph.ops)} ops, {format_seconds(total_s)} one after another")
