"""Scaling efficiency in closed form, and its fit from measured points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.errors import InfeasibleError
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives import ring_all_reduce
from dlplacer.planning.hybrid.scaling import RingOverhead, SerialOverhead, fit_scaling


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
    form = SerialOverhead(0.1)
    assert form.workers_for(3.0) == 4
    assert [form.efficiency(n) * n for n in (3, 4)] == pytest.approx([2.54, 3.14], abs=0.005)
    with pytest.raises(InfeasibleError, match=r"speedup of 12x at overhead ratio R = 0.1: .* = 11x"):
        form.workers_for(12.0)


@given(st.floats(0, 3), st.floats(0, 0.1), st.integers(1, 200))
def test_the_ring_form_is_the_cost_of_a_ring_all_reduce(bandwidth: float, latency: float, workers: int) -> None:
    # T_1 = 1 s: ρ = 2 β bytes and λ = 2 α for a vector of one byte
    line = ring_all_reduce(AlphaBeta(latency / 2, bandwidth / 2), workers)
    assert RingOverhead(bandwidth, latency).efficiency(workers) == pytest.approx(1 / (1 + line.time_s(1)))


@pytest.mark.parametrize(
    ("model", "form"),
    [(SerialOverhead(0.1), "serial"), (RingOverhead(0.4), "ring"), (RingOverhead(0.3, 0.01), "ring with latency")],
)
@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 4, 8, 16)])
def test_the_fit_finds_the_form_and_its_parameters(
    model: SerialOverhead | RingOverhead, form: str, counts: tuple[int, ...]
) -> None:
    fits = fit_scaling([(workers, 0.7 / model.efficiency(workers)) for workers in counts])
    assert fits.best.form == form
    assert fits.best.single_s == pytest.approx(0.7)
    assert vars(fits.best.model) == pytest.approx(vars(model))
    assert max(map(abs, fits.best.residuals)) < 1e-9
    assert f"'{form}' fits best" in fits.verdict
