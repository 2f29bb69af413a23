"""Small damages to a plan, each as likely to break a rule as to leave the plan right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from dlplacer.core.options import CHOICES
from dlplacer.core.plan import DeviceMemory, Plan, ScheduledOp, Transfer, TransferSegment

Mutation = Callable[[Random, Plan], Plan | None]
SHIFTS_S = (-2.0, -1.0, -0.5, -0.001, 0.001, 0.5, 1.0, 2.0)


def _ended(plan: Plan, **changes: Any) -> Plan:
    """The plan with other ops or transfers, and the makespan that follows from them, taken for proven."""
    new = replace(plan, **changes)
    end_s = max((entry.end_s for entry in new.ops), default=0.0)
    return replace(new, makespan_s=end_s, lower_bound_s=end_s, gap=0.0, status="optimal", rounding_s=0.0)


def _op(plan: Plan, position: int, **changes: Any) -> Plan:
    ops = list(plan.ops)
    ops[position] = replace(ops[position], **changes)
    return _ended(plan, ops=tuple(ops))


def _pick(random: Random, items: Sequence[Any]) -> int | None:
    return random.randrange(len(items)) if items else None


def _moved(plan: Plan, position: int, by_s: float) -> Plan:
    entry = plan.ops[position]
    return _op(plan, position, start_s=entry.start_s + by_s, end_s=entry.end_s + by_s)


def shift_op(random: Random, plan: Plan) -> Plan | None:
    return _moved(plan, random.randrange(len(plan.ops)), random.choice(SHIFTS_S))


def shift_last_op(_random: Random, plan: Plan) -> Plan | None:
    """Harmless but for what else is said: nothing waits for the op that ends last."""
    return _moved(plan, max(range(len(plan.ops)), key=lambda at: (plan.ops[at].end_s, at)), 1.0)


def lengthen_op(random: Random, plan: Plan) -> Plan | None:
    at = random.randrange(len(plan.ops))
    return _op(plan, at, end_s=plan.ops[at].end_s + random.choice(SHIFTS_S))


def start_together(random: Random, plan: Plan) -> Plan | None:
    one, other = random.randrange(len(plan.ops)), random.randrange(len(plan.ops))
    return _moved(plan, one, plan.ops[other].start_s - plan.ops[one].start_s)


def shift_everything(random: Random, plan: Plan) -> Plan | None:
    by_s = random.choice(SHIFTS_S)
    ops = tuple(replace(entry, start_s=entry.start_s + by_s, end_s=entry.end_s + by_s) for entry in plan.ops)
    transfers = tuple(_transfer_moved(transfer, by_s) for transfer in plan.transfers)
    return _ended(plan, ops=ops, transfers=transfers)


def move_op(random: Random, plan: Plan) -> Plan | None:
    devices = [*plan.topology.device_index, "nowhere"]
    return _op(plan, random.randrange(len(plan.ops)), device=random.choice(devices))


def move_with_transfers(random: Random, plan: Plan) -> Plan | None:
    """An op without readers goes elsewhere with all that it reads, late enough for that."""
    leaves = [at for at, entry in enumerate(plan.ops) if not plan.graph.edges_from[entry.op]]
    at = random.choice(leaves)
    there = random.choice(list(plan.topology.device_index))
    end_s = max(entry.end_s for entry in plan.ops)
    entry = plan.ops[at]
    kept = [
        each for each in plan.transfers if not any(each.tensor == e.tensor for e in plan.graph.edges_into[entry.op])
    ]
    arrive_s = end_s
    for edge in plan.graph.edges_into[entry.op]:
        here = plan.placement[edge.source]
        link = plan.topology.link_between.get((here, there))
        if here == there or link is None:
            continue
        until_s = arrive_s + edge.bytes / link.total_bytes_per_s + link.latency_s
        kept.append(
            Transfer(
                edge.tensor, edge.source, there, edge.bytes, (TransferSegment(((here, there),), arrive_s, until_s),)
            )
        )
        arrive_s = until_s
    time_s = entry.end_s - entry.start_s
    ops = [*plan.ops[:at], *plan.ops[at + 1 :], ScheduledOp(entry.op, there, arrive_s, arrive_s + time_s)]
    return _ended(plan, ops=tuple(ops), transfers=tuple(kept))


def drop_op(random: Random, plan: Plan) -> Plan | None:
    at = random.randrange(len(plan.ops))
    return _ended(plan, ops=plan.ops[:at] + plan.ops[at + 1 :])


def repeat_op(random: Random, plan: Plan) -> Plan | None:
    return _ended(plan, ops=(*plan.ops, random.choice(plan.ops)))


def rename_op(random: Random, plan: Plan) -> Plan | None:
    return _op(plan, random.randrange(len(plan.ops)), op="ghost")


def list_in_another_order(random: Random, plan: Plan) -> Plan | None:
    ops = list(plan.ops)
    one, other = random.randrange(len(ops)), random.randrange(len(ops))
    ops[one], ops[other] = ops[other], ops[one]
    return replace(plan, ops=tuple(ops))


def swap_times(random: Random, plan: Plan) -> Plan | None:
    one, other = random.randrange(len(plan.ops)), random.randrange(len(plan.ops))
    by_s = plan.ops[other].start_s - plan.ops[one].start_s
    return _moved(_moved(plan, one, by_s), other, -by_s)


def _transfer_moved(transfer: Transfer, by_s: float) -> Transfer:
    parts = tuple(replace(part, start_s=part.start_s + by_s, end_s=part.end_s + by_s) for part in transfer.segments)
    return replace(transfer, segments=parts)


def _with_transfer(plan: Plan, at: int, *instead: Transfer) -> Plan:
    return replace(plan, transfers=(*plan.transfers[:at], *instead, *plan.transfers[at + 1 :]))


def drop_transfer(random: Random, plan: Plan) -> Plan | None:
    at = _pick(random, plan.transfers)
    return None if at is None else _with_transfer(plan, at)


def repeat_transfer(random: Random, plan: Plan) -> Plan | None:
    at = _pick(random, plan.transfers)
    return None if at is None else replace(plan, transfers=(*plan.transfers, plan.transfers[at]))


def shift_transfer(random: Random, plan: Plan) -> Plan | None:
    at = _pick(random, plan.transfers)
    return at if at is None else _with_transfer(plan, at, _transfer_moved(plan.transfers[at], random.choice(SHIFTS_S)))


def leave_together(random: Random, plan: Plan) -> Plan | None:
    at, other = _pick(random, plan.transfers), _pick(random, plan.transfers)
    if at is None or other is None:
        return None
    by_s = plan.transfers[other].start_s - plan.transfers[at].start_s
    return _with_transfer(plan, at, _transfer_moved(plan.transfers[at], by_s))


def lengthen_transfer(random: Random, plan: Plan) -> Plan | None:
    at = _pick(random, plan.transfers)
    if at is None:
        return None
    *before, last = plan.transfers[at].segments
    longer = replace(last, end_s=last.end_s + random.choice(SHIFTS_S))
    return _with_transfer(plan, at, replace(plan.transfers[at], segments=(*before, longer)))


def reroute(random: Random, plan: Plan) -> Plan | None:
    """Another first segment: by way of some node, with the time that this takes, or the same time."""
    at = _pick(random, plan.transfers)
    if at is None:
        return None
    first, *others = plan.transfers[at].segments
    here, there = first.route[0][0], first.route[-1][1]
    by = random.choice([node.id for node in plan.topology.nodes])
    route = random.choice([((here, by), (by, there)), ((here, there),), (*first.route, *first.route), first.route[:-1]])
    if not route:
        return None
    return _with_transfer(plan, at, replace(plan.transfers[at], segments=(replace(first, route=route), *others)))


def change_transfer(random: Random, plan: Plan) -> Plan | None:
    at = _pick(random, plan.transfers)
    if at is None:
        return None
    transfer = plan.transfers[at]
    ops, devices = [op.id for op in plan.graph.ops], list(plan.topology.device_index)
    field, value = random.choice(
        [
            ("bytes", transfer.bytes + 1),
            ("tensor", random.choice([*(edge.tensor for edge in plan.graph.edges), "ghost"])),
            ("source", random.choice([*ops, "ghost"])),
            ("target", random.choice([*devices, "nowhere"])),
        ]
    )
    return _with_transfer(plan, at, replace(transfer, **{field: value}))


def change_figures(random: Random, plan: Plan) -> Plan | None:
    field, value = random.choice(
        [
            ("makespan_s", plan.makespan_s + random.choice(SHIFTS_S)),
            ("lower_bound_s", plan.lower_bound_s + random.choice(SHIFTS_S)),
            ("gap", random.choice([0.0, 0.01, 0.5])),
            ("status", "optimal"),
            ("status", "feasible"),
            ("rounding_s", random.choice([-0.25, 0.0, 0.25])),
        ]
    )
    return replace(plan, **{field: value})


def change_capacity(random: Random, plan: Plan) -> Plan | None:
    """Exactly what is reported as the peak, or one byte less, in the topology and perhaps in the report."""
    known = [name for name in plan.memory if plan.memory[name].peak_bytes]
    if not known:
        return None
    name = random.choice(known)
    peak_bytes = plan.memory[name].peak_bytes
    capacity_bytes = peak_bytes - random.choice([0, 1])
    devices = tuple(
        replace(each, memory_bytes=capacity_bytes) if each.id == name else each for each in plan.topology.devices
    )
    told = {**plan.memory, name: DeviceMemory(capacity_bytes, peak_bytes)} if random.random() < 0.8 else plan.memory
    return replace(plan, topology=replace(plan.topology, devices=devices), memory=told)


def change_report(random: Random, plan: Plan) -> Plan | None:
    if not plan.memory:
        return None
    name = random.choice(list(plan.memory))
    told = plan.memory[name]
    other = random.choice(
        [
            {name: replace(told, peak_bytes=abs(told.peak_bytes + random.choice([-1, 1])))},
            {name: replace(told, capacity_bytes=(told.capacity_bytes or 0) + 1)},
            {"nowhere": told},
        ]
    )
    return replace(plan, memory={**plan.memory, **other})


def change_op(random: Random, plan: Plan) -> Plan | None:
    """Another op than the plan was made for."""
    ops = list(plan.graph.ops)
    at = random.randrange(len(ops))
    names = [*plan.topology.device_index, *plan.topology.device_types]
    field, value = random.choice(
        [
            ("time_s", random.choice([0, 1, 2, 3, None, {"gpu": 1}])),
            ("phase", random.choice(["forward", "backward", "optimizer", None])),
            ("colocate", random.choice(["a", None])),
            ("devices", (random.choice(names),)),
            ("output_bytes", ops[at].output_bytes + 1),
            ("workspace_bytes", ops[at].workspace_bytes + 1),
            ("weight_bytes", ops[at].weight_bytes + 1),
        ]
    )
    ops[at] = replace(ops[at], **{field: value})
    return replace(plan, graph=replace(plan.graph, ops=tuple(ops)))


def change_edge(random: Random, plan: Plan) -> Plan | None:
    """A tensor of other bytes, an edge less, or one more between ops that the plan runs one after the other."""
    edges = list(plan.graph.edges)
    at = _pick(random, edges)
    what = random.randrange(3)
    if at is not None and what == 0:
        tensor, more = edges[at].tensor, random.choice([1, 4])
        edges = [replace(edge, bytes=edge.bytes + more) if edge.tensor == tensor else edge for edge in edges]
    elif at is not None and what == 1:
        del edges[at]
    else:
        one, other = sorted(random.sample([op.id for op in plan.graph.ops], 2))
        edges.append(replace(edges[0], source=one, target=other, output=0, tensor="new") if edges else None)
        if edges[-1] is None:
            return None
    return replace(plan, graph=replace(plan.graph, edges=tuple(edges)))


def change_link(random: Random, plan: Plan) -> Plan | None:
    links = list(plan.topology.links)
    at = _pick(random, links)
    if at is None:
        return None
    field, value = random.choice(
        [("bytes_per_s", 3.0), ("latency_s", 0.5), ("duplex", "half"), ("duplex", "full"), ("count", 2)]
    )
    instead = [] if random.random() < 0.2 else [replace(links[at], **{field: value})]
    return replace(plan, topology=replace(plan.topology, links=(*links[:at], *instead, *links[at + 1 :])))


def change_option(random: Random, plan: Plan) -> Plan | None:
    name = random.choice([name for name in CHOICES if name != "objective"])
    return replace(plan, options=replace(plan.options, **{name: random.choice(CHOICES[name])}))


MUTATIONS: Mapping[str, Mutation] = {
    each.__name__: each
    for each in (
        shift_op,
        shift_last_op,
        lengthen_op,
        start_together,
        shift_everything,
        move_op,
        move_with_transfers,
        drop_op,
        repeat_op,
        rename_op,
        list_in_another_order,
        swap_times,
        drop_transfer,
        repeat_transfer,
        shift_transfer,
        leave_together,
        lengthen_transfer,
        reroute,
        change_transfer,
        change_figures,
        change_capacity,
        change_report,
        change_op,
        change_edge,
        change_link,
        change_option,
    )
}

ALWAYS_WRONG = {"drop_op", "repeat_op", "rename_op", "drop_transfer"}
"""What no plan survives."""

MOSTLY_HARMLESS = {"shift_last_op"}
"""What only a reported peak or a reader of no time tells."""
