"""HEFT: heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002), with insertion, memory-aware."""

from collections.abc import Sequence

from dlplacer.solvers.instance import Instance
from dlplacer.solvers.lane import Lane
from dlplacer.solvers.links import Links
from dlplacer.solvers.occupancy import Occupancy
from dlplacer.solvers.sending import with_sends
from dlplacer.solvers.timetable import Timetable, compact


def heft(instance: Instance, priority: Sequence[int], fixed: Sequence[int] | None = None) -> Timetable | None:
    """The timetable of HEFT, or None if an op fits on no device that it may use.

    Ops are taken by rising `priority`, which must put every op after all that it reads; each goes to the device where
    it ends first, into the earliest gap that holds it. Where there is traffic, what it reads goes into gaps of links.
    """
    links, where = None if instance.traffic is None else Links(instance.traffic), [-1] * instance.op_count
    occupancy = Occupancy(instance, fixed)
    lanes = [Lane() for _ in instance.capacity]
    start, end = [0] * instance.op_count, [0] * instance.op_count
    for op in sorted(range(instance.op_count), key=priority.__getitem__):
        if op in instance.sources:
            continue
        best: tuple[int, int, int] | None = None
        for device in instance.allowed[op]:
            if occupancy.admits(op, device):
                arrival = _arrival(instance, occupancy, end, op, device)
                if links is not None:
                    arrival = max(arrival, links.expect_inputs(op, device, occupancy.site, instance.block, end))
                begin = lanes[device].earliest(arrival, instance.duration[op][device])
                entry = begin + instance.duration[op][device], device, begin
                if best is None or entry < best:
                    best = entry
        if best is None:
            return None
        _, device, begin = best
        promised = occupancy.source_arrival(op, device)
        arrival = occupancy.settle_with_sources(op, device)
        if occupancy.overfull:
            return None
        if links is not None:
            where[op] = device
            for source, _ in instance.source_arcs[op]:
                where[source] = occupancy.site[instance.block[source]]
            arrival, promised = max(arrival, links.send_inputs(op, where, end)), begin
        if arrival > promised:
            begin = lanes[device].earliest(max(begin, arrival), instance.duration[op][device])
        start[op], end[op] = begin, begin + instance.duration[op][device]
        lanes[device].insert(begin, end[op])
    occupancy.settle_rest()
    if occupancy.overfull:
        return None
    device_of = [occupancy.site[block] for block in instance.block]
    found = compact(instance, device_of, start)
    if links is None:
        return found
    kept = with_sends(instance, links.traffic, device_of, start, links.sends)
    return min(found, kept, key=lambda timetable: timetable.makespan)


def _arrival(instance: Instance, occupancy: Occupancy, end: Sequence[int], op: int, device: int) -> int:
    latest = occupancy.source_arrival(op, device)
    for source, delay in instance.predecessors[op]:
        if source not in instance.sources:
            latest = max(latest, end[source] + delay[occupancy.site[instance.block[source]]][device])
    return latest
