"""``dlplacer groups``."""

import argparse
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dlplacer.cli.arguments.model_argument import add_job_options, graph_of
from dlplacer.cli.arguments.problem_options import add_subject_arguments, quantity_of
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import InputError
from dlplacer.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from dlplacer.data_parallel.groups.layer_chain import LayerChain
    from dlplacer.data_parallel.groups.policies import Grouping

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
    from dlplacer.data_parallel.groups.captured_chain import chain_of
    from dlplacer.data_parallel.groups.policies import compare_groupings
    from dlplacer.files.load import load_topology
    from dlplacer.machines.costs.collectives_on_links import MachineCosts
    from dlplacer.machines.costs.message_routes import Wiring
    from dlplacer.machines.costs.roofline_times import with_times

    topology = load_topology(arguments.topology)
    if len(topology.devices) < 2:
        raise InputError(
            f"topology {arguments.topology!r} has one device, which exchanges nothing; give one with two or more"
        )
    graph = with_times(graph_of(arguments), topology)
    costs = MachineCosts(Wiring(topology), (tuple(device.id for device in topology.devices),))
    collective = arguments.collective or _COLLECTIVE[arguments.direction]
    total_bytes = sum(op.weight_bytes for op in graph.ops)
    line = costs.collectives(total_bytes)[collective]
    chain = chain_of(graph, topology.devices[0].type, line, arguments.direction)
    cap_bytes = None if arguments.cap is None else _cap_bytes(arguments.cap)
    found = compare_groupings(chain, arguments.direction, cap_bytes)
    if arguments.json:
        print(json.dumps(_object(chain, found, arguments.direction, collective)))
    else:
        _print(chain, found, f"{arguments.direction} pass, {collective} over {len(topology.devices)} devices")
    return 0


def _cap_bytes(text: str) -> int:
    cap_bytes = int(quantity_of("--cap", text, "bytes"))
    if cap_bytes < 1:
        raise InputError(f"--cap is {text!r}; it must be at least 1 B")
    return cap_bytes


def _object(chain: "LayerChain", found: "tuple[Grouping, ...]", direction: str, collective: str) -> dict[str, Any]:
    best = found[-1]
    sizes = _group_bytes(chain, best.cuts)
    # torch's DistributedDataParallel takes whole MiB, bucket by bucket as gradients get ready: from the last layer on.
    caps = [max(1, round(size / 2**20)) for size in reversed(sizes)] if direction == "backward" else None
    return {
        "direction": direction,
        "collective": collective,
        "cuts": list(best.cuts),
        "makespan_s": best.makespan_s,
        "groups": [list(chain.names[before:last]) for before, last in pairwise((0, *best.cuts))],
        "group_bytes": sizes,
        "bucket_cap_mb_list": caps,
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
