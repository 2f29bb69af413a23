"""The answers of ``dlplacer explain`` on a terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from dlplacer.cli.output.tables import new_table, print_pairs, print_table
from dlplacer.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan
    from dlplacer.planning.what_if.elsewhere import Elsewhere, PinnedPlan
    from dlplacer.planning.what_if.what_would_help import WhatWouldHelp
    from dlplacer.report.explanation import Explanation

_LONGEST = 12
_MOVED = 20
_NOTE = 60


def print_explanation(plan: "Plan", found: "Explanation") -> None:
    """Bounds, critical path, devices and transfers."""
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
            ("bound as the plan states", f"{format_seconds(found.stated_bound_s)}, not proved again here"),
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
    longest = sorted(found.parts, key=lambda part: -part.time_s)[:_LONGEST]
    for part in sorted(longest, key=lambda part: part.begin_s):
        step = part.step
        name = f"tensor {step.tensor}" if isinstance(step, Transfer) else step.op
        where = f"to {step.target}" if isinstance(step, Transfer) else step.device
        table.add_row(name, where, format_seconds(part.begin_s), format_seconds(part.time_s))
    print_table(table)
    if found.transfers:
        table = new_table("longest transfers", "to", "bytes", "time", names=2)
        for entry in found.transfers:
            lasts_s = entry.end_s - entry.start_s
            table.add_row(entry.tensor, entry.target, format_bytes(entry.bytes), format_seconds(lasts_s))
        print_table(table)


def print_what_would_help(found: "WhatWouldHelp") -> None:
    """One row for each change, the largest gain first."""
    base_s = found.base.makespan_s
    if base_s < found.given_s:
        print(
            f"more search alone: {format_seconds(base_s)} instead of {format_seconds(found.given_s)}; gains refer to it"
        )
    untried = [answer for answer in found.answers if answer.status == "not tried" and answer.note]
    table = new_table("what would help", "step", "gain", "at most", "", names=1)
    for answer in found.answers:
        if answer not in untried:
            times = _seconds(answer.makespan_s), _share(answer.gain(base_s)), _share(answer.most(base_s))
            table.add_row(answer.text, *times, answer.status)
    print_table(table)
    left = 1 - found.base.lower_bound_s / base_s if base_s else 0.0
    print(
        "gain: by how much the step found with the change is shorter than the plan's; at most: what its bound allows, "
        f"of which {_share(left)} is open without any change"
    )
    for answer in found.answers:
        if answer.status == "estimated" and answer.note:
            print(f"{answer.text}: {answer.note}")
    for note, count in Counter(answer.note for answer in untried).items():
        first = next(answer.text for answer in untried if answer.note == note)
        print(f"not tried: {first}{f' and {count - 1} more' if count > 1 else ''}: {note}")


def print_pinned(plan: "Plan", found: "PinnedPlan") -> None:
    """The step under the pins, and what moves."""
    change = found.plan.makespan_s / plan.makespan_s - 1 if plan.makespan_s else 0.0
    bound = f"{found.plan.status}, bound {format_seconds(found.plan.lower_bound_s)}"
    rows = [
        ("with the pins", f"{format_seconds(found.plan.makespan_s)} ({change:+.2%}), {bound}"),
        ("moved", f"{len(found.moved)} of {len(plan.ops)} ops"),
    ]
    print_pairs(rows)
    if not found.moved:
        return
    times = {entry.op: entry.end_s - entry.start_s for entry in plan.ops}
    table = new_table("op that moves", "module", "from", "to", "time", names=4)
    for op in sorted(found.moved, key=lambda op: -times[op])[:_MOVED]:
        table.add_row(op, plan.graph.op(op).module or "", *found.moved[op], format_seconds(times[op]))
    print_table(table)
    if len(found.moved) > _MOVED:
        print(f"the longest {_MOVED}; --json lists all")


def print_elsewhere(plan: "Plan", answers: Mapping[str, Sequence["Elsewhere"]]) -> None:
    """For every op that was asked about, the step with it on each other device."""
    table = new_table("op", "is on", "on", "only it moves", "solved again", "longer by", "at least", "", names=3)
    for op, found in answers.items():
        for one in found:
            longer, least = (_longer(seconds, plan.makespan_s) for seconds in (one.makespan_s, one.lower_bound_s))
            least = None if least is None else max(0.0, least)
            times = _seconds(one.moved_alone_s), _seconds(one.makespan_s)
            note = f"{one.kept} kept on {plan.placement[op]}" if one.kept else one.note[:_NOTE]
            table.add_row(op, plan.placement[op], one.device, *times, _share(longer), _share(least), note)
    print_table(table)
    if any(one.kept for found in answers.values() for one in found):
        print("kept: the devices are interchangeable, and without it all ops would just change places")
    if any((one.makespan_s or inf) < plan.makespan_s for found in answers.values() for one in found):
        print("longer by less than 0: the search found a plan that is better than the one at hand; solve on with it")


def _longer(value_s: float | None, base_s: float) -> float | None:
    """By which share; unknown over a step that takes no time."""
    return None if value_s is None or not base_s else value_s / base_s - 1


def _seconds(value_s: float | None) -> str:
    return "-" if value_s is None else format_seconds(value_s)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.2f} %"
