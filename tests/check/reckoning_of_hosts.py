"""Whether a plan keeps to what its host processes can do, reckoned naively; their times are whole seconds."""

from itertools import combinations

from problem.naive_issues import calls_of, naive_issues

from dlplacer.core.plan import Plan

CLOSE = 1e-6


def keeps_to_hosts(plan: Plan) -> bool:
    """Turns, hand-overs and issues."""
    return _takes_turns(plan) and _hands_over(plan) and _is_issued(plan)


def _takes_turns(plan: Plan) -> bool:
    """Of two ops that take time, on two cores of a process, the one behind leaves the other its `dispatch_s`."""
    cores = {device.id: device for device in plan.topology.devices if device.process and not device.asynchronous}
    timed = [entry for entry in plan.ops if entry.device in cores and entry.end_s > entry.start_s]
    for one, other in combinations(timed, 2):
        mine, its = cores[one.device], cores[other.device]
        if one.device == other.device or mine.process != its.process:
            continue
        first_first = other.start_s > one.start_s + (mine.dispatch_s or 0) - CLOSE
        last_first = one.start_s > other.start_s + (its.dispatch_s or 0) - CLOSE
        if not first_first and not last_first:
            return False
    return True


def _hands_over(plan: Plan) -> bool:
    """Nothing runs while a core sends behind an op, or receives before one; no tensor leaves before it is sent."""
    at = {entry.op: entry.device for entry in plan.ops}
    for device in plan.topology.devices:
        each_s = 0 if device.asynchronous else device.dispatch_s or 0
        mine = [entry for entry in plan.ops if entry.device == device.id]
        until_s, there = 0.0, set()
        for entry in mine:
            read = {
                edge.tensor for edge in plan.graph.edges if edge.target == entry.op and at[edge.source] != device.id
            }
            if entry.start_s < until_s + each_s * len(read - there) - CLOSE:
                return False
            there |= read
            gone = {(edge.tensor, at[edge.target]) for edge in plan.graph.edges if edge.source == entry.op}
            gone = {pair for pair in gone if pair[1] != device.id}
            leaving = sorted(
                min(t.segments[0].start_s for t in plan.transfers if (t.tensor, t.target) == pair) for pair in gone
            )
            until_s = max(until_s, entry.end_s + each_s * len(leaving))
            if any(leaves < entry.end_s + each_s * (1 + place) - CLOSE for place, leaves in enumerate(leaving)):
                return False
    return True


def _is_issued(plan: Plan) -> bool:
    """Nothing on a device that is fed ahead starts before it has been issued."""
    at = {entry.op: entry.device for entry in plan.ops}
    names = [device.id for device in plan.topology.devices]
    processes = [device.process or ("own", device.id) for device in plan.topology.devices]
    later = ("backward", "optimizer") if plan.options.step == "autograd" else ()
    behind = {op.id for op in plan.graph.ops if op.phase in later}
    barrier_s = max((entry.end_s for entry in plan.ops if entry.op not in behind), default=0.0)
    received: dict[str, set[str]] = {name: set() for name in names}
    for passed, begin_s in ((False, 0.0), (True, barrier_s)):
        calls = []
        for device in plan.topology.devices:
            each_s = int(device.dispatch_s or 0)
            mine = [e for e in plan.ops if device.asynchronous and e.device == device.id]
            ops = [(e.op, each_s if e.end_s > e.start_s else None) for e in mine if (e.op in behind) == passed]
            calls.append(calls_of(ops, device.id, at, plan.graph.edges, each_s, received[device.id]))
        issued = naive_issues(calls, processes)
        if any(e.start_s < begin_s + issued["op", e.op] - CLOSE for e in plan.ops if ("op", e.op) in issued):
            return False
        sent = [(t.segments[0].start_s, ("send", (t.tensor, t.target))) for t in plan.transfers]
        if any(start_s < begin_s + issued[what] - CLOSE for start_s, what in sent if what in issued):
            return False
    return True
