"""A schedule of the whole in the order of its segments' schedules, for graphs on which list rules take seconds."""

from collections.abc import Mapping, Sequence

from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import Delay, Instance
from dlplacer.solvers.instance.schedule import Schedule, keeps_blocks_and_memory


def in_segment_order(
    instance: Instance, assigned: Sequence[int], place: Mapping[int, float], end: float
) -> Schedule | None:
    """Every op as early as its device and its inputs allow, in the order of some moments; None if memory is short.

    Parameters
    ----------
    assigned
        [block] → device, -1 where a block lies in no segment: then that of an op beside it.
    place
        Op of a segment → its moment. Other ops come when the first op that waits for them does.
    end
        The moment of what nothing waits for.
    """
    device, block = list(assigned), instance.block
    when = [place.get(op, end) for op in range(instance.op_count)]
    for op in reversed(instance.order):
        if op not in place:
            when[op] = min((when[reader] for reader, _ in instance.successors[op]), default=end)
        if device[block[op]] < 0:
            device[block[op]] = _beside(instance, device, op, instance.successors[op])
    for op in instance.order:
        if device[block[op]] < 0:
            device[block[op]] = _beside(instance, device, op, instance.predecessors[op])
        if device[block[op]] < 0:
            device[block[op]] = instance.allowed[op][0]
    # Equal moments keep the topological order, as sorting is stable.
    ordered = sorted(instance.order, key=when.__getitem__)
    found = in_sequence(instance, [device[number] for number in block], ordered)
    return found if keeps_blocks_and_memory(instance, found) else None


def _beside(instance: Instance, device: Sequence[int], op: int, arcs: Sequence[tuple[int, Delay]]) -> int:
    """The device of an op at the other end of some arcs, if this one may be there too; else -1."""
    there = (device[instance.block[other]] for other, _ in arcs)
    return next((here for here in there if here in instance.allowed[op]), -1)
