"""PEFT: predict earliest finish time (Arabnejad and Barbosa 2014, IEEE TPDS 25(3)), with insertion, memory-aware."""

import numpy as np
import numpy.typing as npt

from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.common.memory_state import Fixed, Priority
from dlplacer.solvers.heuristics.common.ready_order import by_release, in_order
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

Table = npt.NDArray[np.int64]


def peft(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of PEFT, or None if an op fits on no device that it may use.

    Among the ops that are ready, the one of largest mean optimistic cost goes next, of equal ones the preferred, to the
    device where its end plus its optimistic cost is least, into the earliest gap that holds it.

    Other than in the paper: the table has the delay between the two devices in question where the paper has the mean
    over all, and only devices that an op may use; a device without memory for the op is left out.
    """
    table = optimistic_costs(instance)
    rows = zip(table.tolist(), instance.allowed, strict=True)
    means = [sum(map(row.__getitem__, on)) / max(1, len(on)) for row, on in rows]
    return decode(instance, Rule(in_order(by_release(instance, means, priority)), fixed, ahead=table))


def optimistic_costs(instance: Instance) -> Table:
    """[op][device] → OCT: ticks from the op's end on that device to the end of the last op, at best.

    The largest over the successors of the least, over the devices that a successor may use, of delay + duration + OCT
    of the successor; a successor of the same block stays on the device. Meaningless where the op may not run.
    """
    if "optimistic costs" not in instance.known:
        instance.known["optimistic costs"] = _optimistic_costs(instance)
    return instance.known["optimistic costs"]  # type: ignore[no-any-return]


def _optimistic_costs(instance: Instance) -> Table:
    table = np.zeros((instance.op_count, instance.device_count), dtype=np.int64)
    distinct = {id(delay): delay for arcs in instance.successors for _, delay in arcs}
    matrices = {key: np.array(delay, dtype=np.int64) for key, delay in distinct.items()}
    for op in reversed(instance.order):
        ask_time()
        for target, delay in instance.successors[op]:
            cost = np.full(instance.device_count, FAR, dtype=np.int64)
            allowed = list(instance.allowed[target])
            cost[allowed] = table[target, allowed] + np.array(instance.duration[target])[allowed]
            if instance.block[op] != instance.block[target]:
                cost = (matrices[id(delay)] + cost).min(axis=1)
            np.maximum(table[op], cost, out=table[op])
    return table
