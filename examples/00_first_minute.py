"""The first minute: Inception-V3 on two GPUs, planned five ways, then a small model planned and run on two cores.

Run it with ``make demo``. The first half needs no GPU, as op times come from a roofline; the second runs here.
"""

import argparse
import os
from collections import defaultdict
from pathlib import Path

import dlplacer as dp
from dlplacer.models import branches

GRAPH, MACHINE = "inception_v3-train", "dgx1-v100-2gpu"
WAYS = {
    "one GPU": "single",
    "rule of thumb: halve blocks": "list",
    "HEFT, a list schedule": "heft",
    "min-cut partition": "min-cut",
    "dlplacer": "ilp",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for the plan of two GPUs")
    parser.add_argument("--output", type=Path, default=Path("demo"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    plan_for_gpus(arguments.time_limit, arguments.output)
    run_on_cores()
    print(f"pictures, and plan.html, which opens by a double click, are in {arguments.output}/")


def plan_for_gpus(time_limit_s: float, output: Path) -> None:
    """Print a line for each way to place the training step, and draw the best."""
    graph, machine = dp.load_graph(GRAPH), dp.load_topology(MACHINE)
    print(f"{GRAPH} on {MACHINE}: {len(graph.ops)} ops, batch 32, op times by a roofline of the V100")
    alone_s = 0.0
    for name, method in WAYS.items():
        pins = halves_of_blocks(graph) if name.startswith("rule") else {}
        result = dp.place(graph, machine, method=method, time_limit_s=time_limit_s, pins=pins)
        plan = result.plan
        alone_s = alone_s or plan.makespan_s
        print(f"  {name:27} {plan.makespan_s * 1e3:6.1f} ms  {alone_s / plan.makespan_s:.2f}x", flush=True)
    bound_s = plan.lower_bound_s
    print(f"  {'no plan is shorter than':27} {bound_s * 1e3:6.1f} ms  {alone_s / bound_s:.2f}x  gap {plan.gap:.2%}")
    plan.save(output / "plan.json")
    dp.show(plan).save(output / "plan.html")
    draw(plan, output)


def draw(plan: dp.Plan, output: Path) -> None:
    """Draw devices and links over time, the placement, and the memory."""
    for name in ("gantt", "placement", "memory"):
        getattr(dp.plot, name)(plan).figure.savefig(output / f"{name}.png", dpi=150, bbox_inches="tight")


def halves_of_blocks(graph: dp.OpGraph) -> dict[str, str]:
    """Share the branches of every block between two GPUs by their work, as an expert places them by hand.

    What is outside the blocks stays on the first GPU.
    """
    work: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for op in graph.ops:
        block, _, branch = (op.module or "").partition(".")
        if block.startswith("Mixed"):
            work[block][branch.split(".")[0].split("_")[0]] += op.time_on("V100") or 0.0
    pins = {}
    for block, parts in work.items():
        load = {"gpu0": 0.0, "gpu1": 0.0}
        for branch in sorted(parts, key=parts.__getitem__, reverse=True):
            gpu = min(load, key=load.__getitem__)
            load[gpu] += parts[branch]
            pins |= {op.id: gpu for op in graph.ops if (op.module or "").startswith(f"{block}.{branch}")}
    return {op.id: pins.get(op.id, "gpu0") for op in graph.ops}


def run_on_cores() -> None:
    """Plan a model of three branches for two cores of this machine, run it, and compare."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2:
        print("this machine has one core: the small model is not run")
        return
    devices = ["cpu:0", "cpu:1"]
    job = branches(batch_size=32)
    graph = dp.profile(job, devices)
    plan = dp.place(graph, "cpu-2core", time_limit_s=5.0).plan
    report = dp.run(job, plan, devices, steps=10).report
    print(f"three branches of convolutions on two cores of this machine: {len(graph.ops)} ops, op times measured")
    print(f"  difference of loss and gradients to plain PyTorch: {report.max_abs_error:g}")
    print(f"  a step: predicted {report.predicted_s * 1e3:.1f} ms, measured {report.measured_s * 1e3:.1f} ms", end="")
    print(f", plain PyTorch on one core {report.baseline_s * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
