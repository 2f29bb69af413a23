"""What is alive on every device, and since when: the curve of memory over time and the tensors under it."""

import math
from typing import Any

from dlplacer.check import live_tensors, resident_bytes
from dlplacer.core.plan import Plan
from dlplacer.report.page.columns.page_clock import PageClock

WHAT = ("output", "copy", "workspace", "relayed")


def memory_columns(plan: Plan, clock: PageClock) -> dict[str, Any]:
    """Per device what stays all step; and over all tensors that live for a part of it: device, op, start, end, bytes.

    Starts are rounded up and ends down, both with the tolerance of times taken off: what makes room for another tensor
    still does after rounding, and no level is above the rule's.
    """
    event = {entry.op: position for position, entry in enumerate(plan.ops)}
    rows = []
    for position, device in enumerate(plan.topology.devices):
        for live in live_tensors(plan, device.id):
            until_s = live.end_s - min(plan.tolerance_s, (live.end_s - live.start_s) / 2)
            start, end = math.ceil(live.start_s / clock.unit_s), math.floor(until_s / clock.unit_s)
            rows.append((position, event[live.op], WHAT.index(live.what), start, max(0, end - start), live.bytes))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(6)]
    return {
        "resident": [resident_bytes(plan, device.id) for device in plan.topology.devices],
        **dict(zip(("device", "op", "what", "start", "time", "bytes"), columns, strict=True)),
    }
