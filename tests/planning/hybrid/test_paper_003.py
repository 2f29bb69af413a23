"""Every number that the text of the paper determines comes out of its script."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

if not (ROOT / "examples").is_dir():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)

SCRIPT = [sys.executable, str(ROOT / "examples" / "paper_003_dlplacer.py")]


def test_numbers_of_the_paper() -> None:
    done = subprocess.run([*SCRIPT, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert all(entry.keys() == {"name", "paper", "here"} for entry in numbers.values())
    stated = {name: entry["paper"] for name, entry in numbers.items() if entry["paper"] is not None}
    assert sorted(stated.values()) == [8.0, 15.5, 22.0, 26.5]
    for name, paper in stated.items():
        assert numbers[name]["here"] == pytest.approx(paper, abs=0.05), name
    assert numbers["Inception-V3, 128 GPUs: hybrid over DP, %"]["here"] == pytest.approx(13.143, abs=0.001)


def test_the_table_states_the_caveats() -> None:
    done = subprocess.run(SCRIPT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "lies in [1.870, 1.887)" in text
    assert "compares 32 GPUs with data parallelism on 16" in text
    assert "Cannot be reproduced from the text:" in text
