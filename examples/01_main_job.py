"""The main job: a model's training step → measured costs → proven plan → two devices, predicted and measured.

Run it with ``make fidelity``. It profiles Inception-V3 on two CPU cores, plans the step, shows the plan, runs it, and
puts prediction and measurement side by side; everything that it finds goes into one folder.
"""

import argparse
import json
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

import dlplacer as dp
from dlplacer.cli.main import main as dlplacer
from dlplacer.core.units import format_seconds

_PROFILED = "3"
"""Timed steps of a profile: a step takes seconds, so three are enough."""


def main() -> None:
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    graph_file, plan_file = arguments.output / "graph.json", arguments.output / "plan.json"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    devices = [f"cpu:{core}" for core in range(min(2, cores))]

    say(f"1. profile {arguments.model}, batch {arguments.batch_size}, on {', '.join(devices)}")
    batch = ["--batch-size", str(arguments.batch_size), "--steps", _PROFILED]
    call("profile", arguments.model, *batch, "--device", ",".join(devices), "-o", str(graph_file))

    say("2. plan it on two cores")
    topology, options = dp.load_topology("cpu-2core"), dp.Options(step=arguments.step)
    result = dp.place(dp.load_graph(graph_file), topology, options, time_limit_s=arguments.time_limit, gap=0.001)
    if len(devices) < 2:
        say("This machine has one core: the plan for two can be predicted, but only a plan for one can be run.")
        say(f"predicted on two cores: {format_seconds(result.plan.makespan_s)}, {result.speedup:.3f}x")
        alone = dp.Topology(topology.devices[:1], name="one core")
        result = dp.place(dp.load_graph(graph_file), alone, options)
    result.plan.save(plan_file)
    call("check", str(plan_file))

    split_plan = None
    if len(devices) > 1 and arguments.search:
        split_plan = plan_with_splits(arguments, graph_file, devices, topology, options)

    say("4. show it")
    pictures = [f"--{name}={arguments.output / name}.png" for name in ("gantt", "placement", "memory")]
    others = [f"--trace={arguments.output / 'trace.json'}", f"--html={arguments.output / 'plan.html'}"]
    call("show", str(plan_file), *pictures, *others)

    say(f"5. run it on {', '.join(devices)}")
    from dlplacer.measure.run_report import NOISY

    job = dp.load_job(arguments.model, batch_size=arguments.batch_size)
    report = dp.run(job, result.plan, devices, steps=arguments.steps).report
    split = None if split_plan is None else dp.run(job, split_plan, devices, steps=arguments.steps).report
    for name, found in (("run", report), ("run_split", split)):
        if found is not None:
            (arguments.output / f"{name}.json").write_text(json.dumps(found.to_dict(), indent=2) + "\n")

    heads = ("one training step", "seconds", f"half of {report.steps} steps", "speedup")
    table = Table(*heads, title=f"{arguments.model}, batch {arguments.batch_size}")
    serial_s = result.single_device_s or report.baseline_s

    def row(name: str, seconds: float, base_s: float, around: tuple[float, float] | None = None) -> None:
        between = "" if around is None else f"{around[0]:.4f} to {around[1]:.4f}"
        table.add_row(name, f"{seconds:.4f}", between, f"{base_s / seconds:.3f}x")

    row("serial: all op times, one device", serial_s, serial_s)
    row("bound: critical path", result.bounds["critical_path_s"], serial_s)
    row("bound: work shared evenly", result.bounds["area_s"], serial_s)
    row("bound: best, proven", result.plan.lower_bound_s, serial_s)
    row(f"plan ({result.status}, gap {100 * result.plan.gap:.2f} %)", result.plan.makespan_s, serial_s)
    base_s = report.baseline_s
    row("predicted: planned, costs of this run", report.predicted_s, base_s)
    row("measured: planned", report.measured_s, base_s, report.measured_quartiles_s)
    if split is not None and split_plan is not None:
        count = len({op.origin for op in split_plan.graph.ops if op.origin})
        row(f"plan: {count} ops split", split_plan.makespan_s, serial_s)
        row(f"predicted: {count} ops split", split.predicted_s, base_s)
        row(f"measured: {count} ops split", split.measured_s, base_s, split.measured_quartiles_s)
    row("measured: plain PyTorch, one device", base_s, base_s, report.baseline_quartiles_s)
    if report.eager_all_cores_s is not None:
        row(
            f"measured: plain PyTorch, {cores} threads",
            report.eager_all_cores_s,
            base_s,
            report.eager_all_cores_quartiles_s,
        )
    Console(width=None if Console().is_terminal else 100).print(table)
    say(report.conclusion)
    say(
        f"runtime factor {report.runtime_factor:.3f}, contention factor {report.contention_factor:.3f}, noise "
        f"{100 * report.noise:.1f} %"
    )
    say(
        f"prediction error {100 * report.prediction_error:.2f} %; largest difference of loss and gradients to plain "
        f"PyTorch {report.max_abs_error:.3g}"
    )
    if split is not None:
        say(f"with splits: {100 * split.prediction_error:.2f} % and {split.max_abs_error:.3g}")
    if report.noise > NOISY:
        say(
            f"This machine was not quiet: half of plain PyTorch's own steps spread over {100 * report.noise:.0f} % of "
            f"their length, more than {100 * NOISY:.0f} %. Figures of such a run should not be quoted; run it again."
        )
    say(f"everything is in {arguments.output}/")


def plan_with_splits(
    arguments: argparse.Namespace,
    graph_file: Path,
    devices: list[str],
    topology: dp.Topology,
    options: dp.Options,
) -> dp.Plan | None:
    """The plan of the step with some ops split; None where that brings nothing."""
    say("3. split the ops that hold it up, and plan again")
    split_file, plan_file = arguments.output / "graph_split.json", arguments.output / "plan_split.json"
    profile = ["profile", arguments.model, "--batch-size", str(arguments.batch_size), "--device", ",".join(devices)]
    profile += ["--steps", _PROFILED]
    call(*profile, "--split", "--times", str(graph_file), "--search", str(arguments.search), "-o", str(split_file))
    graph = dp.load_graph(split_file)
    if not any(op.origin for op in graph.ops):
        return None
    plan = dp.place(graph, topology, options, time_limit_s=arguments.time_limit, gap=0.001).plan
    plan.save(plan_file)
    call("check", str(plan_file))
    return plan


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="dlplacer.models:inception_v3")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--step", choices=("joint", "autograd"), default="joint", help="what is planned; the joint step is what is run"
    )
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--search", type=float, default=30.0, help="seconds to choose what to split; 0 splits nothing")
    parser.add_argument("--output", type=Path, default=Path("demo"))
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


def call(*arguments: str) -> None:
    """Run a command of the command line; stop the demo if it fails."""
    say(f"$ dlplacer {' '.join(arguments)}")
    code = dlplacer(arguments)
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
