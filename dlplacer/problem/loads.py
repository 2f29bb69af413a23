"""The period of a plan: the largest load of a device or link direction in steady state; `check` recomputes it."""

from collections import defaultdict
from collections.abc import Sequence
from math import fsum

from dlplacer.core.options import OBJECTIVES
from dlplacer.core.plan import ScheduledOp, Transfer
from dlplacer.problem.problem import Problem
from dlplacer.problem.routes import link_holds


def period_s(problem: Problem, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer]) -> float:
    """The largest load of a device or link direction in seconds, from the full lengths of ops and transfers."""
    busy: dict[object, list[float]] = defaultdict(list)
    for entry in ops:
        busy[entry.device].append(entry.end_s - entry.start_s)
    place = {entry.op: entry.device for entry in ops}
    topology, options = problem.topology, problem.options
    hosts = {device.id for device in topology.devices if not device.asynchronous}
    sent: dict[tuple[str, str | int], float] = {}
    for number, transfer in enumerate(transfers):
        paid_s = 0.0
        for segment in transfer.segments:
            held = link_holds(topology, segment.route, transfer.bytes, options.delay, float)
            paid_s += held[-1][2]
            for direction, begin_s, end_s in held:
                busy[direction].append((end_s - begin_s) if options.contention == "link" else 0.0)
        if OBJECTIVES[options.objective].ends_pay:
            busy[transfer.target].append(0.0 if transfer.target in hosts else paid_s)
            key = place[transfer.source], transfer.tensor if options.transfers == "device" else number
            sent[key] = max(paid_s, sent.get(key, 0.0))
    for (device, _), paid_s in sent.items():
        busy[device].append(0.0 if device in hosts else paid_s)
    return max(map(fsum, busy.values()))
