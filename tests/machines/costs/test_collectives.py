"""Closed forms and rounds of collectives against runs with real data, message by message."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.costs import closed_forms
from machines.costs import collective_runs as runs

from dlplacer.machines.costs import collectives
from dlplacer.machines.costs.collectives import ALGORITHMS, AlphaBeta, CollectiveAlgorithm, Round

COUNTS = range(1, 18)
UNIT = AlphaBeta(1.0, 1.0)
lines = st.builds(AlphaBeta, st.floats(0, 1e-3), st.floats(1e-12, 1e-6))


def line_of(run: runs.Run) -> AlphaBeta:
    """What a run costs where every step lasts as long as its largest message: latency 1 each, 1 for a whole vector."""
    sent = [max(share for _, _, share in step) for step in run.log]
    return AlphaBeta(float(len(sent)), sum(sent))


def unrolled(found: Sequence[Round]) -> list[list[tuple[int, int, float]]]:
    return [list(each.steps) for each in found for _ in range(each.times)]


def same_log(run: runs.Run, found: Sequence[Round]) -> bool:
    def rounded(log: list[list[tuple[int, int, float]]]) -> list[Counter[tuple[int, int, float]]]:
        return [Counter((a, b, round(share, 12)) for a, b, share in step) for step in log]

    return rounded(run.log) == rounded(unrolled(found))


RUNS: dict[tuple[str, str], Callable[[int], runs.Run]] = {
    ("all-reduce", "ring"): runs.ring,
    ("all-reduce", "tree"): runs.tree,
    ("all-gather", "ring"): runs.ring_gathered,
    ("reduce-scatter", "ring"): runs.ring_scattered,
    ("all-to-all", "pairwise"): runs.pairwise,
}
"""An entry of the table → the same algorithm with real data, which ends as its collective demands."""


@pytest.mark.parametrize("devices", COUNTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: f"{each.collective}/{each.name}")
def test_every_algorithm_of_the_table_does_its_collective_in_its_rounds_at_the_cost_of_its_form(
    algorithm: CollectiveAlgorithm, devices: int
) -> None:
    run = RUNS[algorithm.collective, algorithm.name](devices)
    runs.require_done(run, algorithm.collective)
    form = closed_forms.CLOSED_FORMS[algorithm.collective, algorithm.name](UNIT, devices)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((form.latency_s, form.s_per_byte))
    found = algorithm.rounds(devices)
    assert sum(each.times for each in found) == len(run.log)
    # Rounds listed once with a count load the links alike, in one direction or the other.
    assert sum(each.times * max(share for *_, share in each.steps) for each in found) == pytest.approx(form.s_per_byte)
    if algorithm.collective != "all-to-all":
        assert same_log(run, found)
    passes = collectives.ring_pass(UNIT, devices).times(algorithm.ring_passes)
    assert not algorithm.ring_passes or passes == form


@pytest.mark.parametrize(("groups", "size"), [(1, 1), (1, 4), (4, 1), (2, 2), (2, 4), (3, 4), (4, 3)])
def test_hierarchical_all_reduce_sums_everything(groups: int, size: int) -> None:
    run = runs.hierarchical(groups, size)
    assert all(vector == run.totals() for vector in run.held)
    form = closed_forms.hierarchical_all_reduce(UNIT, UNIT, groups, size)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((form.latency_s, form.s_per_byte))
    places = [tuple(range(group * size, (group + 1) * size)) for group in range(groups)]
    assert same_log(run, collectives.hierarchical_rounds(places))


@given(lines, st.integers(1, 600))
def test_no_all_reduce_moves_fewer_bytes_than_the_ring(channel: AlphaBeta, devices: int) -> None:
    ring = collectives.ring_all_reduce(channel, devices)
    for algorithm in ALGORITHMS:
        if algorithm.collective == "all-reduce":
            assert closed_forms.CLOSED_FORMS[algorithm.collective, algorithm.name](
                channel, devices
            ).s_per_byte >= ring.s_per_byte * (1 - 1e-12)
