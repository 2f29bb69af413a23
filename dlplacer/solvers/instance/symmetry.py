"""Devices that can change places without changing any plan's value."""

from collections.abc import Sequence

from dlplacer.solvers.instance.instance import Delay, Instance
from dlplacer.solvers.instance.time_limit import ask_time


def interchangeable(instance: Instance) -> list[tuple[int, ...]]:
    """Classes of two or more devices, any two of which can be swapped.

    Swapping two devices maps plans to plans of the same makespan if every op takes the same time on both or may run on
    neither, the capacities agree, and every delay to, from and between them is kept; with traffic, also every link.
    One member of a class stands for all: swapping a with b, b with c, and a with b again swaps a with c.
    """
    tables = {_pattern(delay) for delay in {delay for arcs in instance.successors for _, delay in arcs}}
    classes: list[list[int]] = []
    for device in range(instance.device_count):
        for members in classes:
            if _swappable(instance, tables, members[0], device):
                members.append(device)
                break
        else:
            classes.append([device])
    return [tuple(members) for members in classes if len(members) > 1]


def relabelled(placement: Sequence[int], classes: Sequence[tuple[int, ...]], blocks: Sequence[int]) -> dict[int, int]:
    """Device → device such that along `blocks` the devices of each class first appear in their own order.

    Parameters
    ----------
    placement
        [block] → device.
    """
    new_name = {device: device for device in placement}
    for members in classes:
        seen = dict.fromkeys(placement[block] for block in blocks if placement[block] in members)
        met = [*seen, *(device for device in members if device not in seen)]
        new_name.update(zip(met, members, strict=True))
    return new_name


def _swappable(instance: Instance, tables: set[Delay], a: int, b: int) -> bool:
    if instance.capacity[a] != instance.capacity[b] or instance.component[a] != instance.component[b]:
        return False
    for row, devices in zip(instance.duration, instance.allowed, strict=True):
        if (a in devices) != (b in devices) or (a in devices and row[a] != row[b]):
            return False
    if instance.traffic is not None and not instance.traffic.routes.swappable(a, b):
        return False
    others = [device for device in range(instance.device_count) if device not in (a, b)]
    return all(
        delay[a][b] == delay[b][a] and all(delay[a][c] == delay[b][c] and delay[c][a] == delay[c][b] for c in others)
        for delay in tables
    )


def _pattern(delay: Delay) -> Delay:
    """The pattern of equal delays: tensors of many sizes have few patterns over one machine."""
    ask_time()
    numbers: dict[int, int] = {}
    return tuple(tuple(numbers.setdefault(ticks, len(numbers)) for ticks in row) for row in delay)
