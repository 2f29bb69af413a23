"""Units: the ops that a local search moves from device to device together."""

from dlplacer.solvers.instance.instance import Instance


def move_units(instance: Instance) -> list[tuple[int, ...]]:
    """Blocks, joined with ops of no time that read or are read by one op only, as far as some device may run all.

    On captured graphs most ops take no time (views, parameters, getters): left behind, they would send what their
    neighbour reads, so moves of single ops would hardly ever pay.
    """
    from networkx.utils import UnionFind

    joined = UnionFind(range(len(instance.members)))
    allowed = {block: set(instance.allowed[ops[0]]) for block, ops in enumerate(instance.members)}
    for op in instance.order:
        if instance.longest[op] or op == instance.barrier:
            continue
        before, after = instance.predecessors[op], instance.successors[op]
        neighbour = before[0][0] if len(before) == 1 else after[0][0] if len(after) == 1 else -1
        if neighbour < 0 or neighbour == instance.barrier:
            continue
        own, other = joined[instance.block[op]], joined[instance.block[neighbour]]
        both = allowed[own] & allowed[other]
        if own != other and both:
            joined.union(own, other)
            allowed[joined[own]] = both
    units = [tuple(sorted(op for block in blocks for op in instance.members[block])) for blocks in joined.to_sets()]
    return sorted(units)
