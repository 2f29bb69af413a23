"""The segments of a graph, and how much of its work lies outside them."""

from itertools import pairwise

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import star
from solvers.helpers import make_graph, make_instance, make_machine

from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.segment_search import segments_of, work_outside


@pytest.mark.parametrize(("family", "least", "most"), [("inception_like", 0.0, 0.0), ("pipeline", 0.5, 1.0)])
def test_work_outside_tells_dense_segments_from_sparse_ones(family: str, least: float, most: float) -> None:
    instance = make_instance(FAMILIES[family](400, 0, 1.0), star(4))
    segments = segments_of(instance, lower_bounds(instance, 10.0), 100.0)
    assert len(segments) > 1
    assert least <= work_outside(instance, segments) <= most


def test_work_outside_is_a_share_of_time() -> None:
    # The diamond a–b, c–d falls into no parts; e and f, which nothing waits for, lie beside it.
    edges = [("a", "b", 0), ("a", "c", 0), ("b", "d", 0), ("c", "d", 0), ("a", "e", 0), ("a", "f", 0)]
    times = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0, "e": 1.0, "f": 1.0}
    instance = make_instance(make_graph(times, edges), make_machine(2))
    segments = segments_of(instance, lower_bounds(instance, 10.0), 100.0)
    assert work_outside(instance, segments) == pytest.approx(2 / 8)
    assert work_outside(instance, []) == 1


def test_a_large_graph_in_one_piece_has_no_segments() -> None:
    # Two ops at each of 150 depths, which both wait for both before them: none comes before or after all others.
    steps = [(f"a{depth}", f"b{depth}") for depth in range(150)]
    edges = [(one, other, 0) for before, after in pairwise(steps) for one in before for other in after]
    instance = make_instance(make_graph({name: 1.0 for step in steps for name in step}, edges), make_machine(2))
    assert segments_of(instance, lower_bounds(instance, 10.0), 100.0) == []
