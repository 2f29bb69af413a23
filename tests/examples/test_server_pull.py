"""Pulls of many nodes from servers on shared blades, by hand."""

import pytest

pytest.importorskip("paper_models", reason="the examples are in the checkout only")
from paper_models.server_pull import Blades, best_of_count, speedup

from dlplacer.data_parallel.groups import LayerChain, makespan_s


def test_a_pull_takes_what_all_nodes_of_a_blade_need_from_other_blades() -> None:
    blades = Blades(8, 1e9, 0.01)
    # Four nodes on a blade each: three quarters of 1 GB lie elsewhere. 72 nodes: nine on a card, seven eighths of it.
    assert blades.pull_s(1e9, 4) == pytest.approx(0.75)
    assert blades.pull_s(1e9, 72) == pytest.approx(9 * 7 / 8)
    assert blades.pull_s(1e9, 1) == 0


def test_speedup_of_a_single_pull() -> None:
    layers = LayerChain(0.0, (0.0, 0.0), (1.0, 3.0), (10**9, 10**9))
    # A step is 12 s alone; on eight nodes 0.01 + 2 · 7 / 8 s come before it and after it.
    assert speedup(layers, Blades(8, 1e9, 0.01), 8, (2,)) == pytest.approx(8 * 12 / (12 + 2 * 1.76))


def test_three_batches_are_the_best_of_all_cuts() -> None:
    chain = LayerChain(1.0, (1.0,) * 4, (2.0,) * 4)
    found = best_of_count(chain, 3)
    assert makespan_s(chain, found) == min(makespan_s(chain, cuts) for cuts in ((1, 2, 4), (1, 3, 4), (2, 3, 4)))
