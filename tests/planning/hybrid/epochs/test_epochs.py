"""Statistical efficiency: tables, the critical-batch form and its fit, files."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.machines.costs.gradient_codecs import CODECS
from dlplacer.planning.hybrid.epochs.critical_batch import CriticalBatch, fit_critical_batch
from dlplacer.planning.hybrid.epochs.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.epochs.epochs_file import read_epochs


def test_a_table_is_read_between_its_entries_below_and_above() -> None:
    table = EpochsTable({32: 4.0, 64: 7.0, 256: 23.0, 512: None})
    assert [table.epochs(n) for n in (1, 32, 48, 64, 160, 256)] == [4.0, 4.0, 5.5, 7.0, 15.0, 23.0]
    assert [table.epochs(n) for n in (257, 512, 1000)] == [None, None, None]


@given(st.floats(0.5, 50), st.floats(1, 1000))
def test_the_fit_finds_the_form_again(minimum: float, critical: float) -> None:
    truth = CriticalBatch(minimum, critical)
    fit = fit_critical_batch([(batch, truth.epochs(batch)) for batch in (8, 16, 64, 256)])
    assert fit.model.minimum_epochs == pytest.approx(minimum, rel=1e-6)
    assert fit.model.critical == pytest.approx(critical, rel=1e-6)
    assert fit.largest_residual < 1e-8
    # and a table of such points is read exactly between them
    table = EpochsTable({batch: truth.epochs(batch) for batch in (8, 256)})
    assert table.epochs(100) == pytest.approx(truth.epochs(100))


def test_inception_v3_beyond_its_critical_batch() -> None:
    # by absolute errors E = 1.55 + 0.084 N; by relative ones, as here, small batches weigh more
    fit = fit_critical_batch([(32, 4), (64, 7), (128, 12), (256, 23)])
    assert fit.model.minimum_epochs == pytest.approx(1.34, abs=0.01)
    assert fit.model.minimum_epochs / fit.model.critical == pytest.approx(0.0847, abs=0.001)
    assert fit.largest_residual < 0.035
    assert len(fit.residuals) == 4


def test_epochs_that_fall_with_the_batch_are_fitted_flat() -> None:
    fit = fit_critical_batch([(2, 5.2), (4, 5.0)])
    assert fit.model.critical == float("inf")
    assert fit.model.epochs(1000) == pytest.approx(5.1, abs=0.02)
    assert fit.to_dict()["critical_mini_batches"] is None
    assert "do not grow with the batch, residuals up to 2" in str(fit)


def test_ternary_codes_cost_at_most_their_noise_and_nothing_at_large_batches() -> None:
    efficiency = StatisticalEfficiency(CriticalBatch(4.0, 100.0))
    ratios = [(efficiency.epochs(n, "ternary") or 0) / (efficiency.epochs(n) or 1) for n in (1, 10, 100, 10_000)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(CODECS["ternary"].noise, abs=0.02)
    assert ratios[2] == pytest.approx((1 + CODECS["ternary"].noise) / 2)
    assert ratios[3] == pytest.approx(1.0, abs=0.02)
    assert efficiency.epochs(10, "fp16") == efficiency.epochs(10)
    alone = StatisticalEfficiency(EpochsTable({32: 4.0}))
    assert alone.epochs(8, "ternary") == pytest.approx(4.0 * CODECS["ternary"].noise)
    measured = StatisticalEfficiency(EpochsTable({32: 4.0}), {"ternary": 1.05})
    assert measured.epochs(8, "ternary") == pytest.approx(4.2)


def test_periods_are_those_that_are_known() -> None:
    efficiency = StatisticalEfficiency(EpochsTable({8: 2.0}), period_factors={4: 1.1, 16: 1.5})
    assert efficiency.periods == (1, 4, 16)
    assert [efficiency.epochs(8, "none", period) for period in (1, 4, 16)] == pytest.approx([2.0, 2.2, 3.0])
    assert StatisticalEfficiency(EpochsTable({8: 2.0})).periods == (1,)


def written(tmp_path: Path, **content: Any) -> Path:
    path = tmp_path / "epochs.json"
    path.write_text(json.dumps({"format": "dlplacer.epochs/1", **content}))
    return path


def test_a_file_by_devices(tmp_path: Path) -> None:
    factors = {"codec_factor": {"ternary": 1.1}, "period_factor": {"4": 1.2}}
    data = read_epochs(written(tmp_path, name="net", samples=1000, epochs={"8": 2, "16": None}, **factors))
    assert data.efficiency.epochs(8) == 2.0
    assert data.efficiency.epochs(16) is None
    assert data.efficiency.epochs(8, "ternary", 4) == pytest.approx(2.0 * 1.1 * 1.2)
    assert (data.mini_batch, data.samples, data.name) == (None, 1000, "net")


def test_a_file_by_batch_counts_samples(tmp_path: Path) -> None:
    data = read_epochs(written(tmp_path, by="batch", mini_batch=64, epochs={"2048": 4, "16384": 23}))
    assert data.efficiency.epochs(32) == 4.0
    assert data.efficiency.epochs(256) == 23.0
    form = {"minimum_epochs": 4, "critical_batch": 2048}
    data = read_epochs(written(tmp_path, by="batch", mini_batch=64, critical_batch=form))
    assert data.efficiency.epochs(32) == 8.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "epochs: give either 'epochs' or 'critical_batch'"),
        (
            {"epochs": {"1": 2}, "critical_batch": {"minimum_epochs": 1, "critical_batch": 1}},
            "epochs: give either 'epochs' or 'critical_batch'",
        ),
        ({"epochs": {"1": 2}, "by": "batch"}, r"mini_batch: required where 'by' is \"batch\""),
        ({"epochs": {"1.5": 2}}, r"epochs.1.5: the key must be a whole number of devices, at least 1"),
        ({"epochs": {"1": -2}}, r"epochs.1: must be above 0.0 \(it is -2\)"),
        ({"epochs": {"1": "many"}}, r"epochs.1: must be a number"),
        ({"epochs": {"1": None}}, "has no entry with a number"),
        ({"epochs": {"1": None, "2": 3}}, "nothing converges at 1 mini-batches, but something does at 2"),
        ({"epochs": {"1": 2}, "period_factor": {"0": 1}}, r"period_factor.0: the key must be a whole number of steps"),
        ({"epochs": {"1": 2}, "epoch": 3}, "epoch: unknown field; remove it or put it under 'meta'"),
        ({"critical_batch": {"minimum_epochs": 1}}, r"critical_batch.critical_batch: required, but missing"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_epochs(written(tmp_path, **content))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"is newer than 'dlplacer.epochs/1'; update dlplacer"):
        read_epochs(written(tmp_path, format="dlplacer.epochs/2"))
    with pytest.raises(InputError, match="cannot read"):
        read_epochs(tmp_path / "nowhere.json")


def test_mistakes_in_values() -> None:
    with pytest.raises(InputError, match=r"2.0 epochs at -1 mini-batches; both must be positive"):
        EpochsTable({-1: 2.0})
    with pytest.raises(InputError, match="critical batch: critical is 0"):
        CriticalBatch(1.0, 0.0)
    with pytest.raises(InputError, match="a batch of 0; it must be positive"):
        CriticalBatch(1.0, 1.0).epochs(0)
    with pytest.raises(InputError, match="give epochs at two different batches or more"):
        fit_critical_batch([(8, 2.0), (8, 3.0)])
    with pytest.raises(InputError, match="batch and epochs must be positive"):
        fit_critical_batch([(8, 2.0), (9, -3.0)])
    with pytest.raises(InputError, match="codec 'ternary': the factor of epochs is -1"):
        StatisticalEfficiency(EpochsTable({8: 2.0}), {"ternary": -1.0})
    with pytest.raises(InputError, match="period 0: steps between exchanges"):
        StatisticalEfficiency(EpochsTable({8: 2.0}), period_factors={0: 1.0})


LONG = "1" * 5000
"""More digits than Python turns into a number."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epochs": {LONG: 4}}, r"epochs\.1+…?: the key must be a whole number of devices"),
        ({"epochs": {"1" * 400: 4}}, r"epochs\.1+…?: the key must be a whole number of devices"),
        ({"epochs": {"٣": 4}}, r"epochs\.٣: the key must be a whole number of devices"),
        ({"epochs": {"1": 4}, "period_factor": {LONG: 1.5}}, r"period_factor\.1+…?: the key must be a whole number"),
        ({"epochs": {"1": 4, "01": 5}}, r"epochs\.01: means the same as '1'; remove one"),
        ({"epochs": {"1": 4}, "period_factor": {"4": 1.5, "04": 2}}, r"period_factor\.04: means the same as '4'"),
        ({"epochs": {"1": 4}, "mini_batch": 10**400}, r"mini_batch: must be below"),
        ({"epochs": {"1": 4}, "samples": 10**400}, r"samples: must be below"),
        ({"epochs": {"1": 1e308}}, r"epochs.1: must be at most 1e\+12"),
        ({"critical_batch": {"minimum_epochs": 1e308, "critical_batch": 1}}, r"minimum_epochs: must be at most 1e\+12"),
        ({"critical_batch": {"minimum_epochs": 1, "critical_batch": 1e-320}}, r"critical_batch: must be at least"),
    ],
)
def test_numbers_that_nothing_can_be_computed_with(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "epochs.json"
    path.write_text(json.dumps({"format": "dlplacer.epochs/1"} | content))
    with pytest.raises(FileFormatError, match=message):
        read_epochs(path)
