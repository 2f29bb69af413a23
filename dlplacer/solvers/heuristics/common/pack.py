"""Devices that blocks may use, before any order: a component of the machine per part of the graph, and a packing."""

from dlplacer.solvers.heuristics.common.memory_state import Occupancy
from dlplacer.solvers.instance.instance import Instance


def choose_components(instance: Instance) -> Instance:
    """The instance with every part of the graph limited to one connected component of the machine.

    Parts with most work choose first, each the component that ends with the least work per device among those whose
    memory still suffices (any, if none does). Nothing changes if the machine is connected.
    """
    components = sorted(set(instance.component))
    if len(components) == 1:
        return instance
    devices = {number: [d for d, other in enumerate(instance.component) if other == number] for number in components}
    load, limits = dict.fromkeys(components, 0.0), {}
    room = {
        number: sum(float("inf") if (size := instance.capacity[d]) is None else size for d in devices[number])
        for number in components
    }
    work = {
        part: sum(instance.longest[op] for block in part for op in instance.members[block]) for part in instance.parts
    }
    for part in sorted(instance.parts, key=lambda part: -work[part]):
        size = sum(instance.footprint[block] for block in part)
        possible = [number for number in components if _admits(instance, part, devices[number])]
        fitting = [number for number in possible if room[number] >= size] or possible
        if fitting:
            best = min(fitting, key=lambda number: (load[number] + work[part]) / len(devices[number]))
            load[best] += work[part]
            room[best] -= size
            limits.update(dict.fromkeys(part, tuple(devices[best])))
    return instance.limited(limits)


def pack(instance: Instance) -> list[int] | None:
    """[block] → device such that memory suffices, found by worst fit decreasing; None if that fails.

    The instance must come from `choose_components`.
    """
    occupancy = Occupancy(instance)
    for block in sorted(range(len(instance.members)), key=lambda block: -instance.footprint[block]):
        device = occupancy.best(instance.members[block][0], occupancy.room)
        if device is None:
            return None
        occupancy.assign(block, device)
    return occupancy.assigned


def _admits(instance: Instance, part: tuple[int, ...], devices: list[int]) -> bool:
    return all(set(instance.allowed[instance.members[block][0]]).intersection(devices) for block in part)
