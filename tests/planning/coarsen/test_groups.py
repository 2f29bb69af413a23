"""Groups never make ops wait for each other, whatever the labels."""

import networkx as nx
import pytest
from planning.coarsen.random_graphs import random_graph, random_labels

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.planning.coarsen.granularity import acyclic_groups


def chain(*edges: str) -> OpGraph:
    """A graph from texts such as ``a>b``."""
    ends = [edge.split(">") for edge in edges]
    names = dict.fromkeys(name for pair in ends for name in pair)
    return OpGraph(tuple(Op(name, "test") for name in names), tuple(Edge(a, b, 1) for a, b in ends))


@pytest.mark.parametrize("seed", range(6))
def test_the_quotient_has_no_circle_and_no_op_is_lost(seed: int) -> None:
    graph = random_graph(seed, count=14)
    labels = random_labels(graph, seed, labels=1 + seed % 4)
    groups = acyclic_groups(graph, labels)
    owner = {member: name for name, members in groups.items() for member in members}
    assert len(owner) == sum(map(len, groups.values()))
    quotient = nx.DiGraph()
    for edge in graph.edges:
        source, target = owner.get(edge.source, edge.source), owner.get(edge.target, edge.target)
        if source != target:
            quotient.add_edge(source, target)
    assert nx.is_directed_acyclic_graph(quotient)
    position = {name: place for place, name in enumerate(graph.topological_order)}
    for name, members in groups.items():
        assert len(members) > 1
        assert {labels[member] for member in members} == {name.partition("#")[0]}
        assert list(members) == sorted(members, key=position.__getitem__)


# x → a → y → b → z: x, y and z carry one label, a and b another, and each side waits for the other.
def test_the_widest_group_of_a_circle_is_cut() -> None:
    graph = chain("x>a", "a>b", "b>z", "x>z", "w>a")
    groups = acyclic_groups(graph, {"x": "outer", "z": "outer", "a": "inner", "b": "inner"})
    assert groups == {"inner": ("a", "b")}
