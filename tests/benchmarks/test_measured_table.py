"""README's rows are ranges over runs, and noisy runs are counted."""

import pytest
from benchmarks.measured_table import NOISY, model_rows, rows

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


def test_models_with_enough_runs_have_a_row_each() -> None:
    def row(model: str, speedup: float, error: float) -> dict[str, object]:
        common = {"devices": 2, "baseline_s": 2.0, "eager_all_cores_s": 1.0, "noise": 0.02}
        return {"model": model, "measured_speedup": speedup, "error": error, **common}

    slow = [row("slow", 0.98 + number / 100, 0.05) for number in range(5)]
    fast = [row("fast", 1.7, 0.01 * number) for number in range(5)]
    found = list(model_rows([*slow, *fast, row("once", 0.5, 0.9)], "here"))[2:]
    assert found == [
        "| slow, 5 runs | 2 | 0.98–1.02x | 2.00x | 5.0 % |",
        "| fast, 5 runs | 2 | 1.70x | 2.00x | 0.0–4.0 % |",
        "| 2 models, medians | | at least 1.00x | | median 3.5 %, worst 5.0 % |",
    ]
