"""Instances whose blocks are whole modules."""

from dataclasses import replace

from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.instance import Instance


def by_module(problem: Problem, instance: Instance) -> Instance:
    """The instance with all ops of a module in one block, its backward and its parameters included.

    Ops of no module join what they read first: sums of gradients the op that gave the first of them. Blocks that may
    use different devices stay apart.
    """
    from networkx.utils import UnionFind

    joined = UnionFind(range(len(instance.members)))
    first: dict[tuple[str, tuple[int, ...]], int] = {}
    for op in instance.order:
        module = problem.graph.ops[op].module if op < problem.op_count else None
        allowed = instance.allowed[op]
        mine = instance.block[op]
        if module is not None:
            other = first.setdefault((module, allowed), mine)
        else:
            read = (end for end, _ in instance.predecessors[op] if end not in instance.sources)
            other = next((instance.block[end] for end in read if instance.allowed[end] == allowed), mine)
        joined.union(mine, other)
    merged = sorted(map(sorted, joined.to_sets()))
    number = {old: position for position, blocks in enumerate(merged) for old in blocks}
    block = tuple(number[old] for old in instance.block)
    members: list[list[int]] = [[] for _ in merged]
    footprint = [0] * len(merged)
    for op, mine in enumerate(block):
        members[mine].append(op)
    for old, size in enumerate(instance.footprint):
        footprint[number[old]] += size
    return replace(instance, block=block, members=tuple(map(tuple, members)), footprint=tuple(footprint))
