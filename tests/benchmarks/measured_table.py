"""README's measured rows from several runs, with ranges; run it once per machine.

    python tests/benchmarks/measured_table.py [--runs 5] [--output FOLDER] [ARGUMENT OF THE DEMO…]
    python tests/benchmarks/measured_table.py --rows FILE

The first form runs ``make fidelity`` several times. Every run has a folder of its own in FOLDER; those that are done
are not repeated, so that an interrupted series goes on where it ended. The second form takes the file that
``prediction_table.py --json`` has written: a row for every model that ran at least `LEAST` times, and one for all.
Nothing else should run meanwhile: runs on a machine that was not quiet are counted and said.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

DEMO = Path(__file__).parents[2] / "examples" / "01_main_job.py"
LEAST = 5
NOISY = 0.1
"""As in `dlplacer.measure.run_report`, which needs torch."""

Report = Mapping[str, Any]


def main() -> None:
    """Print the rows of the demo, which is run until there are enough results, or those of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=LEAST)
    parser.add_argument("--output", type=Path, default=Path("demo_runs"))
    parser.add_argument("--rows", type=Path, help="what prediction_table.py --json has written, in place of the demo")
    arguments, passed_on = parser.parse_known_args()
    if arguments.runs < LEAST:
        raise SystemExit(f"--runs is {arguments.runs}; a range needs at least {LEAST}")
    if arguments.rows is not None:
        lines = arguments.rows.read_text(encoding="utf-8").splitlines()
        print("\n".join(model_rows([json.loads(line) for line in lines if line], machine())))
        return
    reports = []
    for number in range(arguments.runs):
        folder = arguments.output / f"run{number + 1}"
        if not (folder / "run.json").exists():
            subprocess.run([sys.executable, str(DEMO), *passed_on, "--output", str(folder)], check=True)
        reports.append(json.loads((folder / "run.json").read_text()))
        if (folder / "run_split.json").exists():
            reports[-1]["split"] = json.loads((folder / "run_split.json").read_text())
    print("\n".join(rows(reports, machine())))


def rows(reports: Sequence[Report], where: str) -> Iterator[str]:
    """Markdown rows of a demo: what, where, and the range over the runs."""
    baseline = [report["baseline_s"] for report in reports]

    def row(what: str, values: Sequence[float], unit: str, scale: float = 1.0, digits: int = 2) -> str:
        return f"| {what} | {where}, {counted(reports)} | {ranged(values, scale, digits)}{unit} |"

    yield "| what | where | result |"
    yield "| --- | --- | --- |"
    yield row("planned, over plain PyTorch on one device", [report["measured_speedup"] for report in reports], "x")
    yield row("as predicted in the same run", [report["predicted_speedup"] for report in reports], "x")
    splits = [report["split"] for report in reports if "split" in report]
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


def model_rows(found: Sequence[Report], where: str) -> Iterator[str]:
    """Markdown rows, one for each model: devices and speedups over plain PyTorch on one core, and errors.

    The last row is of all models: the median of the medians, and the worst of the medians.
    """
    of_model: dict[str, list[Report]] = defaultdict(list)
    for report in found:
        of_model[report["model"]].append(report)
    enough = {name: reports for name, reports in of_model.items() if len(reports) >= LEAST}
    yield f"| {where} | devices | planned | plain PyTorch, a thread per core | error of the predicted step |"
    yield "| --- | --- | --- | --- | --- |"
    for name, reports in enough.items():
        threads = [report["baseline_s"] / report["eager_all_cores_s"] for report in reports]
        speedups = ranged([report["measured_speedup"] for report in reports])
        errors = ranged([report["error"] for report in reports], 100, 1)
        used = ", ".join(sorted({str(report["devices"]) for report in reports}))
        yield f"| {name}, {counted(reports)} | {used} | {speedups}x | {ranged(threads)}x | {errors} % |"
    if enough:
        usual = [100 * median(report["error"] for report in reports) for reports in enough.values()]
        slowest = min(median(report["measured_speedup"] for report in reports) for reports in enough.values())
        yield (
            f"| {len(enough)} models, medians | | at least {slowest:.2f}x | | median {median(usual):.1f} %, worst "
            f"{max(usual):.1f} % |"
        )


def counted(reports: Sequence[Report]) -> str:
    """How many runs there were, and on how noisy a machine."""
    noisy = sum(report["noise"] > NOISY for report in reports)
    return f"{len(reports)} runs" + (f", {noisy} of them on a noisy machine" if noisy else "")


def ranged(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """From the smallest to the largest."""
    low, high = (f"{scale * value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


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
