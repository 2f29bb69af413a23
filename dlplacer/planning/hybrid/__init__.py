"""When to use what: step time × steps × epochs over every way to use N devices (sections 3–5 of the paper).

>>> from dlplacer.planning.hybrid import EpochsTable, HybridProblem, SpeedupTable, StatisticalEfficiency, Work, plan_hybrid
>>> efficiency = StatisticalEfficiency(EpochsTable({32: 4, 64: 7}))
>>> plan = plan_hybrid(HybridProblem(Work(step_s=0.1), efficiency, SpeedupTable({2: 1.32})), devices=64)
>>> round(plan.at(64).against_same_devices, 3)
1.155
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlplacer.planning.hybrid.clusters import cluster
    from dlplacer.planning.hybrid.communication import ClosedForm, OnMachine
    from dlplacer.planning.hybrid.epochs.critical_batch import CriticalBatch, fit_critical_batch
    from dlplacer.planning.hybrid.epochs.epochs import EpochsTable, StatisticalEfficiency
    from dlplacer.planning.hybrid.epochs.epochs_file import read_epochs
    from dlplacer.planning.hybrid.epochs.measured_epochs import delayed_updates, measure_epochs
    from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
    from dlplacer.planning.hybrid.pipelined_workers import PipelinedWorkers
    from dlplacer.planning.hybrid.placed_workers import Placed, Several, SpeedupTable, WorkerSplit
    from dlplacer.planning.hybrid.placement_task import PlacementTask, presolve
    from dlplacer.planning.hybrid.scaling_efficiency import ConstantEfficiency, RingOverhead, SerialOverhead
    from dlplacer.planning.hybrid.scaling_fit import fit_scaling
    from dlplacer.planning.hybrid.step_workload import Work, work_of
    from dlplacer.planning.hybrid.sweeps import sweep, sweep_frame
    from dlplacer.planning.hybrid.worker_layout import WorkerLayout

_HOME = {
    "clusters": ("cluster",),
    "communication": ("ClosedForm", "OnMachine"),
    "critical_batch": ("CriticalBatch", "fit_critical_batch"),
    "delayed": ("delayed_updates", "measure_epochs"),
    "efficiency": ("ConstantEfficiency", "RingOverhead", "SerialOverhead"),
    "epochs": ("EpochsTable", "StatisticalEfficiency"),
    "epochs_file": ("read_epochs",),
    "hybrid": ("HybridProblem", "plan_hybrid"),
    "layout": ("WorkerLayout",),
    "piped": ("PipelinedWorkers",),
    "placement_task": ("PlacementTask", "presolve"),
    "scaling_fit": ("fit_scaling",),
    "split": ("Placed", "Several", "SpeedupTable", "WorkerSplit"),
    "sweeps": ("sweep", "sweep_frame"),
    "work": ("Work", "work_of"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ClosedForm",
    "ConstantEfficiency",
    "CriticalBatch",
    "EpochsTable",
    "HybridProblem",
    "OnMachine",
    "PipelinedWorkers",
    "Placed",
    "PlacementTask",
    "RingOverhead",
    "SerialOverhead",
    "Several",
    "SpeedupTable",
    "StatisticalEfficiency",
    "Work",
    "WorkerLayout",
    "WorkerSplit",
    "cluster",
    "delayed_updates",
    "fit_critical_batch",
    "fit_scaling",
    "measure_epochs",
    "plan_hybrid",
    "presolve",
    "read_epochs",
    "sweep",
    "sweep_frame",
    "work_of",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dlplacer.planning.hybrid' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dlplacer.planning.hybrid.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
