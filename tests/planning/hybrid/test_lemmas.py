"""The lemmas by linear scan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.errors import InfeasibleError
from dlplacer.planning.hybrid.scaling import (
    SerialOverhead,
    fewest_channels,
    fewest_servers,
    most_overhead_ratio,
)


@given(st.floats(1e-4, 5), st.integers(1, 500))
def test_lemma_3_1(ratio: float, workers: int) -> None:
    form = SerialOverhead(ratio)
    share = form.efficiency(workers)
    assert 0 < share <= 1
    assert form.efficiency(workers + 1) < share
    # α G is Amdahl's law with the parallel part 1 / (1 + R)
    parallel = 1 / (1 + ratio)
    assert share * workers == pytest.approx(1 / ((1 - parallel) + parallel / workers))
    assert share * workers <= form.speedup_ceiling
    if workers > 1:
        # R back from α: R = (1 − α) / (α G − 1)
        assert (1 - share) / (share * workers - 1) == pytest.approx(ratio, rel=1e-6)


@given(st.floats(0.001, 1), st.floats(1, 30))
def test_fewest_workers_are_those_of_a_linear_scan(ratio: float, speedup: float) -> None:
    form = SerialOverhead(ratio)
    if speedup >= form.speedup_ceiling * 0.99:
        return
    scan = next(n for n in range(1, 100_000) if form.efficiency(n) * n >= speedup * (1 - 1e-12))
    assert form.workers_for(speedup) == scan


def test_numbers_of_the_paper() -> None:
    assert most_overhead_ratio(0.8, 4) == pytest.approx(1 / 11)
    form = SerialOverhead(0.1)
    assert form.workers_for(3.0) == 4
    assert [form.efficiency(n) * n for n in (3, 4)] == pytest.approx([2.54, 3.14], abs=0.005)
    with pytest.raises(InfeasibleError, match=r"speedup of 12x at overhead ratio R = 0.1: .* = 11x"):
        form.workers_for(12.0)


def test_lemma_32_is_the_fewest_and_exact_at_the_boundary() -> None:
    # 2 · 0.25 GB · 8 workers = 4 GB in 2 s over 1 GB/s channels: exactly 2; a byte more needs 3.
    assert fewest_servers(0.25e9, 8, 1e9, 2.0) == 2
    assert fewest_channels(4e9 + 1, 1e9, 2.0) == 3
    assert fewest_channels(0, 1e9, 1.0) == 1
