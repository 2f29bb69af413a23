"""Whether a plan keeps to what its host processes can do, reckoned naively; their times are whole seconds."""

from itertools import combinations

from dlplacer.core.plan import Plan

CLOSE = 1e-6


def keeps_to_hosts(plan: Plan) -> bool:
    """One op at a time, inside the call and ahead."""
    return _takes_turns(plan) and _is_issued(plan)


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


def _is_issued(plan: Plan) -> bool:
    """Whenever an op starts on a device that is fed ahead, its process has had the time for all that have started."""
    later = ("backward", "optimizer") if plan.options.step == "autograd" else ()
    behind = {op.id for op in plan.graph.ops if op.phase in later}
    barrier_s = max((entry.end_s for entry in plan.ops if entry.op not in behind), default=0.0)
    ahead = {device.id: device for device in plan.topology.devices if device.asynchronous}
    timed = [entry for entry in plan.ops if entry.device in ahead and entry.end_s > entry.start_s]
    for now in timed:
        spent_s = sum(
            ahead[entry.device].dispatch_s or 0
            for entry in timed
            if (ahead[entry.device].process or entry.device) == (ahead[now.device].process or now.device)
            and (entry.op in behind) == (now.op in behind)
            and entry.start_s <= now.start_s
        )
        if now.start_s < spent_s + (barrier_s if now.op in behind else 0.0) - CLOSE:
            return False
    return True
