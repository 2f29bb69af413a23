"""The pictures of ``dp.plot``: every function draws on matplotlib Axes, new ones by default, and returns them.

>>> import dlplacer as dp
>>> result = dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft")
>>> path = dp.plot.save("gantt.png", dp.plot.gantt, result)  # doctest: +SKIP
>>> axes = dp.plot.memory(result)  # in a notebook the picture appears  # doctest: +SKIP
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlplacer.api.subjects import PlanLike, TopologyLike, topology_of, whole_plan_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import refuse
from dlplacer.report.plot.pictures import PICTURES, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dlplacer.measure.run_report import Run
    from dlplacer.planning.fit.fit import Fit
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan

T = TypeVar("T")


def gantt(plan: PlanLike, ax: "Axes | None" = None, *, color_by: str = "phase") -> "Axes":
    """Devices and links over time, coloured by ``phase`` or ``module``; a line below marks the critical path."""
    return _drawn("gantt", whole_plan_of(plan), ax, color_by=color_by)


def placement(plan: PlanLike, ax: "Axes | None" = None) -> "Axes":
    """The graph, with each op as a dot in its device's colour, sized by time; a large graph shows module blocks."""
    return _drawn("placement", whole_plan_of(plan), ax)


def memory(plan: PlanLike, ax: "Axes | None" = None) -> "Axes":
    """Live memory of every device during the step, in bytes against seconds."""
    return _drawn("memory", whole_plan_of(plan), ax)


def topology(machine: TopologyLike, ax: "Axes | None" = None) -> "Axes":
    """A picture of devices, routers and links; `machine` is a `Topology`, its file, or a shipped name."""
    return _drawn("topology", topology_of(machine), ax)


def fit(found: "Fit", ax: "Axes | None" = None) -> "Axes":
    """The memory of every device with the layers that `dlplacer.fit` assigns to it."""
    return _drawn("fit", _result(found, "Fit", "fit(model, machine)"), ax)


def pipeline(plan: "PipelinePlan", ax: "Axes | None" = None) -> "Axes":
    """A picture of the schedule that `dlplacer.pipeline` found, micro-batch by micro-batch."""
    return _drawn("pipeline", _result(plan, "PipelinePlan", "pipeline(graph, topology)"), ax)


def hybrid(plan: "HybridPlan", ax: "Axes | None" = None) -> "Axes":
    """Speedup against the number of devices, from the result of `dlplacer.hybrid`."""
    return _drawn("hybrid", _result(plan, "HybridPlan", "hybrid(graph, topology, devices, epochs)"), ax)


def run(done: "Run", axes: "tuple[Axes, Axes] | None" = None) -> "tuple[Axes, Axes]":
    """The predicted step of `dlplacer.run` above the measured step, on one time axis; returns both Axes."""
    made = _result(done, "Run", "run(job, plan, devices)")
    return _drawn("run", (made.predicted, made.measured), axes)


def save(
    path: str | PathLike[str], picture: "Callable[..., Any] | str", subject: Any, *, color_by: str = "phase"
) -> Path:
    """Draw a picture at a suitable size, and write it as .png, .svg or .pdf; returns the path.

    `picture` is a function of this module or its name, such as ``"gantt"``; `subject` is its argument. Only `gantt`
    reads `color_by`. Raises InputError for an unknown picture or suffix, or if the file cannot be written.
    """
    name, names = getattr(picture, "__name__", picture), [each.name for each in PICTURES]
    if name not in names:
        raise InputError(f"there is no picture {name!r}; use one of {', '.join(names)}")
    colors = {"color_by": color_by} if name == "gantt" else {}
    save_picture(path, globals()[name], subject, **colors)
    return Path(path)


def _drawn(name: str, subject: Any, axes: T | None, **settings: str) -> T:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dlplacer.report import plot

    given = axes if isinstance(axes, tuple) else (axes,)
    fitting = len(given) == 1 + (name == "run") and all(isinstance(ax, Axes) for ax in given)
    if axes is not None and not fitting and not isinstance(axes, Figure):
        raise refuse("", "axes", axes, f"{'two matplotlib Axes in a tuple' if name == 'run' else 'an Axes'} or None")
    drawn: T = getattr(plot, f"plot_{name}")(subject, axes, **settings)
    return drawn


def _result(value: Any, name: str, call: str) -> Any:
    """The value; raises InputError unless it is the result of this call."""
    if type(value).__name__ != name:
        raise refuse("", "subject", value, f"the result of dp.{call}")
    return value
