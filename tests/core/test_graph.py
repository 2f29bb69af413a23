"""Ops, edges and dataflow graphs: what they compute and what they refuse at birth."""

import math
import re
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op


def ops(*names: str) -> tuple[Op, ...]:
    return tuple(Op(name, "test", 1.0) for name in names)


def test_the_footprint_is_the_sum_of_its_parts() -> None:
    op = Op("a", "test", weight_bytes=1, gradient_bytes=2, state_bytes=4, output_bytes=8, workspace_bytes=16)
    assert op.footprint_bytes == 31


def test_times_per_device_type() -> None:
    assert Op("a", "test", 2.0).time_on("gpu") == 2.0
    assert Op("a", "test").time_on("gpu") is None
    by_type = Op("a", "test", {"gpu": 1.0, "cpu": 9.0})
    assert by_type.time_on("cpu") == 9.0
    assert by_type.time_on("tpu") is None


@pytest.mark.parametrize("name", ["flops", "weight_bytes"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 10**400])
def test_amounts_are_finite_and_not_negative(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"op 'a': {name}:? must be .* \(it is"):
        Op("a", "test", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Op(3, "test"), "op 3: id must be a valid string (it is 3)"),
        (lambda: Op("a"), "op 'a': kind is required, but missing"),
        (lambda: Op("a", "test", devices="gpu"), "op 'a': devices must be a valid tuple (it is 'gpu')"),
        (lambda: OpGraph([3]), "op graph '': ops[0] must be a dictionary or an instance of Op (it is 3)"),
        (lambda: Edge("a", "b", 1.5), "edge 'a' → 'b': bytes must be a valid integer (it is 1.5)"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_value(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        make()


def test_whole_floats_become_integers_and_texts_with_units_numbers() -> None:
    edge = Edge("a", "b", 2.0)
    assert (edge.bytes, type(edge.bytes)) == (2, int)
    assert Op("a", "test", {"gpu": "2 ms"}, weight_bytes="1 KiB").weight_bytes == 1024  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_topological_order_is_one(seed: int) -> None:
    digraph = nx.gn_graph(12, seed=seed)
    names = sorted(map(str, digraph.nodes))
    graph = OpGraph(ops(*names), tuple(Edge(str(a), str(b), 1) for a, b in digraph.edges))
    assert sorted(graph.topological_order) == names
    position = {name: place for place, name in enumerate(graph.topological_order)}
    assert all(position[edge.source] < position[edge.target] for edge in graph.edges)


def test_networkx_form() -> None:
    edges = (Edge("a", "b", 1, tensor="s"), Edge("a", "b", 2, tensor="t"))
    graph = OpGraph(ops("a", "b"), edges, name="tiny")
    converted = graph.to_networkx()
    assert converted.name == "tiny"
    assert converted.nodes["a"]["op"] is graph.ops[0]
    assert [data["edge"] for _, _, data in converted.edges(data=True)] == list(edges)


@pytest.mark.parametrize(
    ("other", "numbers"),
    [
        (Edge("a", "c", 5, tensor="t"), "5 bytes of output 0 of 'a'.*4 bytes of output 0 of 'a'"),
        (Edge("a", "c", 4, output=1, tensor="t"), "4 bytes of output 1 of 'a'.*4 bytes of output 0 of 'a'"),
        (Edge("b", "c", 4, tensor="t"), "4 bytes of output 0 of 'b'.*4 bytes of output 0 of 'a'"),
    ],
)
def test_edges_of_a_tensor_agree(other: Edge, numbers: str) -> None:
    with pytest.raises(InputError, match=f"tensor 't': .*{numbers}; edges of one tensor must agree"):
        OpGraph(ops("a", "b", "c"), (Edge("a", "b", 4, tensor="t"), other))


def test_the_cycle_is_shown() -> None:
    edges = [("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "y"), ("y", "z")]
    names = sorted({name for edge in edges for name in edge})
    with pytest.raises(InputError, match=r"the graph has a cycle: .*; remove one of its edges") as caught:
        OpGraph(ops(*names), tuple(Edge(a, b, 1) for a, b in edges))
    cycle = re.findall(r"'(\w+)'", str(caught.value))
    assert cycle[0] == cycle[-1]
    assert len(set(cycle)) == len(cycle) - 1
    assert all(edge in edges for edge in pairwise(cycle))
