"""GNMT and BigLSTM, scaled down, as pipelines of two stages on two cores: predicted and measured, and op placement.

``python tests/benchmarks/pipeline_speedup.py [gnmt|big_lstm …]`` prints a table. The pipeline runs under torchrun, one
process for each core; op placement runs the best plan of `dlplacer.place` in one process with a thread for each core.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

SCALED_DOWN: dict[str, dict[str, int]] = {
    "gnmt": {"batch_size": 128, "length": 25, "vocabulary": 2000, "hidden": 256},
    "big_lstm": {"batch_size": 256, "length": 20, "vocabulary": 1000, "hidden": 1024, "projection": 128},
}
TIMEOUT_S = 400


def pipeline(model: str, micro_batches: str, schedule: str | None, steps: int) -> dict[str, Any]:
    """What `run_pipeline` reports."""
    command = [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "dlplacer.runtime.pipeline.main", f"dlplacer.models:{model}"),
        *("--arguments", json.dumps(SCALED_DOWN[model]), "--micro-batches", micro_batches, "--steps", str(steps)),
        *(("--schedule", schedule) if schedule else ()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def op_placement(model: str, steps: int, time_limit_s: float) -> dict[str, Any]:
    """What `dlplacer.measure.fidelity.run_plan` reports of the best plan found."""
    import dlplacer as dp
    import dlplacer.models
    from dlplacer.frontend.torch.capture import capture_job, default_rewrites
    from dlplacer.measure.fidelity.run_plan import run
    from dlplacer.runtime.devices import open_devices
    from dlplacer.runtime.devices.allocator import reserve_heap
    from dlplacer.runtime.profile.link_times import measured_topology
    from dlplacer.runtime.profile.op_times import profile_ops, with_measured_times

    job = getattr(dlplacer.models, model)(**SCALED_DOWN[model])
    captured = capture_job(job, default_rewrites())
    opened = open_devices(["cpu:0", "cpu:1"])
    try:
        reserve_heap(sum(op.footprint_bytes for op in captured.graph.ops))
        graph = with_measured_times(captured.graph, profile_ops(job, captured, opened, steps=4, warmup=1))
        topology = measured_topology(opened)
    finally:
        for device in opened:
            device.close()
    plan = dp.place(graph, topology, dp.Options(step="joint"), time_limit_s=time_limit_s).plan
    report = run(job, plan, ["cpu:0", "cpu:1"], steps=steps, warmup=2).report
    return report.to_dict()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(SCALED_DOWN), help="gnmt, big_lstm (both)")
    parser.add_argument("--micro-batches", default="2,4,8,16")
    parser.add_argument("--schedule")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument(
        "--time-limit", type=float, default=20.0, help="seconds to look for an op placement; 0 leaves it out"
    )
    parser.add_argument("--only", choices=("pipeline", "placement"), help="measure this alone")
    parsed = parser.parse_args()
    table = Table("model", "how", "one core", "predicted", "measured", "predicted", "measured", "error", "difference")
    for model in parsed.models:
        if parsed.only != "placement":
            found = pipeline(model, parsed.micro_batches, parsed.schedule, parsed.steps)
            print(json.dumps(found), file=sys.stderr)
            _add(table, model, f"{found['schedule']}, {found['micro_batches']} micro-batches", found)
        if parsed.only != "pipeline" and parsed.time_limit:
            placed = op_placement(model, parsed.steps, parsed.time_limit)
            print(json.dumps(placed), file=sys.stderr)
            _add(table, model, "op placement", placed)
    Console(width=140).print(table)


def _add(table: Table, model: str, how: str, found: dict[str, Any]) -> None:
    times = [f"{found[name]:.3f} s" for name in ("baseline_s", "predicted_s", "measured_s")]
    ratios = [f"{found[name]:.3f}x" for name in ("predicted_speedup", "measured_speedup")]
    table.add_row(
        model, how, *times, *ratios, f"{100 * found['prediction_error']:.1f} %", f"{found['max_abs_error']:.1e}"
    )


if __name__ == "__main__":
    main()
