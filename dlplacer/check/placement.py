"""Eq. 7: every op is on exactly one allowed device, and every colocation group on one device."""

from collections import Counter
from collections.abc import Iterator

from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan


def every_op_once(plan: Plan) -> Iterator[Violation]:
    """Eq. 7: Σ_n P(k, n) = 1, and the problem has every op and device of the plan."""
    count = Counter(scheduled.op for scheduled in plan.ops)
    for op in plan.graph.ops:
        if count[op.id] != 1:
            yield Violation("eq. 7 placement", f"op {op.id!r} is scheduled {count[op.id]} times; it must be once")
    for name in count:
        if name not in plan.graph.index:
            yield Violation("eq. 7 placement", f"op {name!r} is scheduled, but the graph has no such op")
    for scheduled in plan.ops:
        if scheduled.device not in plan.topology.device_index:
            yield Violation(
                "eq. 7 placement",
                f"op {scheduled.op!r} is on {scheduled.device!r}, which is not a device of the topology",
            )


def allowed_devices(plan: Plan) -> Iterator[Violation]:
    """An op runs only on devices that its `devices` list by name or by type."""
    for scheduled in plan.ops:
        if scheduled.op not in plan.graph.index or scheduled.device not in plan.topology.device_index:
            continue
        allowed = plan.graph.op(scheduled.op).devices
        device = plan.topology.device(scheduled.device)
        if allowed is not None and device.id not in allowed and device.type not in allowed:
            yield Violation(
                "eq. 7 allowed devices",
                f"op {scheduled.op!r} is on {device.id!r} of type {device.type!r}; it may run on "
                f"{', '.join(allowed) or 'nothing'}",
            )


def colocation(plan: Plan) -> Iterator[Violation]:
    """The ops of a colocation group share a device."""
    leaders: dict[str, str] = {}
    for op in plan.graph.ops:
        device = plan.placement.get(op.id)
        if op.colocate is None or device is None:
            continue
        leader = leaders.setdefault(op.colocate, op.id)
        if plan.placement[leader] != device:
            yield Violation(
                "eq. 7 colocation",
                f"group {op.colocate!r} is split: op {leader!r} on {plan.placement[leader]!r}, op {op.id!r} on "
                f"{device!r}",
            )


def pinned(plan: Plan) -> Iterator[Violation]:
    """A pinned op runs on the device, or on a device of the type, that the graph's constraints name."""
    for op, pin in plan.graph.constraints.pins.items():
        where = plan.placement.get(op)
        if (
            where is not None
            and where in plan.topology.device_index
            and pin not in (where, plan.topology.device(where).type)
        ):
            yield Violation("eq. 7 pins", f"op {op!r} is on {where!r}; it is pinned to {pin!r}")


def kept_together(plan: Plan) -> Iterator[Violation]:
    """Each set of ops that the graph's constraints colocate shares a device."""
    for ops in plan.graph.constraints.colocate:
        first = plan.placement.get(ops[0])
        for op in ops[1:]:
            where = plan.placement.get(op)
            if None not in (first, where) and where != first:
                yield Violation(
                    "eq. 7 colocation",
                    f"ops {ops[0]!r} on {first!r} and {op!r} on {where!r} must share a device",
                )
