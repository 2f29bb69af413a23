"""List scheduling and HEFT: orders of ops by upward rank (Topcuoglu, Hariri and Wu 2002), and rules for devices."""

from collections.abc import Callable, Sequence

from dlplacer.solvers.bounds import arc_delays
from dlplacer.solvers.decode.decode import decode
from dlplacer.solvers.heuristics.memory_packing import Fixed, Priority
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time


def list_schedule(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule by `priority` in which no device idles while an op could run there; None if an op fits nowhere."""
    return decode(instance, sorted(range(len(priority)), key=priority.__getitem__), fixed, works_on=True)


def heft(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of HEFT, or None if an op fits on none of its allowed devices.

    Ops are taken by rising `priority`, which must put every op after its inputs. Each goes to the device where it ends
    first, into the earliest gap that holds it. If there is traffic, transfers of its inputs also use gaps on the links.
    """
    return decode(instance, sorted(range(len(priority)), key=priority.__getitem__), fixed)


def upward_ranks(instance: Instance, delay_weight: float = 1.0) -> list[float]:
    """[op] → its mean duration + max over readers of (weighted mean delay + rank), in ticks (HEFT's eq. 8).

    Durations average over the allowed devices, and delays over allowed pairs of different devices joined by a route.
    """
    key = f"upward ranks {delay_weight}"
    if key in instance.known:
        return instance.known[key]  # type: ignore[no-any-return]
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
    instance.known[key] = ranks
    return ranks


def by_rank(instance: Instance, ranks: Sequence[float]) -> list[int]:
    """[op] → its place when ops are sorted by falling rank, ties in topological order; 0 comes first."""
    place = [0] * instance.op_count
    for position, op in enumerate(sorted(instance.order, key=lambda op: -ranks[op])):
        place[op] = position
    return place


def program_order(instance: Instance) -> list[int]:
    """The ops in the order of the graph's file, zero-time sources first and every op after its inputs."""
    import networkx as nx

    working = [op for op in instance.order if op not in instance.sources]
    graph = nx.DiGraph((op, target) for op in working for target, _ in instance.successors[op])
    graph.add_nodes_from(working)
    ask_time()
    return [*sorted(instance.sources), *nx.lexicographical_topological_sort(graph)]


Heuristic = Callable[[Instance, Priority, Fixed], Schedule | None]
"""A heuristic; None if an op fits on none of its allowed devices."""

DELAY_WEIGHTS = (1.0, 0.5, 0.0)
"""Factors on delays in upward ranks; the best resulting schedule counts. HEFT's own factor is 1, as if every arc
crossed devices. It overrates delays if few arcs do; a factor of 0 ranks by work alone."""


def construct(instance: Instance, rule: Heuristic, fixed: Fixed = None) -> Schedule | None:
    """The best schedule of a rule over several rankings, as many as time allows; None if memory runs out."""
    found: list[Schedule] = []
    for weight in DELAY_WEIGHTS:
        try:
            one = rule(instance, by_rank(instance, upward_ranks(instance, weight)), fixed)
        except OutOfTimeError:
            # Keep the first schedule: on large graphs the time may end during the next.
            if not found:
                raise
            break
        if one is not None:
            found.append(one)
    return min(found, key=lambda one: one.makespan, default=None)
