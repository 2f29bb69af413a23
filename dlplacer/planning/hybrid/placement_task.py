"""Placements as tasks of a sweep."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InfeasibleError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.files.graph_file import graph_to_dict
from dlplacer.files.topology_file import topology_to_dict
from dlplacer.planning.hybrid.communication.worker_layout import WorkerLayout, signature, sub_topology
from dlplacer.planning.hybrid.placed_workers import Placed, PlaceSettings, WorkerSplit, gradient_shares, used_devices
from dlplacer.planning.hybrid.sweeps import Report, SweepRow, sweep

_NO_PLAN = (f"{InfeasibleError.__name__}:", f"{NoPlanError.__name__}:")


@dataclass(frozen=True)
class PlacementTask:
    """A graph to be placed on a machine."""

    graph: OpGraph = field(repr=False)
    topology: Topology = field(repr=False)
    settings: PlaceSettings = field(default_factory=lambda: PlaceSettings(time_limit_s=60.0, gap=0.0, workers=1))

    @property
    def name(self) -> str:
        """Graph, machine and method."""
        machine = self.topology.name or f"{len(self.topology.devices)} devices"
        return f"{self.graph.name or 'graph'} on {machine}, {self.settings.method}"

    def content(self) -> Any:
        """Everything the plan depends on."""
        given = self.settings
        settings = [given.method, given.time_limit_s, given.gap, given.seed, given.workers]
        return [graph_to_dict(self.graph), topology_to_dict(self.topology), given.options.to_dict(), settings]

    def run(self) -> dict[str, Any]:
        """Solve: what ``dlplacer solve --json`` prints, each device's share of the gradients, and how many run ops."""
        result = self.settings.place(self.graph, self.topology)
        return {
            **result.to_dict(),
            "gradient_shares": list(gradient_shares(result.plan)),
            "used": used_devices(result.plan),
        }


def presolve(
    placed: Placed,
    topology: Topology,
    devices: int,
    degrees: Sequence[int],
    executor: Executor,
    cache: str | Path | None = None,
    on_progress: Report = lambda done, total, row: None,
) -> tuple[SweepRow, ...]:
    """Solve, side by side, every placement that the planner will ask `placed` for; it then finds them solved.

    A machine for which there is no plan has no split. What failed for another reason stays unsolved: the planner meets
    the same error.

    Parameters
    ----------
    devices
        The planner's budget.
    """
    layout = WorkerLayout(topology)
    machines: dict[tuple[object, ...], Topology] = {}
    for degree in degrees:
        for count in layout.telling_counts(devices, degree):
            for worker in layout.kinds(count, degree):
                machine = sub_topology(topology, worker)
                machines.setdefault(signature(machine), machine)
    # One solver thread each: the executor keeps the cores busy.
    settings = replace(placed.settings, workers=1)
    tasks = [PlacementTask(placed.graph, machine, settings) for machine in machines.values()]
    rows = sweep(tasks, executor, cache, on_progress)
    for key, row in zip(machines, rows, strict=True):
        value = row.value
        if value is not None:
            speedup = placed.single_s / value["makespan_s"]
            shares = tuple(value["gradient_shares"])
            placed.solved[key] = WorkerSplit(speedup, "placement", 1, shares, value.get("used", 0))
        elif row.error.startswith(_NO_PLAN):
            placed.solved[key] = None
    return rows
