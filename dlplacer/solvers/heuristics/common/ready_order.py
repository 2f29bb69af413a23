"""Orders in which a ready list takes ops: by the values that CPOP and PEFT give them, or as the program has them."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from dlplacer.solvers.instance.instance import Instance


def by_release(instance: Instance, value: Sequence[float], priority: Sequence[int]) -> list[int]:
    """[op] → its place when, among the ops whose predecessors are all taken, the one of largest value is taken next.

    Sources of zero time come first: they are there from the start.

    Parameters
    ----------
    priority
        [op] → place in the order of preference among ops of equal value.
    """
    taken = [op for op in instance.order if op in instance.sources]
    missing = [
        len(arcs) - len(sources) for arcs, sources in zip(instance.predecessors, instance.source_arcs, strict=True)
    ]
    ready = [(-value[op], priority[op], op) for op in instance.order if not missing[op] and op not in instance.sources]
    heapify(ready)
    while ready:
        _, _, op = heappop(ready)
        taken.append(op)
        for target, _ in instance.successors[op]:
            missing[target] -= 1
            if not missing[target]:
                heappush(ready, (-value[target], priority[target], target))
    place = [0] * instance.op_count
    for position, op in enumerate(taken):
        place[op] = position
    return place


def program_order(instance: Instance) -> list[int]:
    """The ops in the order of the graph's file, every op after all that it reads: how a framework would issue them."""
    positions = range(instance.op_count)
    place = by_release(instance, [-position for position in positions], positions)
    return sorted(positions, key=place.__getitem__)
