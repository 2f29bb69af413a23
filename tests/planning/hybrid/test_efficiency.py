"""Scaling efficiency in closed form, and its fit from measured points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.collectives import AlphaBeta, ring_all_reduce
from dlplacer.planning.hybrid.scaling import RingOverhead, fit_scaling


@given(st.floats(0, 3), st.floats(0, 0.1), st.integers(1, 200))
def test_the_ring_form_is_the_cost_of_a_ring_all_reduce(bandwidth: float, latency: float, workers: int) -> None:
    # T_1 = 1 s: ρ = 2 β bytes and λ = 2 α for a vector of one byte
    line = ring_all_reduce(AlphaBeta(latency / 2, bandwidth / 2), workers)
    assert RingOverhead(bandwidth, latency).efficiency(workers) == pytest.approx(1 / (1 + line.time_s(1)))


@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 4, 8, 16)])
@pytest.mark.parametrize(
    "model",
    # The second is lemma 3.1 of Zou et al. 2017 with R = 0.1: an overhead that every device pays in turn.
    [RingOverhead(0.4), RingOverhead(0.0, 0.1 / 1.1), RingOverhead(0.3, 0.01)],
)
def test_the_fit_finds_the_parameters(model: RingOverhead, counts: tuple[int, ...]) -> None:
    fit = fit_scaling([(workers, 0.7 / model.efficiency(workers)) for workers in counts])
    assert fit.single_s == pytest.approx(0.7)
    assert vars(fit.model) == pytest.approx(vars(model), abs=1e-9)
    assert max(map(abs, fit.residuals)) < 1e-9


def test_two_counts_tell_the_bandwidth_alone() -> None:
    assert vars(fit_scaling([(1, 1.0), (4, 1.3)]).model) == pytest.approx({"bandwidth": 0.4, "latency": 0.0})
    with pytest.raises(InputError, match="a step does not get shorter"):
        fit_scaling([(1, 1.0), (4, 0.3)])
