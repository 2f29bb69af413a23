"""Pictures of a plan, or of a comparison. Every plot function draws on one matplotlib Axes, which it returns.

>>> from dlplacer.report.plot import plot_gantt, save_picture
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlplacer.report.page.page import html_page
    from dlplacer.report.plot.comparison import plot_comparison
    from dlplacer.report.plot.gantt import plot_gantt
    from dlplacer.report.plot.hybrid import plot_hybrid
    from dlplacer.report.plot.memory import plot_memory
    from dlplacer.report.plot.pipeline import plot_pipeline
    from dlplacer.report.plot.placement import plot_placement
    from dlplacer.report.plot.run import plot_run, save_run_picture
    from dlplacer.report.plot.save import recommended_size, save_picture

_MODULE_OF = {
    "html_page": "page",
    "plot_comparison": "comparison",
    "plot_gantt": "gantt",
    "plot_hybrid": "hybrid",
    "plot_memory": "memory",
    "plot_pipeline": "pipeline",
    "plot_placement": "placement",
    "plot_run": "run",
    "recommended_size": "save",
    "save_picture": "save",
    "save_run_picture": "run",
}

__all__ = [
    "html_page",
    "plot_comparison",
    "plot_gantt",
    "plot_hybrid",
    "plot_memory",
    "plot_pipeline",
    "plot_placement",
    "plot_run",
    "recommended_size",
    "save_picture",
    "save_run_picture",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dlplacer.report.plot' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dlplacer.report.plot.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
