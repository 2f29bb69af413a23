"""Predicted against measured step times on two CPU cores: profile, solve, run; prints a table and the median error.

    python tests/benchmarks/prediction_table.py [--models NAME…] [--devices D,D] [--steps N] [--json FILE]

Nothing else should run on these cores meanwhile: the load average is printed beside every row. Where that cannot be
had, ``--statistic fastest`` takes the fastest of many steps, of every op as of the whole step, in place of quartile and
median: what interrupts a step only ever adds time.
"""

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.prediction_jobs import JOBS

from dlplacer.devices import open_devices
from dlplacer.devices.allocator import reserve_heap
from dlplacer.fidelity.eager import EagerStep
from dlplacer.frontend import Job
from dlplacer.frontend.capture import capture_job, default_rewrites
from dlplacer.options import Options
from dlplacer.placement import place
from dlplacer.plan import Plan
from dlplacer.profile.link_times import measured_topology
from dlplacer.profile.op_times import profile_ops, with_measured_times
from dlplacer.runtime import apply
from dlplacer.simulate import replay_plan

OPTIONS = Options(contention="none", transfers="device", memory="sum", step="joint")
_WARMUP = 3
HEAD = f"{'model':<14}{'ops':>6}{'serial':>9}{'bound':>9}{'predicted':>11}{'measured':>10}{'error':>8}{'speedup':>9}"


def main() -> None:
    """Parse, measure every model, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--devices", default="cpu:0,cpu:1")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--statistic", choices=("median", "fastest"), default="median")
    parser.add_argument("--json", type=Path, help="file to which rows are appended, one JSON object a line")
    arguments = parser.parse_args()
    fastest = arguments.statistic == "fastest"
    print(f"{HEAD}{'load':>7}")
    rows = []
    for name in arguments.models:
        row = measured_row(
            name, JOBS[name], arguments.devices.split(","), arguments.steps, arguments.time_limit, fastest
        )
        rows.append(row)
        print(line_of(row), flush=True)
        if arguments.json:
            with arguments.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    errors = [row["error"] for row in rows]
    print(f"error: median {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %")


def measured_row(
    name: str, build: Callable[[], Job], devices: list[str], steps: int, time_limit_s: float, fastest: bool
) -> dict[str, Any]:
    """Profile on the devices, solve for the links between them, run, compare."""
    job = build()
    opened = open_devices(devices)
    captured = capture_job(job, default_rewrites())
    reserve_heap(sum(op.footprint_bytes for op in captured.graph.ops))
    try:
        times = profile_ops(job, captured, opened, steps, statistic=min if fastest else None)
        graph = with_measured_times(captured.graph, times)
        topology = measured_topology(opened)
    finally:
        for device in opened:
            device.close()
    plan = place(graph, topology, OPTIONS, time_limit_s=time_limit_s).plan
    predicted_s = replay_plan(plan, graph, topology).makespan_s
    measured = step_times(job, plan, devices, steps)
    of_steps = min if fastest else median
    measured_s, baseline_s = of_steps(measured["placed"]), of_steps(measured["eager"])
    return {
        "model": name,
        "ops": len(graph.ops),
        "serial_s": sum(op.time_on("cpu-core") or 0.0 for op in graph.ops),
        "bound_s": plan.lower_bound_s,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "baseline_s": baseline_s,
        "error": abs(predicted_s - measured_s) / measured_s,
        "measured_speedup": baseline_s / measured_s,
        "load": os.getloadavg()[0],
    }


def step_times(job: Job, plan: Plan, devices: list[str], steps: int) -> dict[str, list[float]]:
    """Seconds of every step after three to warm up, the placed one and plain PyTorch on one device in turn."""
    reference = copy.deepcopy(job.module)
    placed = apply(job, plan, devices)
    first = next(iter(placed.devices.values()))
    eager = EagerStep(job, reference, first.torch_device)

    def planned() -> object:
        placed.zero_grad(set_to_none=True)
        return placed.step(*job.args, *job.targets, **job.kwargs)

    variants: dict[str, Callable[[], object]] = {"placed": planned, "eager": lambda: first.submit(eager).result()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    try:
        for number in range(_WARMUP + steps):
            for name, step in variants.items():
                begin = time.perf_counter()
                step()
                if number >= _WARMUP:
                    times[name].append(time.perf_counter() - begin)
    finally:
        placed.close()
    return times


def line_of(row: dict[str, Any]) -> str:
    """One line of the table; times in milliseconds."""
    times = "".join(
        f"{1e3 * row[key]:>{width}.1f}"
        for key, width in (("serial_s", 9), ("bound_s", 9), ("predicted_s", 11), ("measured_s", 10))
    )
    return (
        f"{row['model']:<14}{row['ops']:>6}{times}{100 * row['error']:>7.1f}%{row['measured_speedup']:>8.2f}x"
        f"{row['load']:>7.1f}"
    )


if __name__ == "__main__":
    main()
