"""Whether a plan is right, reckoned a second time and naively: pairs of everything, all paths, memory between events.

It follows the words of the design document and shares no code with the package but the data of a plan.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

from check.reckoning_of_hosts import keeps_to_hosts

from dlplacer.core.plan import Plan, Transfer, TransferSegment

CLOSE = 1e-6
"""The times of the plans that are judged are multiples of 1/8 s, or moved by at least so much."""


def is_right(plan: Plan) -> bool:
    """Whether the plan keeps every rule."""
    return _is_placed(plan) and all(
        rule(plan) for rule in (_lasts, _takes_turns, _can_run, _travels, _waits, keeps_to_hosts, _fits, _adds_up)
    )


def _is_placed(plan: Plan) -> bool:
    names = [entry.op for entry in plan.ops]
    if sorted(names) != sorted(op.id for op in plan.graph.ops):
        return False
    kinds = {device.id: device.type for device in plan.topology.devices}
    if any(entry.device not in kinds for entry in plan.ops):
        return False
    at = {entry.op: entry.device for entry in plan.ops}
    pinned = all(op.devices is None or {at[op.id], kinds[at[op.id]]} & set(op.devices) for op in plan.graph.ops)
    pairs = combinations(plan.graph.ops, 2)
    return pinned and all(a.colocate is None or a.colocate != b.colocate or at[a.id] == at[b.id] for a, b in pairs)


def _lasts(plan: Plan) -> bool:
    kinds = {device.id: device.type for device in plan.topology.devices}
    for entry in plan.ops:
        time_s = plan.graph.op(entry.op).time_on(kinds[entry.device])
        if time_s is None or abs(entry.end_s - entry.start_s - time_s) > CLOSE or entry.start_s < -CLOSE:
            return False
    return True


def _takes_turns(plan: Plan) -> bool:
    """Of two ops on a device, the one listed first has ended when the other starts."""
    on_device = all(a.device != b.device or b.start_s > a.end_s - CLOSE for a, b in combinations(plan.ops, 2))
    phases = {op.id: op.phase or "forward" for op in plan.graph.ops}
    barrier = plan.options.step == "joint" or all(
        late.start_s > early.end_s - CLOSE
        for early in plan.ops
        for late in plan.ops
        if phases[early.op] == "forward" and phases[late.op] != "forward"
    )
    return on_device and barrier


def _can_run(plan: Plan) -> bool:
    """Every device takes the first op of its list whose inputs are all computed, until nothing is left.

    Behind the barrier an op also needs all that is before it.
    """
    lists = {device.id: [e.op for e in plan.ops if e.device == device.id] for device in plan.topology.devices}
    needs = {op.id: {edge.source for edge in plan.graph.edges if edge.target == op.id} for op in plan.graph.ops}
    forward = {op.id for op in plan.graph.ops if op.phase in (None, "forward")}
    for op in plan.graph.ops:
        if plan.options.step == "autograd" and op.id not in forward:
            needs[op.id] |= forward
    done: set[str] = set()
    while any(lists.values()):
        heads = [ops for ops in lists.values() if ops and needs[ops[0]] <= done]
        if not heads:
            return False
        done.update(ops.pop(0) for ops in heads)
    return True


def _travels(plan: Plan) -> bool:
    at = {entry.op: entry.device for entry in plan.ops}
    wanted = [(e.tensor, e.source, e.bytes, at[e.target]) for e in plan.graph.edges if at[e.source] != at[e.target]]
    if plan.options.transfers == "device":
        wanted = sorted(set(wanted))
    if Counter(wanted) != Counter((t.tensor, t.source, t.bytes, t.target) for t in plan.transfers):
        return False
    if not all(_is_way(plan, transfer, at[transfer.source]) for transfer in plan.transfers):
        return False
    return plan.options.contention == "none" or _one_each(plan)


def _is_way(plan: Plan, transfer: Transfer, start: str) -> bool:
    """A simple path from the producer to the target, in segments from device to device, each of the right length."""
    hops = [hop for segment in transfer.segments for hop in segment.route]
    nodes = [start, *(there for _, there in hops)]
    connected = all(hop == step for hop, step in zip(hops, pairwise(nodes), strict=True))
    if not connected or nodes[-1] != transfer.target or len(set(nodes)) < len(nodes):
        return False
    if any(hop not in plan.topology.link_between for hop in hops):
        return False
    devices = {device.id for device in plan.topology.devices}
    for segment in transfer.segments:
        *inner, last = [there for _, there in segment.route]
        if last not in devices or devices & set(inner):
            return False
        if abs(segment.end_s - segment.start_s - _length_s(plan, transfer.bytes, segment.route)) > CLOSE:
            return False
    if any(after.start_s < before.end_s - CLOSE for before, after in pairwise(transfer.segments)):
        return False
    total_s = sum(_length_s(plan, transfer.bytes, segment.route) for segment in transfer.segments)
    routes = (_cut(route, devices) for route in _routes(plan, (start,), transfer.target))
    return plan.options.routing == "free" or total_s < CLOSE + min(
        sum(_length_s(plan, transfer.bytes, part) for part in route) for route in routes
    )


def _length_s(plan: Plan, size_bytes: int, route: tuple[tuple[str, str], ...]) -> float:
    links = [plan.topology.link_between[hop] for hop in route]
    slow = [size_bytes / (link.bytes_per_s * link.count) for link in links]
    return sum(link.latency_s for link in links) + (max(slow) if plan.options.delay == "cut-through" else sum(slow))


def _routes(plan: Plan, path: tuple[str, ...], target: str) -> Iterator[tuple[str, ...]]:
    if path[-1] == target:
        yield path
        return
    for here, there in plan.topology.link_between:
        if here == path[-1] and there not in path:
            yield from _routes(plan, (*path, there), target)


def _cut(route: tuple[str, ...], devices: set[str]) -> list[tuple[tuple[str, str], ...]]:
    ends = [place for place, node in enumerate(route) if node in devices]
    return [tuple(pairwise(route[begin : end + 1])) for begin, end in pairwise(ends)]


def _one_each(plan: Plan) -> bool:
    uses = [
        use
        for transfer in plan.transfers
        for segment in transfer.segments
        for use in _uses(plan, transfer.bytes, segment)
    ]
    for (one, a_s, b_s), (other, c_s, d_s) in combinations(uses, 2):
        half = plan.topology.link_between[one].duplex == "half"
        meets = one == other or (half and one == other[::-1])
        inside = min(b_s, d_s) - max(a_s, c_s)
        point = (b_s - a_s < CLOSE and c_s + CLOSE < a_s < d_s - CLOSE) or (
            d_s - c_s < CLOSE and a_s + CLOSE < c_s < b_s - CLOSE
        )
        if meets and (inside > CLOSE or point):
            return False
    return True


def _uses(plan: Plan, size_bytes: int, segment: TransferSegment) -> Iterator[tuple[tuple[str, str], float, float]]:
    now_s = segment.start_s
    for hop in segment.route:
        until_s = segment.end_s
        if plan.options.delay == "store-and-forward":
            until_s = now_s + _length_s(plan, size_bytes, (hop,))
        yield hop, now_s, until_s
        now_s = now_s if plan.options.delay == "cut-through" else until_s


def _waits(plan: Plan) -> bool:
    """Nothing leaves before it is made, and every reader starts after its tensor is there."""
    entry = {each.op: each for each in plan.ops}
    if any(t.segments[0].start_s < entry[t.source].end_s - CLOSE for t in plan.transfers):
        return False
    for edge in plan.graph.edges:
        if entry[edge.source].device == entry[edge.target].device:
            if entry[edge.target].start_s < entry[edge.source].end_s - CLOSE:
                return False
            continue
        here = entry[edge.target].device
        arrivals = sorted(t.segments[-1].end_s for t in plan.transfers if (t.tensor, t.target) == (edge.tensor, here))
        starts = sorted(
            entry[e.target].start_s
            for e in plan.graph.edges
            if e.tensor == edge.tensor and entry[e.target].device == here
        )
        if plan.options.transfers == "device":
            arrivals *= len(starts)
        if any(start_s < arrival_s - CLOSE for start_s, arrival_s in zip(starts, arrivals, strict=True)):
            return False
    return True


def _fits(plan: Plan) -> bool:
    for device in plan.topology.devices:
        used = peak_bytes(plan, device.id)
        if device.memory_bytes is not None and used > device.memory_bytes:
            return False
        told = plan.memory.get(device.id)
        if told is not None and (told.peak_bytes, told.capacity_bytes) != (used, device.memory_bytes):
            return False
    return set(plan.memory) <= {device.id for device in plan.topology.devices}


def peak_bytes(plan: Plan, device: str) -> int:
    """The sum of footprints, or the most that is alive between two events."""
    here = {entry.op: entry for entry in plan.ops if entry.device == device}
    ops = [op for op in plan.graph.ops if op.id in here]
    if plan.options.memory == "sum":
        return sum(op.footprint_bytes for op in ops)
    lives = list(_lives(plan, device))
    moments = sorted({moment for begin, end, _ in lives for moment in (begin, end)})
    middles = [(a + b) / 2 for a, b in pairwise(moments) if b - a > CLOSE]
    resident = sum(op.weight_bytes + op.gradient_bytes + op.state_bytes for op in ops)
    alive = (sum(size for begin, end, size in lives if begin < middle < end) for middle in middles)
    return resident + max(alive, default=0)


def _lives(plan: Plan, device: str) -> Iterator[tuple[float, float, int]]:
    """(begin, end, bytes) of everything that comes and goes on a device."""
    entry = {each.op: each for each in plan.ops}
    readers = [edge for edge in plan.graph.edges if entry[edge.target].device == device]
    sent = {edge.tensor: edge.output for edge in plan.graph.edges}
    for op in plan.graph.ops:
        if entry[op.id].device != device:
            continue
        begin, end = entry[op.id].start_s, entry[op.id].end_s
        yield begin, end, op.workspace_bytes
        for part in plan.graph.output_parts.get(op.id, ()):
            reads = [entry[e.target].end_s for e in readers if e.source == op.id and e.output in part.outputs]
            leaves = [
                t.segments[0].end_s for t in plan.transfers if t.source == op.id and sent[t.tensor] in part.outputs
            ]
            yield begin, max([end, *reads, *leaves]), part.bytes
    for transfer in plan.transfers:
        if transfer.target == device:
            reads = [entry[edge.target].end_s for edge in readers if edge.tensor == transfer.tensor]
            yield transfer.segments[-1].start_s, max(reads, default=0.0), transfer.bytes
        for before, after in pairwise(transfer.segments):
            if before.route[-1][1] == device:
                yield before.start_s, after.end_s, transfer.bytes


def _adds_up(plan: Plan) -> bool:
    last_s = max(entry.end_s for entry in plan.ops)
    if abs(plan.makespan_s - last_s) > CLOSE or plan.lower_bound_s > plan.makespan_s + CLOSE:
        return False
    gap = 1 - plan.lower_bound_s / plan.makespan_s if plan.makespan_s else 0.0
    small = 0 <= plan.rounding_s <= CLOSE and plan.lower_bound_s >= 0
    return small and abs(plan.gap - gap) <= 1e-5 and (plan.status == "feasible" or plan.gap <= 0)
