"""README's rows are ranges over runs, and noisy runs are counted."""

import pytest
from benchmarks.measured_table import NOISY, rows

from dlplacer.measure.fidelity.conclusion import NOISY as LIMIT


def report(speedup: float, noise: float) -> dict[str, object]:
    return {
        "baseline_s": 2.0,
        "eager_all_cores_s": 1.0,
        "measured_speedup": speedup,
        "predicted_speedup": 1.7,
        "prediction_error": 0.021,
        "runtime_factor": 1.0,
        "contention_factor": 1.1,
        "noise": noise,
        "max_abs_error": 0.0,
        "beside": {"split": {"measured_speedup": 1.9, "prediction_error": 0.004}},
    }


def test_rows_are_ranges() -> None:
    found = list(rows([report(1.5 + number / 10, 0.02 + 0.03 * number) for number in range(5)], "here"))
    assert (
        "| planned, over plain PyTorch on one device | here, 5 runs, 2 of them on a noisy machine | 1.50–1.90x |"
        in found
    )
    assert any(row.endswith("| 2.00x |") and "each core" in row for row in found)
    assert any("error of the predicted" in row and row.endswith("| 2.1 % |") for row in found)


def test_the_limit_is_that_of_the_conclusion() -> None:
    assert pytest.approx(LIMIT) == NOISY
