"""A schedule of the whole in the order of its segments' schedules, for graphs on which list rules take seconds."""

from collections.abc import Mapping, Sequence

from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, in_sequence, keeps_blocks_and_memory


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
    device = list(assigned)
    when = [place.get(op, end) for op in range(instance.op_count)]
    for op in reversed(instance.order):
        readers = [reader for reader, _ in instance.successors[op]]
        if op not in place:
            when[op] = min((when[reader] for reader in readers), default=end)
        _put_beside(instance, device, op, readers)
    for op in instance.order:
        _put_beside(instance, device, op, [source for source, _ in instance.predecessors[op]])
        if device[instance.block[op]] < 0:
            device[instance.block[op]] = instance.allowed[op][0]
    # Equal moments keep the topological order, as sorting is stable.
    ordered = sorted(instance.order, key=when.__getitem__)
    found = in_sequence(instance, [device[block] for block in instance.block], ordered)
    return found if keeps_blocks_and_memory(instance, found) else None


def _put_beside(instance: Instance, device: list[int], op: int, others: Sequence[int]) -> None:
    """Put the block of an op where one of some ops is, if it is nowhere yet and may be there."""
    block = instance.block
    if device[block[op]] < 0:
        beside = (device[block[other]] for other in others)
        device[block[op]] = next((there for there in beside if there in instance.allowed[op]), -1)
