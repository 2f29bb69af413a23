"""List scheduling, HEFT, CPOP and PEFT: each an order of ops and a rule for devices, for one decoder."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.occupancy import Fixed, Occupancy, Priority
from dlplacer.solvers.heuristics.orders import by_release, in_order, upward_ranks
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time


def list_schedule(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule in which no device idles while an op could run on it, or None if memory does not suffice.

    Of the ops whose data are there, a free device takes the preferred one. On machines of unequal devices, an op is
    left to another device that would end it earlier.
    """
    return decode(instance, Rule(in_order(priority), fixed, works_on=True))


def heft(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of HEFT, or None if an op fits on no device that it may use.

    Ops are taken by rising `priority`, which must put every op after all that it reads; each goes to the device where
    it ends first, into the earliest gap that holds it. Where there is traffic, what it reads goes into gaps of links.
    """
    return decode(instance, Rule(in_order(priority), fixed))


def cpop(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of CPOP, or None if an op fits on no device that it may use.

    An op's value is its upward plus its downward rank: the mean length of the longest path through it. The ops of one
    longest path go to the device that runs that path fastest, all others to the device where they end first, with
    insertion; among the ops that are ready the one of largest value goes next, of equal ones the preferred.

    Other than in the paper: sources of zero time take no part in paths, for they go to their first reader; the path
    continues with the successor of largest value, which on a longest path is the next op but for rounding; ops of the
    path that may not use its device, or for which its memory does not suffice, are placed like all others.
    """
    value = _values(instance)
    sites = _path_together(instance, _critical_path(instance, value), fixed)
    return decode(instance, Rule(in_order(by_release(instance, value, priority)), sites))


def _values(instance: Instance) -> list[float]:
    """[op] → upward + downward rank; the latter is the upward rank of the reversed instance without the op itself."""
    if "path lengths" in instance.known:
        return instance.known["path lengths"]  # type: ignore[no-any-return]
    working = [op for op in instance.order if op not in instance.sources]
    downward = upward_ranks(instance.restricted(working).reversed)
    value = list(upward_ranks(instance))
    for op, rank in zip(working, downward, strict=True):
        value[op] += rank - instance.mean_duration[op]
    instance.known["path lengths"] = value
    return value


def _critical_path(instance: Instance, value: Sequence[float]) -> list[int]:
    working = [op for op in instance.order if op not in instance.sources]
    entries = [op for op in working if len(instance.predecessors[op]) == len(instance.source_arcs[op])]
    path = []
    while entries:
        path.append(max(entries, key=value.__getitem__))
        entries = [target for target, _ in instance.successors[path[-1]]]
    return path


def _path_together(instance: Instance, path: Sequence[int], fixed: Fixed) -> list[int]:
    """[block] → device, with the path's blocks on the device that suits it best: most of its ops, then least time."""

    def cost(device: int) -> tuple[int, int]:
        admitted = [op for op in path if device in instance.allowed[op]]
        return len(path) - len(admitted), sum(instance.duration[op][device] for op in admitted)

    occupancy = Occupancy(instance, fixed)
    best = min(range(instance.device_count), key=cost)
    for op in path:
        if occupancy.assigned[instance.block[op]] < 0 and occupancy.admits(op, best):
            occupancy.assign(instance.block[op], best)
    return occupancy.assigned


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
