"""CPOP: critical path on a processor (Topcuoglu, Hariri and Wu 2002, IEEE TPDS 13(3)), memory-aware."""

from collections.abc import Sequence

from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.common.memory_state import Fixed, Occupancy, Priority
from dlplacer.solvers.heuristics.common.ready_order import by_release, in_order
from dlplacer.solvers.heuristics.common.upward_rank import upward_ranks
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


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
