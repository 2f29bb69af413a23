"""A run as one HTML page."""

from collections.abc import Callable
from typing import Any

from dlplacer.core.units import format_seconds
from dlplacer.measure.run_report import Run, RunReport
from dlplacer.report.page.page import run_page


def _times(value: float) -> str:
    return f"{value:.3f}×"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


# Field of `RunReport.to_dict` → its name on the page and how it is written; a field that a run lacks is left out.
_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "predicted_s": ("predicted", format_seconds),
    "measured_s": ("measured", format_seconds),
    "prediction_error": ("error", _percent),
    "measured_speedup": ("speedup", _times),
    "predicted_speedup": ("predicted speedup", _times),
    "baseline_s": ("one device, plain PyTorch", format_seconds),
    "eager_all_cores_s": ("all cores, plain PyTorch", format_seconds),
    "plan_makespan_s": ("as planned earlier", format_seconds),
    "compiled_s": ("one device, torch.compile", format_seconds),
    "runtime_factor": ("runtime factor", _times),
    "contention_factor": ("contention factor", _times),
    "noise": ("noise of the baseline", _percent),
    "host_s": ("host, before and after the devices, not drawn", format_seconds),
    "max_abs_error": ("largest difference to plain PyTorch", "{:.3g}".format),
    "step": ("step", str),
    "steps": ("steps timed", str),
    "devices": ("devices", ", ".join),
    "replicas": ("replicas", str),
}


def page_of_run(run: Run) -> str:
    """One HTML page about a run: its predicted and its recorded step on one axis, and its figures."""
    return run_page(run.predicted, run.measured, run_figures(run.report), run.report.conclusion)


def run_figures(report: RunReport) -> list[tuple[str, str]]:
    """Name and value of the figures of a run, those first by which it is judged."""
    known = report.to_dict()
    return [(name, write(known[key])) for key, (name, write) in _FIGURES.items() if known.get(key) not in (None, "")]
