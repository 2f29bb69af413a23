"""The example of hybrid training runs and says that it equals training on the whole batch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.random_plans import needs_two_cores

SCRIPT = Path(__file__).parents[3] / "examples" / "03_hybrid.py"

if not SCRIPT.exists():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)


@pytest.mark.slow
@needs_two_cores
@pytest.mark.timeout(150)
def test_hybrid_training_equals_the_whole_batch() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "5"], capture_output=True, text=True, check=False, timeout=140
    )
    assert done.returncode == 0, done.stderr
    difference = re.search(r"training on the whole batch: (\S+)", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-6
    assert re.search(r"all_reduce\.0: \d+ kB", done.stdout)
    losses = re.search(r"loss after 5 steps: (\S+) on \d ranks, (\S+) on one", done.stdout)
    assert losses is not None
    assert abs(float(losses[1]) - float(losses[2])) < 1e-5
