"""Predicted against measured step times on two CPU cores: profile, solve, run; prints a table and the median error.

    python tests/benchmarks/prediction_table.py [--models NAME…] [--devices D,D] [--runs N] [--steps N] [--method M]
        [--plans FOLDER] [--json FILE]

Nothing else should run on these cores meanwhile: the load average is printed beside every row. ``planned`` is what the
plan promised under the costs that it was made with; ``predicted`` is its replay under costs of the same run. Plans are
made as after ``dlplacer profile`` and ``dlplacer topology detect --measure``.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.prediction_jobs import JOBS

from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.files.load import load_plan
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.prediction import used_devices
from dlplacer.measure.run_plan import run
from dlplacer.planning.place import place
from dlplacer.runtime.devices import open_devices
from dlplacer.runtime.profile.machine_times import measured_topology, with_timed_issue
from dlplacer.runtime.profile.op_times import profile_ops, timed_capture, with_measured_times
from dlplacer.solvers.methods import DEFAULT_METHOD

OPTIONS = Options(contention="none", transfers="device", memory="sum", step="joint")
HEAD = (
    f"{'model':<18}{'ops':>6}{'planned':>10}{'bound':>9}{'predicted':>11}{'measured':>10}{'error':>8}{'speedup':>9}"
    f"{'runtime':>9}{'contention':>12}{'noise':>8}{'load':>7}"
)


def main() -> None:
    """Parse, measure every model, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--devices", default="cpu:0,cpu:1")
    parser.add_argument("--runs", type=int, default=1, help="of every plan; 0 only makes plans, for --plans")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument(
        "--method", default=DEFAULT_METHOD, help="how plans are found; heft puts small ops on both devices too"
    )
    parser.add_argument("--plans", type=Path, help="folder of plans that were made before, and where new ones go")
    parser.add_argument("--json", type=Path, help="file to which rows are appended, one JSON object a line")
    arguments = parser.parse_args()
    print(HEAD)
    rows = []
    for name in arguments.models:
        plan = plan_of(name, arguments)
        for _ in range(arguments.runs):
            row = measured_row(name, plan, arguments)
            rows.append(row)
            print(line_of(row), flush=True)
            if arguments.json:
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    errors = [row["error"] for row in rows]
    if errors:
        print(f"error: median {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %")


def plan_of(name: str, arguments: argparse.Namespace) -> Plan:
    """The plan of a job: one that was made before, or profiled on the devices and solved for the links between them."""
    file = None if arguments.plans is None else arguments.plans / f"{name}.json"
    if file is not None and file.exists():
        return load_plan(file)
    plan = planned(JOBS[name](), arguments.devices.split(","), arguments.time_limit, arguments.method)
    if file is not None:
        arguments.plans.mkdir(parents=True, exist_ok=True)
        plan.save(file)
    return plan


def measured_row(name: str, plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a plan, and compare."""
    report = run(JOBS[name](), plan, arguments.devices.split(","), arguments.steps).report
    return {
        "model": name,
        "ops": len(plan.ops),
        "devices": len(used_devices(plan)),
        "planned_s": plan.makespan_s,
        "bound_s": plan.lower_bound_s,
        "predicted_s": report.predicted_s,
        "measured_s": report.measured_s,
        "baseline_s": report.baseline_s,
        "eager_all_cores_s": report.eager_all_cores_s,
        "error": report.prediction_error,
        "predicted_speedup": report.predicted_speedup,
        "measured_speedup": report.measured_speedup,
        "runtime_factor": report.runtime_factor,
        "contention_factor": report.contention_factor,
        "noise": report.noise,
        "conclusion": report.conclusion,
        "load": os.getloadavg()[0],
    }


def planned(job: Job, devices: list[str], time_limit_s: float, method: str = DEFAULT_METHOD) -> Plan:
    """The best plan found for the devices as they were just measured."""
    opened = open_devices(devices)
    try:
        captured, times = timed_capture(
            job,
            lambda more: capture_job(job, [*default_rewrites(), *more]),
            lambda captured: profile_ops(job, captured, opened),
            on_cores=True,
        )
        graph = with_measured_times(captured.graph, times)
        here = with_timed_issue(measured_topology(opened), opened)
        return place(graph, here, OPTIONS, method=method, time_limit_s=time_limit_s).plan
    finally:
        for device in opened:
            device.close()


def line_of(row: dict[str, Any]) -> str:
    """One line of the table; times in milliseconds."""
    columns = (("planned_s", 10), ("bound_s", 9), ("predicted_s", 11), ("measured_s", 10))
    times = "".join(f"{1e3 * row[key]:>{width}.1f}" for key, width in columns)
    return (
        f"{row['model']:<18}{row['ops']:>6}{times}{100 * row['error']:>7.1f}%{row['measured_speedup']:>8.2f}x"
        f"{row['runtime_factor']:>9.2f}{row['contention_factor']:>12.2f}{100 * row['noise']:>7.1f}%{row['load']:>7.1f}"
    )


if __name__ == "__main__":
    main()
