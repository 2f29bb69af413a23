"""m-TOPO: devices filled one after another (Jeon et al. 2020, Baechi, SoCC)."""

from collections.abc import Sequence

from dlplacer.solvers.heuristics.list_rules import list_schedule, program_order
from dlplacer.solvers.heuristics.memory_packing import Fixed, Priority, fitted
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def m_topo(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of m-TOPO, or None if memory does not suffice for its placement.

    In the program's order, which is a topological one, ops fill the first device up to a cap, then the second, and so
    on. The cap is an equal share of all footprints plus the largest of them, and never more than the device's memory.

    Other than in the paper: a block that may not go where its turn is goes where most room is, a graph without
    footprints is shared out by time, and as the paper leaves the order on a device to the runtime, the ops are
    list-scheduled on the placement.
    """
    order = program_order(instance)
    sites = fitted(instance, _in_turn(instance, order), order, fixed)
    return None if sites is None else list_schedule(instance, priority, sites)


def _in_turn(instance: Instance, order: Sequence[int]) -> list[int | None]:
    """[block] → device whose turn it is when the first op of the block comes; None for blocks of sources only."""
    sizes, capacity = instance.footprint, instance.capacity
    if not any(sizes):
        sizes = tuple(int(sum(map(instance.mean_duration.__getitem__, ops))) for ops in instance.members)
        capacity = (None,) * instance.device_count
    cap = sum(sizes) // instance.device_count + max(sizes)
    limits = [cap if room is None else min(cap, room) for room in capacity]
    wished: list[int | None] = [None] * len(sizes)
    turn, used, counted = 0, 0, set[int]()
    for op in order:
        if op in instance.sources or wished[instance.block[op]] is not None:
            continue
        read = (instance.block[source] for source, _ in instance.source_arcs[op])
        added = {instance.block[op], *read} - counted
        size = sum(sizes[block] for block in added)
        if used + size > limits[turn] and turn + 1 < instance.device_count:
            turn, used = turn + 1, 0
        wished[instance.block[op]] = turn
        used += size
        counted |= added
    return wished
