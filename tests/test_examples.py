"""The examples and the README's code run as they stand, on a small model or a short time limit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script

from dlplacer.machines.cores import usable_cores

ROOT = Path(__file__).parents[1]

if not (ROOT / "examples").is_dir():
    pytest.skip("the examples are in the checkout only", allow_module_level=True)


def test_main_job_leaves_its_results(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "01_main_job.py"), "--model", "dlplacer.models:branches"]
    options = ["--batch-size", "4", "--steps", "2", "--time-limit", "1", "--search", "1"]
    options += ["--output", str(tmp_path / "demo")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "demo" / "run.json").read_text())
    for name in ("baseline_s", "predicted_s", "measured_s", "predicted_speedup", "measured_speedup"):
        assert report[name] > 0
    assert report["max_abs_error"] < 1e-5
    assert report["step"] == "joint"
    plan = json.loads((tmp_path / "demo" / "plan.json").read_text())
    assert plan["format"] == "dlplacer.plan/1"
    for name in ("gantt.png", "placement.png", "memory.png", "trace.json", "plan.html", "graph.json"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000
    assert "prediction error" in done.stdout
    if len(usable_cores()) < 2:
        assert "one core" in done.stdout
    else:
        assert json.loads((tmp_path / "demo" / "graph_split.json").read_text())["format"] == "dlplacer.graph/1"
        split = tmp_path / "demo" / "run_split.json"
        assert not split.exists() or json.loads(split.read_text())["max_abs_error"] < 1e-5


def test_chip_partition_trains_the_same_in_any_number_of_parts() -> None:
    command = [sys.executable, str(ROOT / "examples" / "05_chip_partition.py"), "--steps", "4", "--batch-size", "32"]
    done = subprocess.run([*command, "--fast-memory", "4 MiB", "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Weights of 591 KiB and data of 463 KiB fit three times into 4 MiB; parts are powers of two.
    assert found["bound"] == 2
    assert [row["parts"] for row in found["parts"]] == ([1] if found["cores"] < 2 else [1, 2])
    assert all(row["cores"] * row["parts"] <= found["cores"] for row in found["parts"])
    assert all(row["difference"] < 1e-5 for row in found["parts"])


@pytest.mark.skipif(len(usable_cores()) < 2, reason="two devices need two cores")
def test_unequal_devices_are_predicted_and_measured_beside_other_splits() -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "06_unequal_devices.py"),
        "--json",
        "--steps",
        "2",
        "--rivals",
        "1",
    ]
    size = ["--layers", "3", "--hidden", "128", "--inner", "256", "--vocabulary", "1000", "--context", "64"]
    done = subprocess.run([*command, *size], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["max_abs_error"] < 1e-4
    rows = {row["split"]: row for row in found["splits"]}
    assert "fit" in rows
    assert all(sum(row["layers"]) == 3 and row["measured_tokens_per_s"] > 0 for row in rows.values())
    # No split is predicted to be faster than the best one, which is proven.
    assert found["gap"] == 0
    assert all(row["predicted_ratio"] >= 1 for row in rows.values())


def test_readme_code_prints_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    code = blocks[0].replace("time_limit_s=20", "time_limit_s=5")
    assert code != blocks[0]
    script = tmp_path / "readme.py"
    script.write_text(code.replace("plan.json", str(tmp_path / "plan.json")))
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    # How much a search of some seconds finds depends on how busy the machine is; heuristics alone find more than 1.2.
    found = re.search(r"\d+ ops: .* ms, gap .*, (\d\.\d+)x", done.stdout)
    assert found is not None, done.stdout
    assert 1.2 < float(found[1]) < 2
