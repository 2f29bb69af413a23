"""Every number that the text of the paper determines comes out of its script."""

import json
from pathlib import Path

import pytest
from scripts import run_script

ROOT = Path(__file__).parents[3]

if not (ROOT / "examples").is_dir():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)

SCRIPT = ROOT / "examples" / "paper_003_dlplacer.py"


def test_numbers_of_the_paper() -> None:
    done = run_script(SCRIPT, "--json")
    assert done.returncode == 0, done.stderr
    numbers = {entry["name"]: entry for entry in json.loads(done.stdout)}
    stated = {name: entry for name, entry in numbers.items() if entry["basis"] == "stated"}
    assert sorted(entry["paper"] for entry in stated.values()) == [15.5, 16]
    for name, entry in stated.items():
        assert entry["here"] == pytest.approx(entry["paper"], abs=0.05), name
    here = {name: entry["here"] for name, entry in numbers.items()}
    # 2 x 1.265 / 1.32 = 1.91667 = 23 / 12; 2 x 1.08 / 1.15 = 1.87826; with them 1.32 x 0.5 x 12 / 7 = 1.13143.
    assert here["Inception-V3: epochs at 128 GPUs that the 26.5 % at 256 imply"] == pytest.approx(12.0)
    assert here["GNMT: E at 256 over E at 128 GPUs that the 8 % imply"] == pytest.approx(1.87826, abs=1e-5)
    assert here["Inception-V3, 128 GPUs: hybrid over DP, %"] == pytest.approx(13.143, abs=0.001)
    assert here["BigLSTM, 32 GPUs: hybrid over DP on 32, ratio"] == pytest.approx(1.952)
    # What the planner makes of the text's three points alone, E at 128 on the line between its neighbours.
    assumed = numbers["Inception-V3, 256 GPUs: hybrid over DP, %"]
    assert (assumed["paper"], assumed["basis"]) == (26.5, "assumed")
    assert assumed["here"] == pytest.approx(23.08, abs=0.01)


def test_the_table_states_the_caveats() -> None:
    done = run_script(SCRIPT)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "compares with data parallelism on 16 GPUs" in text
    assert "speedup by definition" in text
    assert "Cannot be reproduced from the text:" in text
