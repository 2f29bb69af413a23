"""Devices filled in their order: what device maps do."""

from collections.abc import Sequence
from dataclasses import replace

from dlplacer.problem.problem import Problem
from dlplacer.solvers.heuristics.common.memory_state import Fixed, Occupancy
from dlplacer.solvers.heuristics.common.place_blocks import place_blocks
from dlplacer.solvers.heuristics.common.ready_order import program_order
from dlplacer.solvers.instance.instance import Instance


def filled(instance: Instance, share: Sequence[int | None], fixed: Fixed) -> list[int] | None:
    """[block] → device: blocks in the program's order to the first device until its share is used up, then to the next.

    No device is returned to. A block that may not use the device whose turn it is goes to the first other one with
    room. If a block finds none, the shares are given up and the capacities alone count; None if that does not help.

    Parameters
    ----------
    share
        [device] → bytes that it shall hold at most, or None.
    """
    limits = tuple(map(_smaller, instance.capacity, share))
    return _filled(replace(instance, capacity=limits), fixed) or _filled(instance, fixed)


def by_module(problem: Problem, instance: Instance) -> Instance:
    """The instance with all ops of a module in one block, its backward and its parameters included.

    Ops of no module join what they read first: sums of gradients the op that gave the first of them. Blocks that may
    use different devices stay apart.
    """
    from networkx.utils import UnionFind

    joined = UnionFind(range(len(instance.members)))
    first: dict[tuple[str, tuple[int, ...]], int] = {}
    for op in instance.order:
        module = problem.graph.ops[op].module if op < problem.op_count else None
        allowed = instance.allowed[op]
        mine = instance.block[op]
        if module is not None:
            other = first.setdefault((module, allowed), mine)
        else:
            read = (end for end, _ in instance.predecessors[op] if end not in instance.sources)
            other = next((instance.block[end] for end in read if instance.allowed[end] == allowed), mine)
        joined.union(mine, other)
    merged = sorted(map(sorted, joined.to_sets()))
    number = {old: position for position, blocks in enumerate(merged) for old in blocks}
    block = tuple(number[old] for old in instance.block)
    members: list[list[int]] = [[] for _ in merged]
    footprint = [0] * len(merged)
    for op, mine in enumerate(block):
        members[mine].append(op)
    for old, size in enumerate(instance.footprint):
        footprint[number[old]] += size
    return replace(instance, block=block, members=tuple(map(tuple, members)), footprint=tuple(footprint))


def with_sizes(instance: Instance) -> Instance:
    """The instance itself, or where its ops have no footprints one in which they count by their mean durations.

    There memory is unlimited: it holds any number of ops without footprints, and has nothing to do with durations.
    """
    if any(instance.footprint):
        return instance
    sizes = (int(sum(instance.mean_duration[op] for op in ops)) for ops in instance.members)
    return replace(instance, footprint=tuple(sizes), capacity=(None,) * instance.device_count)


def _filled(instance: Instance, fixed: Fixed) -> list[int] | None:
    turn = 0

    def choose(occupancy: Occupancy, op: int) -> int | None:
        nonlocal turn
        while turn in instance.allowed[op] and turn + 1 < instance.device_count and not occupancy.admits(op, turn):
            turn += 1
        if occupancy.admits(op, turn):
            return turn
        return next((device for device in instance.allowed[op] if occupancy.admits(op, device)), None)

    return place_blocks(instance, program_order(instance), choose, fixed)


def _smaller(capacity: int | None, share: int | None) -> int | None:
    return min((size for size in (capacity, share) if size is not None), default=None)
