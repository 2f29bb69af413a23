"""``dlplacer groups``."""

import argparse
import json
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dlplacer.cli.arguments.model_argument import add_job_options, build_fake_job, capture_of, graph_of
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.problem_options import add_subject_arguments, quantity_of
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import InputError
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.data_parallel.groups.ddp_buckets import caps_mb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlplacer.core.graph import OpGraph
    from dlplacer.data_parallel.groups.layer_chain import LayerChain
    from dlplacer.data_parallel.groups.policies import Grouping
    from dlplacer.frontend import Job
    from dlplacer.machines.costs.alpha_beta import AlphaBeta

HELP = "Group layers whose parameters (forward) or gradients (backward) travel together between a machine's devices."
EXAMPLES = (
    ("groups inception_v3-train pcie-4gpu --direction backward", "buckets of gradients"),
    ("groups inception_v3-train pcie-4gpu --direction backward --cap '25 MiB'", "none larger than 25 MiB"),
)
_COLLECTIVE = {"forward": "all-gather", "backward": "all-reduce"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_subject_arguments(parser)
    parser.add_argument(
        "--direction",
        choices=tuple(_COLLECTIVE),
        default="forward",
        help="weights pulled before the forward pass needs them, or gradients pushed behind backward (forward)",
    )
    parser.add_argument(
        "--collective",
        choices=("all-gather", "reduce-scatter", "all-reduce"),
        help="what carries a group (forward: all-gather; backward: all-reduce)",
    )
    parser.add_argument("--cap", metavar="SIZE", help='most bytes of a group, as "25 MiB"')
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Solve the grouping and compare it with what others do."""
    from dlplacer.data_parallel.groups.group_plan import exchange_lines
    from dlplacer.data_parallel.groups.policies import compare_groupings
    from dlplacer.files.load import load_topology
    from dlplacer.machines.costs.roofline_times import with_times

    topology = load_topology(arguments.topology)
    job = build_fake_job(arguments) if is_entry(arguments.model) else None
    graph = with_times(graph_of(arguments) if job is None else capture_of(arguments, job).graph, topology)
    collective = arguments.collective or _COLLECTIVE[arguments.direction]
    line = exchange_lines(topology, sum(op.weight_bytes for op in graph.ops))[collective]
    cap_bytes = None if arguments.cap is None else _cap_bytes(arguments.cap)
    chain, buckets = _chain(graph, topology.devices[0].type, line, arguments.direction, cap_bytes, job)
    found = compare_groupings(chain, arguments.direction, cap_bytes)
    if arguments.json:
        print(json.dumps(_object(chain, found, arguments.direction, collective, buckets)))
    else:
        _print(chain, found, f"{arguments.direction} pass, {collective} over {len(topology.devices)} devices")
        if buckets is not None:
            print(f"DistributedDataParallel(model, bucket_cap_mb_list={caps_mb(buckets)})")
    return 0


def _chain(
    graph: "OpGraph", device_type: str, line: "AlphaBeta", direction: str, cap_bytes: int | None, job: "Job | None"
) -> "tuple[LayerChain, Sequence[int] | None]":
    """The chain to group, and for gradients the caps of DDP's buckets.

    Of a job it is known in which order gradients get ready and which calls use parameters; of a graph, which modules
    own them.
    """
    from dlplacer.data_parallel.groups.captured_chain import chain_of, gradients_of, serial_clock, unit_chain
    from dlplacer.data_parallel.groups.ddp_buckets import gradient_chain, plan_buckets
    from dlplacer.data_parallel.groups.layer_chain import best_groups

    if job is not None and direction == "forward":
        return unit_chain(graph, device_type, job.parameter_uses(), line, direction), None
    if job is not None:
        gradients = gradients_of(graph, job.parameter_uses(), serial_clock(graph, device_type, direction))
        return gradient_chain(gradients, line), plan_buckets(gradients, line, cap_bytes).caps_bytes
    chain = chain_of(graph, device_type, line, direction)
    dtypes = {op.outputs[0].dtype for op in graph.ops if op.kind == "parameter" and op.gradient_bytes and op.outputs}
    if direction == "forward" or len(dtypes) > 1:
        if len(dtypes) > 1:
            print(
                f"dlplacer: gradients of {' and '.join(sorted(dtypes))} share no bucket, and a graph does not tell in "
                "which order they get ready; give MODEL as module:callable for DDP's bucket caps",
                file=sys.stderr,
            )
        return chain, None
    return chain, list(reversed(_group_bytes(chain, best_groups(chain, cap_bytes))))


def _cap_bytes(text: str) -> int:
    cap_bytes = int(quantity_of("--cap", text, "bytes"))
    if cap_bytes < 1:
        raise InputError(f"--cap is {text!r}; it must be at least 1 B")
    return cap_bytes


def _object(
    chain: "LayerChain",
    found: "tuple[Grouping, ...]",
    direction: str,
    collective: str,
    buckets: "Sequence[int] | None",
) -> dict[str, Any]:
    best = found[-1]
    return {
        "direction": direction,
        "collective": collective,
        "cuts": list(best.cuts),
        "makespan_s": best.makespan_s,
        "groups": [list(chain.names[before:last]) for before, last in pairwise((0, *best.cuts))],
        "group_bytes": _group_bytes(chain, best.cuts),
        "bucket_cap_mb_list": None if buckets is None else caps_mb(buckets),
        "policies": {
            grouping.policy: {"cuts": list(grouping.cuts), "makespan_s": grouping.makespan_s} for grouping in found
        },
    }


def _group_bytes(chain: "LayerChain", cuts: tuple[int, ...]) -> list[int]:
    return [sum(chain.bytes[before:last]) for before, last in pairwise((0, *cuts))]


def _print(chain: "LayerChain", found: "tuple[Grouping, ...]", title: str) -> None:
    best = found[-1]
    table = new_table("policy", "groups", "time", "against optimal", title=title)
    for grouping in found:
        ratio = grouping.makespan_s / best.makespan_s if best.makespan_s else 1.0
        table.add_row(grouping.policy, str(len(grouping.cuts)), format_seconds(grouping.makespan_s), f"{ratio:.3f}x")
    groups = new_table("group", "from", "to", "bytes", names=3, title="optimal groups")
    sizes = _group_bytes(chain, best.cuts)
    for number, (before, last) in enumerate(pairwise((0, *best.cuts))):
        groups.add_row(str(number + 1), chain.names[before], chain.names[last - 1], format_bytes(sizes[number]))
    print_table(table, groups)
