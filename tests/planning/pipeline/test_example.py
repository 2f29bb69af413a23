"""The example runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from dlplacer.planning.pipeline.schedule.action import read_csv

EXAMPLE = Path(__file__).parents[3] / "examples" / "04_pipeline.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in the checkout only")
def test_every_schedule_is_compared(tmp_path: Path) -> None:
    options = ["inception_v3-train", "dgx1-v100-2gpu", "--devices", "2", "--micro-batches", "4"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options, "--output", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split()[0] for line in done.stdout.splitlines()[1:5]]
    assert rows == ["gpipe", "1f1b", "interleaved", "zero-bubble"]
    assert (tmp_path / "pipeline.png").exists()
    assert len(read_csv((tmp_path / "pipeline.csv").read_text(encoding="utf-8"))) == 2
