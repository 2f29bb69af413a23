"""Orders in which a ready list takes ops: by the values that CPOP and PEFT give them, or as the program has them."""

from collections.abc import Sequence
from itertools import chain

from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time


def by_release(instance: Instance, value: Sequence[float], priority: Sequence[int]) -> list[int]:
    """[op] → its place when, among the ops whose predecessors are all taken, the one of largest value is taken next.

    Sources of zero time come first: they are there from the start.

    Parameters
    ----------
    priority
        [op] → place in the order of preference among ops of equal value.
    """
    import networkx as nx

    working = [op for op in instance.order if op not in instance.sources]
    graph = nx.DiGraph((op, target) for op in working for target, _ in instance.successors[op])
    graph.add_nodes_from(working)
    released = nx.lexicographical_topological_sort(graph, lambda op: (-value[op], priority[op], op))
    place = [0] * instance.op_count
    for position, op in enumerate(chain((op for op in instance.order if op in instance.sources), released)):
        ask_time()
        place[op] = position
    return place


def in_order(place: Sequence[int]) -> list[int]:
    """The ops by their places."""
    return sorted(range(len(place)), key=place.__getitem__)


def program_order(instance: Instance) -> list[int]:
    """The ops in the order of the graph's file, every op after all that it reads: how a framework would issue them."""
    positions = range(instance.op_count)
    return in_order(by_release(instance, [-position for position in positions], positions))
