"""``dlplacer capture``."""

import argparse
import json
from dataclasses import replace

from dlplacer.cli.arguments.model_argument import add_job_options, build_fake_job, capture_of
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.core.errors import InputError

HELP = "Capture a model's step as a graph, without allocating anything."


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="module:callable that returns a dlplacer.Job or a Module")
    parser.add_argument("-o", "--output", metavar="GRAPH", type=output_file, help="graph file to write")
    parser.add_argument("--device-type", metavar="TYPE", help="add roofline times for a device type, such as V100")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Capture, write, and say what was found."""
    from dlplacer.core.units import format_bytes
    from dlplacer.files import write_graph
    from dlplacer.planning.coarsen import coarsen

    if not is_entry(arguments.model):
        raise InputError(f"{arguments.model!r} is not module:callable; write for example dlplacer.models:inception_v3")
    graph = capture_of(arguments, build_fake_job(arguments)).graph
    if arguments.device_type:
        from dlplacer.machines.costs.roofline_times import with_roofline_times

        graph = with_roofline_times(graph, arguments.device_type)
        note = f"{graph.source}; times on {arguments.device_type}: roofline over the rates of dlplacer's device table"
        graph = replace(graph, source=note)
    graph = coarsen(graph, arguments.granularity)
    if arguments.output is not None:
        write_graph(arguments.output, graph)
        tell_written(arguments.output)
    flops, weight_bytes = sum(op.flops for op in graph.ops), sum(op.weight_bytes for op in graph.ops)
    summary = {
        "name": graph.name,
        "ops": len(graph.ops),
        "edges": len(graph.edges),
        "flops": flops,
        "weight_bytes": weight_bytes,
        "structure_sha256": graph.structure_sha256,
    }
    if arguments.json:
        print(json.dumps(summary))
    else:
        print(
            f"{graph.name}: {len(graph.ops)} ops, {len(graph.edges)} edges, {flops / 1e9:.4g} GFLOP, weights "
            f"{format_bytes(weight_bytes)}"
        )
    return 0
