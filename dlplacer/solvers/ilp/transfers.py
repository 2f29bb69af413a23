"""Transfers as part of the model: which way each parcel takes, when, and one at a time on every lane.

Without contention and with memory to spare none of this is needed, as eq. 8, 9 and 11 are a table of delays.
"""

from collections.abc import Iterator

from ortools.sat.python import cp_model

from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.ilp.variables import Lift, Literal, Variables, duration
from dlplacer.solvers.instance import FAR, Instance
from dlplacer.solvers.timetable import Timetable
from dlplacer.traffic import Parcel, Traffic


def send_parcels(
    model: cp_model.CpModel, instance: Instance, traffic: Traffic, variables: Variables, bounds: Bounds, upper: int
) -> None:
    """Eq. 8 to 11 with routes: a parcel that a device reads and does not make takes one of its ways there.

    It leaves its producer's device after the producer has ended (eq. 10), every stretch after the one before, and its
    readers on the target start after the last. A literal may also be true where nothing is read: that helps nobody.
    Where there are too many ways to list them all, only that of least delay is known.
    """
    for number, parcel in enumerate(traffic.parcels):
        for target in _targets(instance, parcel):
            lifts = list(_lifts(model, instance, traffic, variables, bounds, upper, number, target))
            variables.lifts.extend(lifts)
            readers = [op for op in parcel.readers if target in variables.place[instance.block[op]]]
            for op in readers:
                _supply(model, instance, variables, parcel.source, op, target, lifts)


def one_transfer_at_a_time(model: cp_model.CpModel, variables: Variables) -> None:
    """A lane carries one transfer at a time; of lanes that always go together one is enough."""
    uses: dict[int, list[int]] = {}
    intervals: list[cp_model.IntervalVar] = []
    for lift in variables.lifts:
        for start, stretch in zip(lift.start, lift.way, strict=True):
            same: dict[tuple[int, int], int] = {}
            for lane, offset, ticks in stretch.holds:
                if (offset, ticks) not in same:
                    same[offset, ticks] = len(intervals)
                    intervals.append(model.new_optional_fixed_size_interval_var(start + offset, ticks, lift.used, ""))
                uses.setdefault(lane, []).append(same[offset, ticks])
    for numbers in {tuple(numbers) for numbers in uses.values()}:
        if len(numbers) > 1:
            model.add_no_overlap([intervals[number] for number in numbers])


def hint_transfers(
    model: cp_model.CpModel, traffic: Traffic, variables: Variables, timetable: Timetable, name: dict[int, int]
) -> None:
    """Start the search with the transfers of a timetable, devices renamed; those that take other ways are left out."""
    sent = {}
    for send in timetable.sends:
        parcel = traffic.parcels[send.parcel]
        source = timetable.device[parcel.source]
        ways = traffic.ways.between(parcel.size, source, send.target)
        if send.way in ways:
            sent[send.parcel, name[source], name[send.target], ways.index(send.way)] = send.start
    for lift in variables.lifts:
        start = sent.get((lift.parcel, lift.source, lift.target, lift.choice))
        if isinstance(lift.used, cp_model.IntVar):
            model.add_hint(lift.used, start is not None)
        if start is not None:
            for variable, begin in zip(lift.start, start, strict=True):
                model.add_hint(variable, begin)


def _targets(instance: Instance, parcel: Parcel) -> list[int]:
    own = instance.block[parcel.source]
    return sorted({d for op in parcel.readers if instance.block[op] != own for d in instance.allowed[op]})


def _lifts(
    model: cp_model.CpModel,
    instance: Instance,
    traffic: Traffic,
    variables: Variables,
    bounds: Bounds,
    upper: int,
    number: int,
    target: int,
) -> Iterator[Lift]:
    parcel = traffic.parcels[number]
    ready = variables.start[parcel.source] + duration(instance, variables, parcel.source)
    first = bounds.head[parcel.source] + instance.shortest[parcel.source]
    delays = {end: delay for end, delay in instance.successors[parcel.source] if end in parcel.readers}
    for source, here in variables.place[instance.block[parcel.source]].items():
        if source == target or all(delay[source][target] >= FAR for delay in delays.values()):
            continue
        ways = traffic.ways.between(parcel.size, source, target)
        for choice, way in enumerate(ways if traffic.ways.complete else ways[:1]):
            used = model.new_bool_var("")
            model.add_implication(used, here)
            latest = max(first, upper) + sum(stretch.ticks for stretch in way)
            start = tuple(model.new_int_var(first, latest, "") for _ in way)
            model.add(start[0] >= ready)
            for before, after, stretch in zip(start, start[1:], way, strict=False):
                model.add(after >= before + stretch.ticks)
            yield Lift(number, source, target, choice, way, used, start)


def _supply(
    model: cp_model.CpModel,
    instance: Instance,
    variables: Variables,
    producer: int,
    reader: int,
    target: int,
    lifts: list[Lift],
) -> None:
    """A reader on the target has its data made there or lifted there, and starts when they are there."""
    reads: Literal = variables.place[instance.block[reader]][target]
    own = variables.place[instance.block[producer]]
    for source, here in own.items():
        if source != target:
            model.add_bool_or([~reads, ~here, *(lift.used for lift in lifts if lift.source == source)])
    for lift in lifts:
        arrival = lift.start[-1] + lift.way[-1].ticks
        model.add(variables.start[reader] >= arrival).only_enforce_if(lift.used, reads)
