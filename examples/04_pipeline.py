"""A model as a pipeline: every schedule beside the others, the best one as a picture and as a file that torch reads.

``python examples/04_pipeline.py [GRAPH] [TOPOLOGY] [--devices N] [--micro-batches M] [--output FOLDER]``
"""

import argparse
from pathlib import Path

import dlplacer as dp
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.planning.pipeline.pipeline_search import Search
from dlplacer.planning.pipeline.schedules import SCHEDULES, write_csv
from dlplacer.report.plot import plot_pipeline, save_picture


def main() -> None:
    """Plan, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", nargs="?", default="inception_v3-train")
    parser.add_argument("topology", nargs="?", default="dgx1-v100-4gpu")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    parsed = parser.parse_args()

    search = Search(dp.load_graph(parsed.graph), dp.load_topology(parsed.topology))
    plans = [search.plan(parsed.devices, parsed.micro_batches, schedule) for schedule in SCHEDULES]
    print(f"{'schedule':<12} {'step':>9} {'bubble':>7} {'speedup':>8}  fullest device")
    for plan in plans:
        devices = dict.fromkeys(plan.devices, 0)
        for stage in plan.stages:
            devices[stage.device] += stage.memory_bytes
        speedup = "-" if plan.speedup is None else f"{plan.speedup:.2f}x"
        fullest = format_bytes(max(devices.values()))
        bubble = f"{100 * plan.timeline.bubble:.1f} %"
        print(f"{plan.schedule:<12} {format_seconds(plan.step_s):>9} {bubble:>7} {speedup:>8}  {fullest}")

    best = min(plans, key=lambda plan: plan.step_s)
    parsed.output.mkdir(parents=True, exist_ok=True)
    save_picture(parsed.output / "pipeline.png", plot_pipeline, best)
    (parsed.output / "pipeline.csv").write_text(write_csv(best.order), encoding="utf-8")
    print(f"wrote {parsed.output / 'pipeline.png'} and pipeline.csv: {best.schedule}")


if __name__ == "__main__":
    main()
