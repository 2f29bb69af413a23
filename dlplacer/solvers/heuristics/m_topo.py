"""m-TOPO: devices filled in topological order (Jeon et al. 2020, Baechi, SoCC), memory-aware."""

from dataclasses import replace

from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.heuristics.occupancy import Fixed, Occupancy, Priority, place_blocks
from dlplacer.solvers.heuristics.orders import program_order
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def m_topo(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of m-TOPO, or None if memory does not suffice for its placement.

    In the program's order, which is a topological one, ops fill the first device up to a cap, then the second, and so
    on. The cap is an equal share of all footprints plus the largest of them, and never more than the device's memory.

    Other than in the paper: pins are honoured (`_filled`), a graph without footprints is shared out by time, and as the
    paper leaves the order on a device to the runtime, the ops are list-scheduled on the placement.
    """
    sized = _with_sizes(instance)
    cap = sum(sized.footprint) // instance.device_count + max(sized.footprint)
    sites = _filled(sized, cap, fixed)
    return None if sites is None else list_schedule(instance, priority, sites)


def _filled(instance: Instance, cap: int, fixed: Fixed) -> list[int] | None:
    """[block] → device: blocks in the program's order to the first device until its share is used up, then to the next.

    No device is returned to. A block that may not use the device whose turn it is goes to the first other one with
    room. If a block finds none, the cap is given up and the capacities alone count; None if that does not help.
    """
    limits = tuple(cap if size is None else min(cap, size) for size in instance.capacity)
    return _in_turn(replace(instance, capacity=limits), fixed) or _in_turn(instance, fixed)


def _with_sizes(instance: Instance) -> Instance:
    """The instance itself, or where its ops have no footprints one in which they count by their mean durations.

    There memory is unlimited: it holds any number of ops without footprints, and has nothing to do with durations.
    """
    if any(instance.footprint):
        return instance
    sizes = (int(sum(instance.mean_duration[op] for op in ops)) for ops in instance.members)
    return replace(instance, footprint=tuple(sizes), capacity=(None,) * instance.device_count)


def _in_turn(instance: Instance, fixed: Fixed) -> list[int] | None:
    turn = 0

    def choose(occupancy: Occupancy, op: int) -> int | None:
        nonlocal turn
        while turn in instance.allowed[op] and turn + 1 < instance.device_count and not occupancy.admits(op, turn):
            turn += 1
        if occupancy.admits(op, turn):
            return turn
        return next((device for device in instance.allowed[op] if occupancy.admits(op, device)), None)

    return place_blocks(instance, program_order(instance), choose, fixed)
