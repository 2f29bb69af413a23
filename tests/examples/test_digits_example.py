"""The example that learns digits: its table, its picture, and ternary gradients within 1 % of float32."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from unittest import mock

import pytest
from scripts import run_as_ranks

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
run_async = pytest.importorskip("asynchronous", reason="the examples are in the checkout only").run_async
SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"
if not SCRIPT.is_file():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)


def run(*options: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), str(SCRIPT.parent)])}
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_method_is_in_the_table_and_in_the_picture(tmp_path: Path) -> None:
    # Processes that are started anew import torch each; forked ones have it.
    with mock.patch.dict(run_async.__kwdefaults__, start_method="fork"):
        ranks = run_as_ranks(2, SCRIPT, "--epochs", "1", "--output", tmp_path / "digits.png")
    assert [(done.returncode, bool(done.stdout)) for done in ranks] == [(0, True), (0, False)], ranks
    assert [line.split()[0] for line in ranks[0].stdout.splitlines()] == [
        "method",
        *("fp32", "fp16", "PowerSGD", "ternary", "ternary_paper", "easgd", "local_sgd", "diloco"),
        *("async_easgd", "async_sgd", "async_measgd", "async_msgd"),
        *("hogwild_easgd", "hogwild_sgd", "original_easgd", "original_sgd"),
    ]
    assert (tmp_path / "digits.png").stat().st_size > 10_000


def test_scalers_of_tensors_and_clipping_bring_the_gradients_bound_closer_to_that_of_sgd() -> None:
    from paper_004_digits import BOUNDS, bounds

    one, layers, clipped = (bounds(2.5)[name] for name in BOUNDS)
    assert 1 <= clipped < layers < one


@pytest.mark.slow
def test_ternary_gradients_are_within_one_percent_of_float32() -> None:
    runs = json.loads(run("--methods", "fp32", "ternary", "--seeds", "0", "1", "2", "--json"))
    found = {method: [one for one in runs if one["method"] == method] for method in ("fp32", "ternary")}
    assert [one["seed"] for one in found["ternary"]] == [0, 1, 2]
    exact, coded = (fmean(one["accuracy"] for one in found[method]) for method in ("fp32", "ternary"))
    assert exact > 0.97
    assert coded > exact - 0.01
    for plain, ternary in zip(*found.values(), strict=True):
        assert plain["losses"][0][2] == pytest.approx(ternary["losses"][0][2], rel=1e-6)  # The same start.
        # 149,000 of 151,000 elements as codes; None where the system does not count.
        assert plain["sent"] is None or 12 < plain["sent"] / ternary["sent"] < 16
