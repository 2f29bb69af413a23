"""Eq. 10 and 12, durations, and the barrier at the loss."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from dlplacer.check.violation import Violation
from dlplacer.core.op import Edge
from dlplacer.core.plan import Plan


def durations(plan: Plan) -> Iterator[Violation]:
    """An op starts at 0 or later and lasts Δ(k) on its device's type."""
    slack, type_of = plan.tolerance_s, {device.id: device.type for device in plan.topology.devices}
    ops, index = plan.graph.ops, plan.graph.index
    for scheduled in plan.ops:
        device_type = type_of[scheduled.device]
        time_s = ops[index[scheduled.op]].time_on(device_type)
        if time_s is None:
            yield Violation("duration", f"op {scheduled.op!r} has no time on device type {device_type!r}")
        elif abs(scheduled.end_s - scheduled.start_s - time_s) > slack:
            yield Violation(
                "duration",
                f"op {scheduled.op!r} lasts {scheduled.end_s - scheduled.start_s:.9g} s in the plan; on "
                f"{scheduled.device!r} it takes {time_s:.9g} s",
            )
        if scheduled.start_s < -slack:
            yield Violation("duration", f"op {scheduled.op!r} starts at {scheduled.start_s:.9g} s, before the step")


def one_op_at_a_time(plan: Plan) -> Iterator[Violation]:
    """Eq. 12: ops of one device do not overlap, and an op of zero time does not start strictly inside another.

    The plan lists the ops of a device in execution order, so start times must not decrease.
    """
    slack = plan.tolerance_s
    for device in plan.topology.devices:
        latest = None
        for scheduled in (entry for entry in plan.ops if entry.device == device.id):
            if latest is not None and scheduled.start_s < latest.end_s - slack:
                yield Violation(
                    "eq. 12 overlap",
                    f"device {device.id!r}: op {scheduled.op!r} starts at {scheduled.start_s:.9g} s, but "
                    f"{latest.op!r}, listed before it, runs from {latest.start_s:.9g} to {latest.end_s:.9g} s",
                )
            if latest is None or scheduled.end_s >= latest.end_s:
                latest = scheduled


def order(plan: Plan) -> Iterator[Violation]:
    """The devices can run their ops in the plan's order: no ops wait for each other in a circle.

    Start times do not imply this if ops and transfers take no time. Under ``step: autograd`` backward ops wait for the
    barrier at the loss, which waits for all forward ops.
    """
    if _lists_in_order(plan):
        return
    sorter: TopologicalSorter[str | None] = TopologicalSorter()
    for edge in plan.graph.edges:
        sorter.add(edge.target, edge.source)
    for ops in plan.order.values():
        for before, after in pairwise(ops):
            sorter.add(after, before)
    if plan.options.step == "autograd":
        for op in plan.graph.ops:
            sorter.add(*((op.id, None) if op.phase in ("backward", "optimizer") else (None, op.id)))
    try:
        sorter.prepare()
    except CycleError as error:
        waiting = [
            "the barrier at the loss" if name is None else f"{name!r} on {plan.placement[name]!r}"
            for name in error.args[1]
        ]
        yield Violation(
            "eq. 10, 12 order", f"ops wait for each other in a circle: {' → '.join(waiting)}; change their order"
        )


def _lists_in_order(plan: Plan) -> bool:
    """True if the plan lists every op after its predecessors, so that the list is a feasible order."""
    place = {entry.op: number for number, entry in enumerate(plan.ops)}
    if plan.options.step == "autograd":
        behind = {op.id for op in plan.graph.ops if op.phase in ("backward", "optimizer")}
        first = min((place[name] for name in behind), default=len(place))
        if any(number > first for name, number in place.items() if name not in behind):
            return False
    return all(place[edge.source] < place[edge.target] for edge in plan.graph.edges)


def precedence(plan: Plan) -> Iterator[Violation]:
    """Eq. 10: a transfer waits for its producer; a consumer waits for its producers and their transfers."""
    slack, scheduled = plan.tolerance_s, plan.scheduled
    for edge, ready_s in _ready_times(plan):
        consumer = scheduled[edge.target]
        if consumer.start_s < ready_s - slack:
            yield Violation(
                "eq. 10 precedence",
                f"op {consumer.op!r} on {consumer.device!r} starts at {consumer.start_s:.9g} s, before tensor "
                f"{edge.tensor!r} of {edge.source!r} is there at {ready_s:.9g} s",
            )
    for transfer in plan.transfers:
        producer_end_s = plan.scheduled[transfer.source].end_s if transfer.source in plan.scheduled else 0.0
        if transfer.start_s < producer_end_s - slack:
            yield Violation(
                "eq. 10 precedence",
                f"the transfer of {transfer.tensor!r} to {transfer.target!r} starts at {transfer.start_s:.9g} s, "
                f"before {transfer.source!r} ends at {producer_end_s:.9g} s",
            )


def _ready_times(plan: Plan) -> Iterator[tuple[Edge, float]]:
    """Every edge, with the time in seconds at which its consumer's device has the tensor.

    With one transfer per edge, the transfer that ends first serves the consumer that starts first.
    """
    arrivals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for transfer in sorted(plan.transfers, key=lambda transfer: transfer.end_s):
        arrivals[transfer.tensor, transfer.target].append(transfer.end_s)
    served: Counter[tuple[str, str]] = Counter()
    scheduled, each_edge = plan.scheduled, plan.options.transfers == "edge"
    edges = plan.graph.edges
    for edge in sorted(edges, key=lambda edge: scheduled[edge.target].start_s) if each_edge else edges:
        producer, here = scheduled[edge.source], scheduled[edge.target].device
        ends = None if producer.device == here else arrivals.get((edge.tensor, here))
        if ends is None:
            yield edge, producer.end_s
            continue
        place = edge.tensor, here
        yield edge, ends[min(served[place], len(ends) - 1)]
        served[place] += each_edge


def barrier_at_the_loss(plan: Plan) -> Iterator[Violation]:
    """Under ``step: autograd`` no backward op starts before all forward ops have ended."""
    if plan.options.step != "autograd":
        return
    forward = [entry for entry in plan.ops if plan.graph.op(entry.op).phase in (None, "forward")]
    later = [entry for entry in plan.ops if plan.graph.op(entry.op).phase in ("backward", "optimizer")]
    if not forward or not later:
        return
    last = max(forward, key=lambda entry: entry.end_s)
    first = min(later, key=lambda entry: entry.start_s)
    if first.start_s < last.end_s - plan.tolerance_s:
        yield Violation(
            "barrier at the loss",
            f"{plan.graph.op(first.op).phase} op {first.op!r} starts at {first.start_s:.9g} s, before forward op "
            f"{last.op!r} ends at {last.end_s:.9g} s",
        )
