"""GNMT and BigLSTM, scaled down, as pipelines of two stages on two cores: planned, run, predicted and measured.

``python tests/benchmarks/pipeline_speedup.py [gnmt|big_lstm …]`` profiles each model, plans it with ``dlplacer pipeline
-o`` for every number of micro-batches, runs the plan with ``dlplacer run``, a process per core, and prints a table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import dlplacer.models as models
from dlplacer.frontend import Job

TIMEOUT_S = 900


def gnmt() -> Job:
    """A quarter of the scaling study's width and a sixteenth of its vocabulary."""
    return models.gnmt(batch_size=128, length=25, vocabulary=2000, hidden=256)


def big_lstm() -> Job:
    """An eighth of the paper's width."""
    return models.big_lstm(batch_size=256, length=20, vocabulary=1000, hidden=1024, projection=128)


def dlplacer(*arguments: str) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-m", "dlplacer", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measured(model: str, folder: Path, micro_batches: str, schedule: str, steps: str) -> dict[str, Any]:
    """Plan a pipeline with the times in the folder, and run it."""
    entry, plan = f"pipeline_speedup:{model}", str(folder / "plan.json")
    planned = ("--stages", "2", "--micro-batches", micro_batches, "--schedule", schedule, "--time-limit", "0")
    dlplacer("pipeline", entry, "cpu-2core", *planned, "--calibration", str(folder / "times.json"), "-o", plan)
    return dlplacer("run", plan, entry, "--devices", "rank0/cpu:0,rank1/cpu:1", "--steps", steps)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["gnmt", "big_lstm"], help="gnmt, big_lstm (both)")
    parser.add_argument("--micro-batches", default="2,4,8")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", default="7")
    parsed = parser.parse_args()
    table = Table("model", "how", "one core", "predicted", "measured", "predicted", "measured", "error", "difference")
    for model in parsed.models:
        with tempfile.TemporaryDirectory() as folder:
            times = str(Path(folder) / "times.json")
            profiled = ("--device", "cpu:0,cpu:1", "--steps", "3", "--warmup", "1", "--calibration", times)
            dlplacer("profile", f"pipeline_speedup:{model}", *profiled)
            for count in parsed.micro_batches.split(","):
                found = measured(model, Path(folder), count, parsed.schedule, parsed.steps)
                print(model, count, json.dumps(found), file=sys.stderr)
                _add(table, model, f"{parsed.schedule}, {count} micro-batches", found)
    Console(width=140).print(table)


def _add(table: Table, model: str, how: str, found: dict[str, Any]) -> None:
    times = [f"{found[name]:.3f} s" for name in ("baseline_s", "predicted_s", "measured_s")]
    ratios = [f"{found[name]:.3f}x" for name in ("predicted_speedup", "measured_speedup")]
    table.add_row(
        model, how, *times, *ratios, f"{100 * found['prediction_error']:.1f} %", f"{found['max_abs_error']:.1e}"
    )


if __name__ == "__main__":
    main()
