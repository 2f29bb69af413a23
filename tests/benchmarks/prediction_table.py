"""Predicted against measured step times on two CPU cores: profile, solve, run; prints a table and the median error.

    python tests/benchmarks/prediction_table.py [--models NAME…] [--devices D,D] [--steps N] [--method M] [--json FILE]

Nothing else should run on these cores meanwhile: the load average is printed beside every row. ``planned`` is what the
plan promised under the costs that it was made with; ``predicted`` is its replay under costs of the same run.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.prediction_jobs import JOBS

from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.fidelity.run_plan import run
from dlplacer.planning.place import place
from dlplacer.runtime.devices import open_devices
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.profile.detected_links import with_timed_dispatch
from dlplacer.runtime.profile.link_times import measured_topology
from dlplacer.runtime.profile.op_times import with_measured_times
from dlplacer.runtime.profile.short_ops import times_for_planning
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
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument(
        "--method", default=DEFAULT_METHOD, help="how plans are found; heft puts small ops on both devices too"
    )
    parser.add_argument("--json", type=Path, help="file to which rows are appended, one JSON object a line")
    arguments = parser.parse_args()
    print(HEAD)
    rows = []
    for name in arguments.models:
        row = measured_row(name, JOBS[name], arguments)
        rows.append(row)
        print(line_of(row), flush=True)
        if arguments.json:
            with arguments.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    errors = [row["error"] for row in rows]
    print(f"error: median {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %")


def measured_row(name: str, build: Callable[[], Job], arguments: argparse.Namespace) -> dict[str, Any]:
    """Profile on the devices, solve for the links between them, run, compare."""
    devices = arguments.devices.split(",")
    plan = planned(build(), devices, arguments.time_limit, arguments.method)
    report = run(build(), plan, devices, arguments.steps).report
    return {
        "model": name,
        "ops": len(plan.ops),
        "planned_s": plan.makespan_s,
        "bound_s": plan.lower_bound_s,
        "predicted_s": report.predicted_s,
        "measured_s": report.measured_s,
        "baseline_s": report.baseline_s,
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
    captured = capture_job(job, default_rewrites())
    reserve_heap(sum(op.footprint_bytes for op in captured.graph.ops))
    opened = open_devices(devices)
    try:
        graph = with_measured_times(captured.graph, times_for_planning(job, captured, opened))
        here = with_timed_dispatch(measured_topology(opened), opened)
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
