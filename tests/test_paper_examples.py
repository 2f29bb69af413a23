"""Every number that a paper's text determines comes out of the scripts, through what users call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

if not (ROOT / "examples").is_dir():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)

# What each script must hold at least: a part of the number's name → its value, and how near it must come.
EXPECTED = {
    "paper_000_htc.py": {
        "most overhead for 80 %": (1 / 11, 1e-9),
        "GPUs for a speedup of 3": (4, 0),
        "speedup on 3 GPUs": (2.54, 0.002),
        "speedup on 4 GPUs": (3.14, 0.002),
    },
    "paper_001_easgd.py": {
        "Sync EASGD1 over Original": (3.73, 0.002),
        "Sync EASGD2 over Sync EASGD1": (1.34, 0.002),
        "Sync EASGD3 over Sync EASGD2": (1.065, 0.001),
        "Sync EASGD3 over Original": (5.32, 0.002),
        "communication in percent, Sync EASGD3": (14, 0),
        "GoogleNet, 4352 cores": (91.6, 0.001),
    },
    "paper_002_ibatch.py": {"default parameter server": (73, 0.002), "over layer by layer": (41, 0.01)},
    "paper_004_terngrad.py": {
        "pushed gradients": (20.19, 0.0005),
        "2 bits for a code": (16, 0),
        "shortens by": (1.128, 0.001),
        "turns by": (2.746, 0.001),
        "percent, closed form": (68.2, 0.001),
    },
}


@pytest.mark.parametrize("script", EXPECTED)
def test_numbers_of_a_paper(script: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / script), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert all(number.keys() == {"name", "paper", "here"} for number in numbers)
    assert len({number["name"] for number in numbers}) == len(numbers)
    for number in numbers:
        if number["paper"] is not None:
            assert number["here"] == pytest.approx(number["paper"], rel=0.04), number["name"]
    for part, (value, tolerance) in EXPECTED[script].items():
        (found,) = [number for number in numbers if part in number["name"]]
        assert found["here"] == pytest.approx(value, rel=max(tolerance, 1e-12)), found["name"]
