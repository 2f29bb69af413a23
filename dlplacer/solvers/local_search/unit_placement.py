"""Units put on devices and put back, in machine code: what a move changes beside the sequence."""

from dlplacer.solvers.decode.arrays import (
    IS_SOURCE,
    MEMBERS,
    OP_BYTES,
    READERS,
    READS,
    WRITES,
    InstanceArrays,
)
from dlplacer.solvers.decode.solution import DEVICE, DEVICE_BEFORE, PATH, PATH_BEFORE, PLACE, Solution


def put(arrays: InstanceArrays, solution: Solution, unit: int, device: int) -> int:
    """Put a unit on a device; the first place of the sequence at which that changes something.

    What follows its ops is not known any more, so paths become 0 and nothing is given up because of them.
    """
    first, lists, ops = solution.sequence.shape[0], arrays.lists, solution.ops
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = lists[member]
        before = ops[op, DEVICE]
        ops[op, DEVICE], ops[op, DEVICE_BEFORE] = device, before
        ops[op, PATH], ops[op, PATH_BEFORE] = 0, ops[op, PATH]
        if not arrays.ops[op, IS_SOURCE]:
            first = min(first, ops[op, PLACE])
            for number in range(arrays.ops[op, READS], arrays.ops[op, READS + 1]):
                for target in (before, device):
                    asker = solution.asker[lists[number], target]
                    if asker >= 0:
                        first = min(first, ops[asker, PLACE])
            continue
        for number in range(arrays.ops[op, WRITES], arrays.ops[op, WRITES + 1]):
            request = lists[number]
            for reader in range(arrays.requests[request, READERS], arrays.requests[request, READERS + 1]):
                first = min(first, ops[lists[reader], PLACE])
            for target in range(solution.used.shape[0]):
                asker = solution.asker[request, target]
                if asker >= 0:
                    first = min(first, ops[asker, PLACE])
    return int(first)


def put_back(arrays: InstanceArrays, solution: Solution, unit: int) -> None:
    """Undo `put`: the schedule that a search begins with may have a unit on several devices."""
    ops = solution.ops
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        ops[op, DEVICE], ops[op, PATH] = ops[op, DEVICE_BEFORE], ops[op, PATH_BEFORE]


def account(arrays: InstanceArrays, solution: Solution, unit: int) -> None:
    """Count the bytes of a unit where `put` has put it."""
    ops, used = solution.ops, solution.used
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        used[ops[op, DEVICE_BEFORE]] -= arrays.ops[op, OP_BYTES]
        used[ops[op, DEVICE]] += arrays.ops[op, OP_BYTES]


def bytes_on(arrays: InstanceArrays, solution: Solution, unit: int, device: int) -> int:
    """The bytes of a unit that are on a device."""
    size = 0
    for member in range(arrays.units[unit, MEMBERS], arrays.units[unit, MEMBERS + 1]):
        op = arrays.lists[member]
        if solution.ops[op, DEVICE] == device:
            size += arrays.ops[op, OP_BYTES]
    return size
