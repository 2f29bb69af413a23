"""``dlplacer explain``."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.problem_options import quantity_of
from dlplacer.cli.output.tables import new_table, print_pairs, print_table
from dlplacer.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan
    from dlplacer.report.explanation import Explanation

HELP = "Say why a plan takes as long as it does: critical path, what limits its bound, idle devices, large transfers."
_LONGEST = 12


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file")
    parser.add_argument(
        "--dispatch",
        metavar="TIME",
        default="0 s",
        help="seconds in which one process issues an op for any of the devices, as 8us (0: each is fed for itself)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Explain and print."""
    from dlplacer.files.load import load_plan
    from dlplacer.report.explanation import explain

    dispatch_s = quantity_of("--dispatch", arguments.dispatch, "seconds")
    plan = load_plan(arguments.plan)
    explanation = explain(plan, dispatch_s)
    if arguments.json:
        print(json.dumps(explanation.to_dict()))
    else:
        _print(plan, explanation)
    return 0


def _print(plan: "Plan", found: "Explanation") -> None:
    from dlplacer.core.plan import Transfer
    from dlplacer.report.explanation import REASONS

    bound_s = max(found.limits_s.values())
    limits = ", ".join(f"{name} {format_seconds(limit_s)}" for name, limit_s in found.limits_s.items())
    print_pairs(
        [
            (
                "makespan",
                f"{format_seconds(plan.makespan_s)}, {plan.makespan_s / bound_s if bound_s else 1:.3f}x the bound",
            ),
            ("bounds", limits),
            ("limited by", f"{found.limited_by}: {REASONS[found.limited_by]}"),
            (
                "critical path",
                f"{len(found.path)} steps: ops {format_seconds(found.path_ops_s)}, transfers "
                f"{format_seconds(found.path_transfers_s)}, waiting {format_seconds(found.path_waits_s)}",
            ),
            ("on it", ", ".join(f"{kind} {format_seconds(s)}" for kind, s in list(found.path_kinds_s.items())[:5])),
        ]
    )
    table = new_table("device", "ops", "busy", "idle", "on the critical path")
    for share in found.devices:
        times = map(format_seconds, (share.busy_s, share.idle_s, share.on_path_s))
        table.add_row(share.device, str(share.ops), *times)
    print_table(table)
    table = new_table("longest on the critical path", "where", "start", "time", names=2)
    longest = sorted(found.path, key=lambda step: step.start_s - step.end_s)[:_LONGEST]
    for step in sorted(longest, key=lambda step: step.start_s):
        name = f"tensor {step.tensor}" if isinstance(step, Transfer) else step.op
        where = f"to {step.target}" if isinstance(step, Transfer) else step.device
        table.add_row(name, where, format_seconds(step.start_s), format_seconds(step.end_s - step.start_s))
    print_table(table)
    if found.transfers:
        table = new_table("longest transfers", "to", "bytes", "time", names=2)
        for entry in found.transfers:
            lasts_s = entry.end_s - entry.start_s
            table.add_row(entry.tensor, entry.target, format_bytes(entry.bytes), format_seconds(lasts_s))
        print_table(table)
