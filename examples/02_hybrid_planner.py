"""When to use what: epochs measured on one device, placements solved, and the best strategy per budget.

1. A small classifier is trained as 1 to 16 workers would train it, by delayed gradient updates on this machine.
2. Inception-V3 is placed on every kind of worker that a DGX-1 can form, and with the epochs that the paper reports the
   planner finds the best use of 1 to N GPUs of such boxes.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlplacer as dp
from dlplacer.data_parallel import delayed_updates, measure_epochs
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.hybrid import (
    EpochsTable,
    HybridProblem,
    OnMachine,
    Placed,
    StatisticalEfficiency,
    WorkerLayout,
    cluster,
    fit_critical_batch,
    plan_hybrid,
    work_of,
)
from dlplacer.report.plot import plot_hybrid, save_picture

INCEPTION_V3 = EpochsTable({32: 4.0, 64: 7.0, 128: 12.0, 256: 23.0})
"""Pal et al. 2019, section 5: epochs to a loss of 6.1 by the number of GPUs; see paper_003_dlplacer.py for the 12."""

SAMPLES, MINI_BATCH, RATE = 512, 8, 0.02


def main() -> None:
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    measured_epochs(arguments.output)

    box = dp.load_topology(arguments.topology)
    graph = with_times(dp.load_graph(arguments.graph), box)
    work = work_of(graph, box.devices[0].type)
    placed = Placed(graph, work.step_s, time_limit_s=arguments.time_limit)
    degrees = [degree for degree in (2, 4, 8) if degree <= len(box.devices)]
    boxes = -(-arguments.devices // len(box.devices))
    machine = cluster(box, boxes, arguments.network) if boxes > 1 else box
    print(f"2. place {graph.name} on {', '.join(map(str, degrees))} devices of {machine.name}")
    efficiency = StatisticalEfficiency(INCEPTION_V3)
    problem = HybridProblem(
        work,
        efficiency,
        placed,
        machine,
        OnMachine(WorkerLayout(machine)),
        degrees,
        name=f"{graph.name} on {machine.name}",
    )
    plan = plan_hybrid(problem, arguments.devices)
    print(plan.to_frame().to_string(index=False, float_format="{:.3f}".format))
    print(plan)
    save_picture(arguments.output / "hybrid.png", plot_hybrid, plan)
    plan.to_frame().to_csv(arguments.output / "hybrid.csv", index=False)
    print(f"everything is in {arguments.output}/")


def measured_epochs(output: Path) -> None:
    print("1. epochs of a small classifier, as 1 to 16 workers would train it")
    measured = measure_epochs(train, [1, 2, 4, 8, 16], reached=lambda loss: loss < 0.3, max_epochs=100)
    measured.write(output / "epochs.json", name="small classifier", mini_batch=MINI_BATCH, samples=SAMPLES)
    points = [(each.workers, each.median) for each in measured.measurements if each.median is not None]
    for workers, epochs in points:
        print(f"   {workers:3d} workers: {epochs:g} epochs")
    fit = fit_critical_batch(points)
    print(
        f"   E_min {fit.minimum_epochs:.3g}, critical batch {fit.critical * MINI_BATCH:.3g} samples, "
        f"largest residual {100 * max(map(abs, fit.residuals)):.2g} %"
    )


def train(workers: int, seed: int) -> Iterator[float]:
    """What a user writes: train as so many workers would, yield the loss after every epoch."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    inputs = torch.randn(SAMPLES, 8)
    labels = (inputs[:, 0] + 0.5 * inputs[:, 1] + 0.3 * torch.randn(SAMPLES) > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * workers**0.5)

    def backward(rows: Any, factor: float) -> None:
        (factor * torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows])).backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    while True:
        delayed_updates(torch.randperm(SAMPLES).split(MINI_BATCH), workers, backward, update)
        with torch.no_grad():
            yield float(torch.nn.functional.cross_entropy(model(inputs), labels))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="inception_v3-train")
    parser.add_argument("--topology", default="dgx1-v100-4gpu", help="one box")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--network", type=float, default=12.5e9, help="bytes per second of a box's network card")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each placement")
    parser.add_argument("--output", type=Path, default=Path("demo"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
