"""The rows of README's table that ``make demo`` gives, from several runs of it, with ranges; run it once per machine.

    python tests/benchmarks/measured_table.py [--runs 5] [--output FOLDER] [ARGUMENT OF THE DEMO…]

Every run has a folder of its own in FOLDER; those that are done are not repeated, so that an interrupted series goes on
where it ended. Nothing else should run meanwhile: runs on a machine that was not quiet are counted and said.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[2] / "examples" / "01_main_job.py"
LEAST = 5
NOISY = 0.1
"""As in `dlplacer.measure.fidelity.conclusion`, which needs torch."""


def main() -> None:
    """Run the demo until there are enough results, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=LEAST)
    parser.add_argument("--output", type=Path, default=Path("demo_runs"))
    arguments, passed_on = parser.parse_known_args()
    if arguments.runs < LEAST:
        raise SystemExit(f"--runs is {arguments.runs}; a range needs at least {LEAST}")
    reports = []
    for number in range(arguments.runs):
        folder = arguments.output / f"run{number + 1}"
        if not (folder / "run.json").exists():
            subprocess.run([sys.executable, str(DEMO), *passed_on, "--output", str(folder)], check=True)
        reports.append(json.loads((folder / "run.json").read_text()))
    print("\n".join(rows(reports, machine())))


def rows(reports: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    """Markdown rows: what, where, and the range over the runs."""
    count, baseline = len(reports), [report["baseline_s"] for report in reports]
    noisy = sum(report["noise"] > NOISY for report in reports)
    runs = f"{count} runs" + (f", {noisy} of them on a noisy machine" if noisy else "")

    def row(what: str, values: Sequence[float], unit: str, scale: float = 1.0, digits: int = 2) -> str:
        low, high = (f"{scale * value:.{digits}f}" for value in (min(values), max(values)))
        return f"| {what} | {where}, {runs} | {low if low == high else f'{low}–{high}'}{unit} |"

    yield "| what | where | result |"
    yield "| --- | --- | --- |"
    yield row("planned, over plain PyTorch on one device", [report["measured_speedup"] for report in reports], "x")
    yield row("as predicted in the same run", [report["predicted_speedup"] for report in reports], "x")
    splits = [report["beside"]["split"] for report in reports if "split" in report.get("beside", {})]
    if splits:
        yield row("with the ops that hold it up split", [split["measured_speedup"] for split in splits], "x")
    threads = [one / report["eager_all_cores_s"] for one, report in zip(baseline, reports, strict=True)]
    yield row("plain PyTorch with a thread for each core", threads, "x")
    yield row("error of the predicted step time", [report["prediction_error"] for report in reports], " %", 100, 1)
    if splits:
        yield row("the same, split", [split["prediction_error"] for split in splits], " %", 100, 1)
    yield row("runtime factor", [report["runtime_factor"] for report in reports], "", digits=3)
    yield row("contention factor", [report["contention_factor"] for report in reports], "", digits=3)
    yield row("noise of plain PyTorch", [report["noise"] for report in reports], " %", 100, 1)
    yield row("largest difference of loss and gradients", [report["max_abs_error"] for report in reports], "", digits=6)


def machine() -> str:
    """This machine: its CPU and the cores that may be used."""
    name = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        found = [line.split(":", 1)[1].strip() for line in cpus.read_text().splitlines() if "model name" in line]
        name = found[0] if found else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


if __name__ == "__main__":
    main()
