"""``dlplacer capture``."""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.model_argument import add_job_options, build_fake_job, capture_of
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.onnx_argument import graph_of_onnx, is_onnx
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.progress import progress
from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from dlplacer.core.graph import OpGraph

HELP = "Capture a model's step as a graph, without allocating anything."
EXAMPLES = (
    ("capture dlplacer.models:inception_v3 -o graph.json", "forward and backward, batch 32"),
    ("capture my_model:build --batch-size 8 --optimizer adam -o graph.json", "my_model.py returns a dlplacer.Job"),
    ("capture my_model:Net --input float32:8x3x224x224 -o graph.json", "a bare module: its inference"),
    ("capture model.onnx --dim batch=8 -o graph.json", "an ONNX file"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="module:callable that returns a Job or a Module, or .onnx file")
    parser.add_argument("-o", "--output", metavar="GRAPH", type=output_file, help="graph file to write")
    parser.add_argument("--device-type", metavar="TYPE", help="add roofline times for a device type, such as V100")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Capture, write, and say what was found."""
    from dlplacer.core.units import format_bytes
    from dlplacer.files import write_graph
    from dlplacer.planning.coarsen import coarsen

    with progress("capturing"):
        graph = _captured(arguments)
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
    mode = (graph.capture or {}).get("mode")
    if arguments.json:
        print(json.dumps(summary))
    else:
        print(
            f"{graph.name}: {len(graph.ops)} ops, {len(graph.edges)} edges, {flops / 1e9:.4g} GFLOP, weights "
            f"{format_bytes(weight_bytes)}{f', mode {mode}' if mode else ''}"
        )
    return 0


def _captured(arguments: argparse.Namespace) -> "OpGraph":
    if is_onnx(arguments.model):
        return graph_of_onnx(arguments)
    if not is_entry(arguments.model):
        raise InputError(
            f"{arguments.model!r} is neither module:callable nor an .onnx file; write for example "
            "dlplacer.models:inception_v3"
        )
    return capture_of(arguments, build_fake_job(arguments)).graph
