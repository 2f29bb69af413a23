"""A choice of cuts where a graph has too many: small blocks stay with the block before or behind them."""

from collections.abc import Sequence

import numpy as np

from dlplacer.planning.pipeline.stages.blocks import Blocks, merged
from dlplacer.planning.pipeline.stages.cuts import MOST_CUTS, Cuts, cuts_of

SHARES = (0.002, 0.01, 0.03, 0.1)


def searchable_cuts(blocks: Blocks, seconds: Sequence[float], most: int = MOST_CUTS) -> Cuts:
    """All cuts of the blocks if there are at most `most`; else a choice of them, which says that it is not all.

    The choice: all cuts along one order of the blocks, and all cuts that do not tear short blocks from the only block
    before or behind them. Short is what takes the least share of the step, of `SHARES`, that leaves few enough.

    Parameters
    ----------
    seconds
        [block] → its time.
    most
        0 takes the one order alone.
    """
    cuts = cuts_of(blocks, most)
    if cuts.exact or not most:
        return cuts
    for share in SHARES:
        group = joined_blocks(blocks, seconds, share * sum(seconds))
        coarse = cuts_of(merged(blocks, group), most)
        if coarse.exact:
            place = {op: position for position, ops in enumerate(coarse.blocks.members) for op in ops}
            fine = coarse.inside[:, [place[ops[0]] for ops in blocks.members]]
            both = np.unique(np.concatenate([cuts.inside, fine]), axis=0)
            return Cuts(blocks, both[np.argsort(both.sum(axis=1), kind="stable")], False)
    return cuts


def joined_blocks(blocks: Blocks, seconds: Sequence[float], least_s: float) -> list[int]:
    """[block] → group: blocks shorter than `least_s` are in one with the only block before or behind them.

    Contracting an edge u → v of a transitive reduction makes no cycle if v has no other edge in or u no other edge out:
    a second way from u to v would need just such another. Contracting adds edges at most, so this stays true.
    """
    import networkx as nx
    from networkx.utils import UnionFind

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks.members)))
    graph.add_edges_from((source, target) for target, sources in enumerate(blocks.before) for source in sources)
    length = dict(enumerate(seconds))
    groups = UnionFind(graph)
    changed = True
    while changed:
        changed = False
        graph = nx.transitive_reduction(graph)
        for source, target in list(graph.edges):
            if not graph.has_edge(source, target) or min(length[source], length[target]) >= least_s:
                continue
            if graph.in_degree(target) == 1 or graph.out_degree(source) == 1:
                length[source] += length.pop(target)
                groups.union(source, target)
                nx.contracted_nodes(graph, source, target, self_loops=False, copy=False)
                changed = True
    return [groups[block] for block in range(len(blocks.members))]
