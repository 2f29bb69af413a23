"""Statistical efficiency: tables, the critical-batch form and its fit, files."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.machines.costs.gradient_codecs import CODECS
from dlplacer.planning.hybrid.epochs import (
    CriticalBatch,
    EpochsTable,
    StatisticalEfficiency,
    fit_critical_batch,
    read_epochs,
)


@given(st.floats(0.5, 50), st.floats(1, 1000))
def test_the_fit_finds_the_form_again(minimum: float, critical: float) -> None:
    truth = CriticalBatch(minimum, critical)
    fit = fit_critical_batch([(batch, truth.epochs(batch)) for batch in (8, 16, 64, 256)])
    assert fit.minimum_epochs == pytest.approx(minimum, rel=1e-6)
    assert fit.critical == pytest.approx(critical, rel=1e-6)
    assert max(map(abs, fit.residuals)) < 1e-8
    # and a table of such points is read exactly between them
    table = EpochsTable({batch: truth.epochs(batch) for batch in (8, 256)})
    assert table.epochs(100) == pytest.approx(truth.epochs(100))


def test_inception_v3_beyond_its_critical_batch() -> None:
    # by absolute errors E = 1.55 + 0.084 N; by relative ones, as here, small batches weigh more
    fit = fit_critical_batch([(32, 4), (64, 7), (128, 12), (256, 23)])
    assert fit.minimum_epochs == pytest.approx(1.34, abs=0.01)
    assert fit.minimum_epochs / fit.critical == pytest.approx(0.0847, abs=0.001)
    assert max(map(abs, fit.residuals)) < 0.035
    assert len(fit.residuals) == 4


def test_ternary_codes_cost_at_most_their_noise_and_nothing_at_large_batches() -> None:
    efficiency = StatisticalEfficiency(CriticalBatch(4.0, 100.0))
    ratios = [(efficiency.epochs(n, "ternary") or 0) / (efficiency.epochs(n) or 1) for n in (1, 10, 100, 10_000)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(CODECS["ternary"], abs=0.02)
    assert ratios[2] == pytest.approx((1 + CODECS["ternary"]) / 2)
    assert ratios[3] == pytest.approx(1.0, abs=0.02)
    assert efficiency.epochs(10, "fp16") == efficiency.epochs(10)
    alone = StatisticalEfficiency(EpochsTable({32: 4.0}))
    assert alone.epochs(8, "ternary") == pytest.approx(4.0 * CODECS["ternary"])
    measured = StatisticalEfficiency(EpochsTable({32: 4.0}), {"ternary": 1.05})
    assert measured.epochs(8, "ternary") == pytest.approx(4.2)


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
