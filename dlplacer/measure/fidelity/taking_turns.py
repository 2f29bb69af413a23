"""A plan whose devices take turns on one thread: nothing overlaps."""

from collections import Counter
from dataclasses import replace

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.problem.simulate import in_order


def taking_turns(plan: Plan, moving_s: float) -> Plan:
    """The plan's ops one after another, each device as far as it can go at a time; tensors arrive when they are made.

    Parameters
    ----------
    moving_s
        Seconds of the thread for a tensor that changes devices.
    """
    sends = Counter(moved.source for moved in plan.transfers)
    now_s, ops = 0.0, []
    for entry in in_order(plan):
        end_s = now_s + entry.end_s - entry.start_s
        ops.append(ScheduledOp(entry.op, entry.device, now_s, end_s))
        now_s = end_s + moving_s * sends[entry.op]
    made_s = {entry.op: entry.end_s for entry in ops}
    transfers = tuple(
        replace(
            moved,
            segments=tuple(
                replace(part, start_s=made_s[moved.source], end_s=made_s[moved.source]) for part in moved.segments
            ),
        )
        for moved in plan.transfers
    )
    return replace(plan, ops=tuple(ops), transfers=transfers, makespan_s=max(made_s.values()))
