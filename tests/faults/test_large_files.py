"""Files of many ops are read and written; a million of them outside of the usual suite."""

from pathlib import Path

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.files.formats import read_graph


def chain(count: int) -> OpGraph:
    """Ops in a row."""
    ops = tuple(Op(f"op{position}", "aten.mm", 1e-6) for position in range(count))
    edges = tuple(Edge(f"op{position}", f"op{position + 1}", 4) for position in range(count - 1))
    return OpGraph(ops, edges, name="chain")


@pytest.mark.parametrize("count", [5_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_graph_of_many_ops_is_read_and_written(tmp_path: Path, count: int) -> None:
    path = tmp_path / "graph.json"
    chain(count).save(path)
    read = read_graph(path)
    assert len(read.ops) == count
    assert read.ops[-1].id == f"op{count - 1}"
    assert len(read.edges) == count - 1
