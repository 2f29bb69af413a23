"""The load of every device and link direction in steady state, and the period that follows from it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import fsum

from dlplacer.check.routing import occupied, segment_delay_s
from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan


def resource_loads(plan: Plan) -> dict[str, float]:
    """Device or link direction (``"gpu0 → switch"``) → seconds of a step for which it is busy, zeros included.

    A device is busy while it computes. With objective max-load an asynchronous device is also busy while it sends or
    receives; under ``transfers: device`` only the longest transfer of each sent tensor counts. With
    ``contention: link`` a link direction is busy while it carries transfers; half-duplex links count as one direction.
    """
    busy: dict[str, list[float]] = {device.id: [] for device in plan.topology.devices}
    for entry in plan.ops:
        busy[entry.device].append(entry.end_s - entry.start_s)
    if plan.objective.ends_pay:
        for (_, device), time_s in _paid_by_ends(plan).items():
            busy[device].append(time_s)
    if plan.options.contention == "link":
        for link in plan.topology.links:
            for hop in ((link.source, link.target), (link.target, link.source)):
                busy[_direction(plan, hop)] = []
        for transfer in plan.transfers:
            for segment in transfer.segments:
                for hop, start_s, end_s in occupied(plan, transfer.bytes, segment):
                    if hop in plan.topology.link_between:
                        busy[_direction(plan, hop)].append(end_s - start_s)
    return {name: fsum(times_s) for name, times_s in busy.items()}


def period(plan: Plan) -> Iterator[Violation]:
    """The period is the largest load; plans for the makespan have none."""
    if plan.period_s is None:
        return
    name, load_s = max(resource_loads(plan).items(), key=lambda entry: entry[1])
    if abs(plan.period_s - load_s) > plan.tolerance_s:
        yield Violation("period", f"the plan says {plan.period_s:.9g} s; the load of {name!r} is {load_s:.9g} s")


def _paid_by_ends(plan: Plan) -> Mapping[tuple[str, str], float]:
    """(tensor, device) → seconds for which sending or receiving the tensor occupies the device."""
    paid: dict[tuple[str, str], float] = defaultdict(float)
    hosts = {device.id for device in plan.topology.devices if not device.asynchronous}
    for number, transfer in enumerate(plan.transfers):
        delays_s = (segment_delay_s(plan, transfer.bytes, segment) or 0.0 for segment in transfer.segments)
        time_s = fsum(delays_s)
        # With one transfer per edge, each is sent separately.
        sent = transfer.tensor if plan.options.transfers == "device" else f"{transfer.tensor} {number}"
        for device in (plan.placement[transfer.source], transfer.target):
            if device not in hosts:
                paid[sent, device] = max(paid[sent, device], time_s)
    return paid


def _direction(plan: Plan, hop: tuple[str, str]) -> str:
    link = plan.topology.link_between[hop]
    return f"{hop[0]} → {hop[1]}" if link.duplex == "full" else f"{link.source} ↔ {link.target}"
