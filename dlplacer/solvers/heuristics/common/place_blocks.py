"""Placements without times: blocks assigned one by one, as memory allows."""

from collections.abc import Callable, Iterable, Sequence

from dlplacer.solvers.heuristics.common.memory_state import Fixed, Occupancy
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time


def place_blocks(
    instance: Instance,
    ops: Iterable[int],
    choose: Callable[[Occupancy, int], int | None],
    fixed: Fixed = None,
) -> list[int] | None:
    """[block] → device, decided op by op; None if an op finds no device.

    Parameters
    ----------
    ops
        In the order in which they choose; the sources of zero time among them wait for their first reader.
    choose
        Where the block of an op shall go, or None if there is no such device.
    """
    occupancy = Occupancy(instance, fixed)
    for op in ops:
        ask_time()
        if op in instance.sources:
            continue
        here: int | None = occupancy.assigned[instance.block[op]]
        if here == -1:
            here = choose(occupancy, op)
        if here is None:
            return None
        occupancy.assign_with_sources(op, here)
        if occupancy.overfull:
            return None
    return occupancy.completed()


def fitted(instance: Instance, wished: Sequence[int], ops: Iterable[int], fixed: Fixed = None) -> list[int] | None:
    """[block] → the device wished for it, or one with most room where that may not be or is full; None if none is left.

    Parameters
    ----------
    wished
        [block] → device.
    ops
        In the order in which they claim memory.
    """

    def choose(occupancy: Occupancy, op: int) -> int | None:
        device = wished[instance.block[op]]
        return device if occupancy.admits(op, device) else occupancy.best(op, occupancy.room)

    return place_blocks(instance, ops, choose, fixed)
