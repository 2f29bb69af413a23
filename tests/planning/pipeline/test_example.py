"""The example runs as it stands."""

from pathlib import Path

import pytest
from scripts import run_script

from dlplacer.planning.pipeline.schedule.action import read_csv

EXAMPLE = Path(__file__).parents[3] / "examples" / "04_pipeline.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in the checkout only")
def test_every_schedule_is_compared(tmp_path: Path) -> None:
    options = ["inception_v3-train", "dgx1-v100-2gpu", "--devices", "2", "--micro-batches", "4"]
    done = run_script(EXAMPLE, *options, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[0] for line in done.stdout.splitlines()[1:5]]
    assert rows == ["gpipe", "1f1b", "interleaved", "zero-bubble"]
    assert (tmp_path / "pipeline.png").exists()
    assert len(read_csv((tmp_path / "pipeline.csv").read_text(encoding="utf-8"))) == 2
