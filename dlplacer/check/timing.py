"""Eq. 10 and 12, durations, and the barrier at the loss."""

from collections.abc import Iterator

from dlplacer.check.violation import Violation, tolerance_s
from dlplacer.plan import Plan


def durations(plan: Plan) -> Iterator[Violation]:
    """An op starts at 0 or later and lasts Δ(k) on its device's type."""
    slack = tolerance_s(plan)
    for scheduled in plan.ops:
        device_type = plan.topology.device(scheduled.device).type
        time_s = plan.graph.op(scheduled.op).time_on(device_type)
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
    """Eq. 12: ops of one device do not overlap; one of zero time does not start strictly inside another.

    The plan lists the ops of a device in execution order, so start times must not fall along the list.
    """
    slack = tolerance_s(plan)
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


def precedence(plan: Plan) -> Iterator[Violation]:
    """Eq. 10: a consumer starts after its producer ends plus the transfer's time."""
    slack = tolerance_s(plan)
    arrivals: dict[tuple[str, str], float] = {}
    for transfer in plan.transfers:
        place = transfer.tensor, transfer.target
        arrivals[place] = max(arrivals.get(place, 0.0), transfer.end_s)
    for edge in plan.graph.edges:
        producer, consumer = plan.scheduled[edge.source], plan.scheduled[edge.target]
        ready_s = producer.end_s
        if producer.device != consumer.device:
            ready_s = arrivals.get((edge.tensor, consumer.device), ready_s)
        if consumer.start_s < ready_s - slack:
            yield Violation(
                "eq. 10 precedence",
                f"op {consumer.op!r} on {consumer.device!r} starts at {consumer.start_s:.9g} s, before tensor "
                f"{edge.tensor!r} of {producer.op!r} is there at {ready_s:.9g} s",
            )
    for transfer in plan.transfers:
        producer_end_s = plan.scheduled[transfer.source].end_s if transfer.source in plan.scheduled else 0.0
        if transfer.start_s < producer_end_s - slack:
            yield Violation(
                "eq. 10 precedence",
                f"the transfer of {transfer.tensor!r} to {transfer.target!r} starts at {transfer.start_s:.9g} s, before "
                f"{transfer.source!r} ends at {producer_end_s:.9g} s",
            )


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
    if first.start_s < last.end_s - tolerance_s(plan):
        yield Violation(
            "barrier at the loss",
            f"backward op {first.op!r} starts at {first.start_s:.9g} s, before forward op {last.op!r} ends at "
            f"{last.end_s:.9g} s",
        )
