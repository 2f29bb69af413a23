"""List scheduling and HEFT: orders of ops by upward rank (Topcuoglu, Hariri and Wu 2002), and rules for devices."""

from collections.abc import Sequence

from dlplacer.solvers.bounds.heads_tails import arc_delays
from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.occupancy import Fixed, Priority
from dlplacer.solvers.instance.instance import Instance
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


def upward_ranks(instance: Instance, delay_weight: float = 1.0) -> list[float]:
    """[op] → mean duration + the largest of mean delay + rank over its readers, in ticks (their eq. 8).

    Durations are averaged over the allowed devices, delays over the pairs of different devices that the two ops may use
    and that a route joins.

    Parameters
    ----------
    delay_weight
        Factor on the delays; 0 ranks by work alone.
    """
    key = f"upward ranks {delay_weight}"
    if key not in instance.known:
        instance.known[key] = _upward_ranks(instance, delay_weight)
    return instance.known[key]  # type: ignore[no-any-return]


def _upward_ranks(instance: Instance, delay_weight: float) -> list[float]:
    ranks = [0.0] * instance.op_count
    for op in reversed(instance.order):
        ask_time()
        below = 0.0
        for target, delay in instance.successors[op]:
            reach = ranks[target]
            if delay_weight:
                reach += delay_weight * arc_delays(instance, op, target, delay).mean
            below = max(below, reach)
        ranks[op] = below + instance.mean_duration[op]
    return ranks


def by_rank(instance: Instance, ranks: Sequence[float]) -> list[int]:
    """[op] → its place when ops are sorted by falling rank, ties in topological order; 0 comes first."""
    place = [0] * instance.op_count
    for position, op in enumerate(sorted(instance.order, key=lambda op: -ranks[op])):
        place[op] = position
    return place


def in_order(place: Sequence[int]) -> list[int]:
    """The ops by their places."""
    return sorted(range(len(place)), key=place.__getitem__)


def program_order(instance: Instance) -> list[int]:
    """The ops in the order of the graph's file, every op after all that it reads: how a framework would issue them.

    Sources of zero time come first: they are there from the start.
    """
    import networkx as nx

    working = [op for op in instance.order if op not in instance.sources]
    graph = nx.DiGraph((op, target) for op in working for target, _ in instance.successors[op])
    graph.add_nodes_from(working)
    ask_time()
    return [*sorted(instance.sources), *nx.lexicographical_topological_sort(graph)]
