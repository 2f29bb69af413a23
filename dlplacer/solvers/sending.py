"""Timetables whose transfers are given, with their order and their ways."""

from collections.abc import Sequence
from dataclasses import replace

from dlplacer.solvers.instance import Instance
from dlplacer.solvers.timetable import Timetable
from dlplacer.steps import Hold, Step, earliest
from dlplacer.traffic import Send, Traffic


def with_sends(
    instance: Instance, traffic: Traffic, device: Sequence[int], start: Sequence[int], sends: Sequence[Send]
) -> Timetable:
    """The timetable with these transfers, those that nothing needs left out: all as early as their order allows.

    The order of ops on devices and of transfers on lanes is that of the given ticks.
    """
    chosen: dict[tuple[int, int], Send] = {}
    for send in sends:
        parcel = traffic.parcels[send.parcel]
        if device[parcel.source] != send.target and any(device[op] == send.target for op in parcel.readers):
            chosen.setdefault((send.parcel, send.target), send)
    needed = tuple(chosen.values())
    steps = _steps(instance, traffic, device, start, needed)
    begun = [round(tick) for tick in earliest(steps, waits_for_memory=False)]
    early = tuple(begun[: instance.op_count])
    place, kept = instance.op_count, []
    for send in needed:
        kept.append(replace(send, start=tuple(begun[place : place + len(send.way)])))
        place += len(send.way)
    makespan = max(begin + instance.duration[op][device[op]] for op, begin in enumerate(early))
    return Timetable(tuple(device), early, makespan, tuple(kept))


def _steps(
    instance: Instance, traffic: Traffic, device: Sequence[int], start: Sequence[int], sends: Sequence[Send]
) -> list[Step]:
    """Ops, then the stretches of the sends."""
    rank = {op: position for position, op in enumerate(instance.order)}
    length = [instance.duration[op][here] for op, here in enumerate(device)]
    inputs: list[list[tuple[int, float]]] = [
        [(source, length[source] + delay[device[source]][device[op]]) for source, delay in arcs]
        for op, arcs in enumerate(instance.predecessors)
    ]
    stretches: list[Step] = []
    for send in sends:
        parcel = traffic.parcels[send.parcel]
        before = parcel.source, length[parcel.source]
        for part, (begin, stretch) in enumerate(zip(send.start, send.way, strict=True)):
            holds = tuple(
                Hold(lane, begin + offset, begin + offset + ticks, offset, ticks)
                for lane, offset, ticks in stretch.holds
            )
            key = begin, begin + stretch.ticks, rank[parcel.source], part
            stretches.append(Step(key, stretch.ticks, (before,), holds))
            before = instance.op_count + len(stretches) - 1, stretch.ticks
        for reader in parcel.readers:
            if device[reader] == send.target:
                inputs[reader].append(before)
    ops = [
        Step(
            (begin, begin + length[op], rank[op], -1),
            length[op],
            tuple(inputs[op]),
            (Hold(-1 - device[op], begin, begin + length[op], 0, length[op]),),
        )
        for op, begin in enumerate(start)
    ]
    return [*ops, *stretches]
