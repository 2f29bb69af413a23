"""The hybrid planner: the paper's projections, brute force over all strategies, and its properties."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.planning.hybrid.epochs import CriticalBatch, EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.planning.hybrid.scaling import constant_efficiency
from dlplacer.planning.hybrid.step_times import ClosedForm, Work
from dlplacer.planning.hybrid.workers import SpeedupTable

INCEPTION = {32.0: 4.0, 64.0: 7.0, 128.0: 12.0, 256.0: 23.0}
BIG_LSTM: Mapping[float, float | None] = {16.0: 1.0, 32.0: 3.2, 64.0: None}


def plan(epochs: Mapping[float, float | None], speedups: Mapping[int, float], devices: int) -> HybridPlan:
    efficiency = StatisticalEfficiency(EpochsTable(epochs))
    return plan_hybrid(HybridProblem(Work(1.0), efficiency, SpeedupTable(speedups)), devices)


def ring(bandwidth: float, latency: float) -> Callable[[int], float]:
    """SE_N of a ring all-reduce that hides behind nothing."""
    return lambda workers: 1 / (1 + (workers - 1) * (bandwidth / workers + latency))


def threshold(efficiency: Callable[[int], float], workers: int, degree: int, epochs: tuple[float, float]) -> float:
    """Eq. 6: the SU^M above which N workers of M devices beat M·N workers of one; `epochs` are E_N and E_MN."""
    return degree * efficiency(degree * workers) / efficiency(workers) * epochs[0] / epochs[1]


@pytest.mark.parametrize(("devices", "epochs"), [(64, (4, 7)), (128, (7, 12)), (256, (12, 23))])
def test_inception_v3_on_more_than_32_devices(devices: int, epochs: tuple[float, float]) -> None:
    every = plan(INCEPTION, {2: 1.32}, 256)
    found, needed = every.at(devices), threshold(constant_efficiency(), devices // 2, 2, epochs)
    assert every.speedup_needed(devices) == pytest.approx(needed)
    assert found.against_same_devices == pytest.approx(1.32 / needed)
    assert found.best is found.hybrid


def test_speedups_of_figure_5a() -> None:
    # SU_N = N E_1 / E_N with E_1 = 4: 32, 36.57, 42.67, 44.52; hybrids 1.32 times those of half the devices
    found = plan(INCEPTION, {2: 1.32}, 256)
    alone = [found.speedup(found.at(devices).data_parallel) for devices in (32, 64, 128, 256)]
    assert alone == pytest.approx([32.0, 36.571, 42.667, 44.522], abs=1e-3)
    hybrid = [found.speedup(found.at(devices).hybrid) for devices in (64, 128, 256)]
    assert hybrid == pytest.approx([42.24, 48.274, 56.32], abs=1e-3)


def test_big_lstm_leaves_devices_idle_and_has_two_ratios() -> None:
    found = plan(BIG_LSTM, {2: 1.22}, 64)
    at_32 = found.at(32)
    assert at_32.against_best_data_parallel == pytest.approx(1.22)
    assert at_32.against_same_devices == pytest.approx(1.22 * 0.5 * 3.2)
    # without the hybrid 16 of 32 devices are best: data parallelism on all 32 has 0.625 of their speed
    assert found.speedup(at_32.best_data_parallel) == pytest.approx(16.0)
    assert plan(BIG_LSTM, {}, 32).at(32).idle == 16
    # beyond 32 workers nothing converges: 64 devices serve no better than 32
    assert found.at(64).data_parallel is None
    assert found.at(63).best is at_32.best
    assert found.at(63).idle == 31


@given(
    st.lists(st.floats(1, 50), min_size=4, max_size=4),
    st.dictionaries(st.sampled_from([2, 3, 4]), st.floats(0.5, 5), max_size=3),
    st.floats(0, 2),
    st.integers(1, 24),
)
@settings(max_examples=60)
def test_the_best_strategy_is_that_of_an_enumeration(
    epochs: list[float], speedups: dict[int, float], overhead: float, devices: int
) -> None:
    table = EpochsTable(dict(zip((1.0, 4.0, 9.0, 24.0), epochs, strict=True)))
    problem = HybridProblem(
        Work(0.5),
        StatisticalEfficiency(table),
        SpeedupTable(speedups),
        step_times=ClosedForm(ring(overhead, 0.01)),
    )
    found = plan_hybrid(problem, devices)

    def time_s(workers: int, degree: int) -> float:
        step_s = 0.5 / speedups.get(degree, 1.0) * (1 + (workers - 1) * (overhead / workers + 0.01))
        return step_s / workers * (table.epochs(workers) or 0.0)

    alternatives = [(w, m) for m in (1, *speedups) for w in range(1, devices // m + 1)]
    best = found.at(devices).best
    assert best is not None
    assert best.effort_s == pytest.approx(min(time_s(w, m) for w, m in alternatives))
    alone = min(time_s(w, 1) for w, m in alternatives if m == 1)
    assert found.at(devices).against_best_data_parallel == pytest.approx(alone / best.effort_s)
    efforts = [each.best.effort_s for each in found.budgets if each.best]
    assert efforts == sorted(efforts, reverse=True)


@given(st.floats(1.01, 1.99), st.integers(1, 40), st.floats(0, 0.5), st.floats(1, 100))
def test_a_hybrid_wins_exactly_above_the_threshold_of_eq_6(
    speedup: float, workers: int, ratio: float, critical: float
) -> None:
    efficiency, base = ring(0.0, ratio / (1 + ratio)), CriticalBatch(3.0, critical)
    problem = HybridProblem(
        Work(1.0), StatisticalEfficiency(base), SpeedupTable({2: speedup}), step_times=ClosedForm(efficiency)
    )
    needed = threshold(efficiency, workers, 2, (base.epochs(workers), base.epochs(2 * workers)))
    against = plan_hybrid(problem, 2 * workers).at(2 * workers).against_same_devices
    assert against == pytest.approx(speedup / needed)
