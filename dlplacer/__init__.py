"""Where every op of a model should run, how good that plan is, and running it there.

>>> import dlplacer as dp
>>> graph = dp.load_graph("inception_v3-train")
>>> result = dp.place(graph, dp.load_topology("dgx1-v100-2gpu"), time_limit_s=10)
>>> result.status in ("optimal", "feasible")
True
"""

import importlib
from typing import TYPE_CHECKING, Any

from dlplacer.version import __version__

if TYPE_CHECKING:
    from dlplacer.check import check_plan, violations
    from dlplacer.core.errors import (
        CaptureError,
        CheckError,
        DlplacerError,
        FileFormatError,
        InfeasibleError,
        InputError,
        InternalError,
        MismatchError,
        NoPlanError,
        RunError,
    )
    from dlplacer.core.graph import Edge, Op, OpGraph, TensorSpec
    from dlplacer.core.options import Options
    from dlplacer.core.plan import Plan
    from dlplacer.core.result import Result
    from dlplacer.core.topology import Device, Link, Router, Topology
    from dlplacer.files import write_graph, write_plan, write_topology
    from dlplacer.files.load import load_graph, load_plan, load_topology
    from dlplacer.frontend import Job, Optimizer
    from dlplacer.frontend.torch import capture
    from dlplacer.measure.splitting import SplitResult, place_with_splits
    from dlplacer.planning.compare import Comparison, compare
    from dlplacer.planning.place import place
    from dlplacer.runtime import PlacedModule
    from dlplacer.runtime.placed.placed_module import apply

_HOME = {
    "dlplacer.frontend": ("Job", "Optimizer", "capture"),
    "dlplacer.check": ("check_plan", "violations"),
    "dlplacer.planning.compare": ("Comparison", "compare"),
    "dlplacer.core.errors": (
        "CaptureError",
        "CheckError",
        "DlplacerError",
        "FileFormatError",
        "InfeasibleError",
        "InputError",
        "InternalError",
        "MismatchError",
        "NoPlanError",
        "RunError",
    ),
    "dlplacer.files": ("write_graph", "write_plan", "write_topology"),
    "dlplacer.core.graph": ("Edge", "Op", "OpGraph", "TensorSpec"),
    "dlplacer.files.load": ("load_graph", "load_plan", "load_topology"),
    "dlplacer.core.options": ("Options",),
    "dlplacer.planning.place": ("place",),
    "dlplacer.core.plan": ("Plan",),
    "dlplacer.core.result": ("Result",),
    "dlplacer.runtime": ("PlacedModule", "apply"),
    "dlplacer.measure.splitting": ("SplitResult", "place_with_splits"),
    "dlplacer.core.topology": ("Device", "Link", "Router", "Topology"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CaptureError",
    "CheckError",
    "Comparison",
    "Device",
    "DlplacerError",
    "Edge",
    "FileFormatError",
    "InfeasibleError",
    "InputError",
    "InternalError",
    "Job",
    "Link",
    "MismatchError",
    "NoPlanError",
    "Op",
    "OpGraph",
    "Optimizer",
    "Options",
    "PlacedModule",
    "Plan",
    "Result",
    "Router",
    "RunError",
    "SplitResult",
    "TensorSpec",
    "Topology",
    "__version__",
    "apply",
    "capture",
    "check_plan",
    "compare",
    "load_graph",
    "load_plan",
    "load_topology",
    "place",
    "place_with_splits",
    "violations",
    "write_graph",
    "write_plan",
    "write_topology",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dlplacer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
