"""Pictures, as ``dp.plot``: every function draws on one matplotlib Axes, a new one unless it is given, and returns it.

>>> import dlplacer as dp
>>> result = dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft")
>>> path = dp.plot.save("gantt.png", dp.plot.gantt, result)  # doctest: +SKIP
>>> axes = dp.plot.memory(result)  # in a notebook the picture appears  # doctest: +SKIP
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.api.subjects import PlanLike, TopologyLike, is_run, topology_of, whole_plan_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, expect_path, expect_text, refuse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dlplacer.measure.run_report import Run
    from dlplacer.planning.compare import Comparison
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan

_COLORS = ("phase", "module")


def gantt(plan: PlanLike, ax: "Axes | None" = None, *, color_by: str = "phase") -> "Axes":
    """Devices and links over time; the line below the bars is the critical path.

    Parameters
    ----------
    plan
        A `Plan`, a `Result`, or the path of a plan file.
    color_by
        ``phase`` or ``module``.

    Raises
    ------
    InputError
        If an argument cannot be meant.
    """
    from dlplacer.report.plot.gantt import plot_gantt

    return plot_gantt(whole_plan_of(plan), _axes(ax), color_by=_color_by(color_by))


def placement(plan: PlanLike, ax: "Axes | None" = None) -> "Axes":
    """The graph, every op in the colour of its device, its area by its time; takes what `gantt` takes."""
    from dlplacer.report.plot.placement import plot_placement

    return plot_placement(whole_plan_of(plan), _axes(ax))


def memory(plan: PlanLike, ax: "Axes | None" = None) -> "Axes":
    """What is alive on every device over the step, in bytes over seconds; takes what `gantt` takes."""
    from dlplacer.report.plot.memory import plot_memory

    return plot_memory(whole_plan_of(plan), _axes(ax))


def topology(machine: TopologyLike, ax: "Axes | None" = None) -> "Axes":
    """Devices, routers and links; `machine` is a `Topology`, its file, or the name of one that ships."""
    from dlplacer.report.plot.topology import plot_topology

    return plot_topology(topology_of(machine, "machine"), _axes(ax))


def comparison(found: "Comparison", ax: "Axes | None" = None) -> "Axes":
    """The step times that `dlplacer.compare` found, as bars."""
    from dlplacer.report.plot.comparison import plot_comparison

    return plot_comparison(_comparison(found), _axes(ax))


def pipeline(plan: "PipelinePlan", ax: "Axes | None" = None) -> "Axes":
    """The schedule that `dlplacer.pipeline` found, micro-batch by micro-batch."""
    from dlplacer.report.plot.pipeline import plot_pipeline

    return plot_pipeline(_pipeline_plan(plan), _axes(ax))


def hybrid(plan: "HybridPlan", ax: "Axes | None" = None) -> "Axes":
    """Speedup over the number of devices, as `dlplacer.hybrid` found it."""
    from dlplacer.report.plot.hybrid import plot_hybrid

    return plot_hybrid(_hybrid_plan(plan), _axes(ax))


def run(done: "Run", axes: "tuple[Axes, Axes] | None" = None) -> "tuple[Axes, Axes]":
    """The predicted step above the measured one, on one time axis; returns both Axes.

    Parameters
    ----------
    done
        What `dlplacer.run` returned.
    """
    from dlplacer.report.plot.run import plot_run

    done = _run(done)
    if axes is not None and not (isinstance(axes, tuple) and len(axes) == 2 and all(map(_axes, axes))):
        raise refuse("", "axes", axes, "two matplotlib Axes in a tuple, or None")
    return plot_run(done.predicted, done.measured, axes or _two_axes(done))


def save(
    path: str | PathLike[str], picture: "Callable[..., Any] | str", subject: Any, *, color_by: str = "phase"
) -> Path:
    """Draw a picture at the size that suits it, and write it as .png, .svg or .pdf; returns the path.

    Parameters
    ----------
    picture
        A function of this module, or its name: ``"gantt"``.
    subject
        What it shows.
    color_by
        As for `gantt`.

    Raises
    ------
    InputError
        If there is no such picture, the suffix is none of these, or the file cannot be written.
    """
    name = getattr(picture, "__name__", picture)
    expect_path(path)
    expect_text("", picture=name)
    if name not in _SUBJECTS:
        raise InputError(f"there is no picture {name!r}; use one of {', '.join(_SUBJECTS)}")
    from dlplacer.report import plot

    shown = _SUBJECTS[name](subject)
    if name == "run":
        plot.save_run_picture(path, shown.predicted, shown.measured)
    else:
        settings = {"color_by": _color_by(color_by)} if name == "gantt" else {}
        plot.save_picture(path, getattr(plot, f"plot_{name}"), shown, **settings)
    return Path(path)


def _axes(ax: "Axes | None") -> "Axes | None":
    if ax is not None:
        from matplotlib.axes import Axes

        expect("", "ax", ax, Axes, "a matplotlib Axes or None")
    return ax


def _two_axes(done: "Run") -> "tuple[Axes, Axes]":
    """Those of a new pyplot figure, which a notebook displays, of the size that suits both steps."""
    from matplotlib import pyplot

    from dlplacer.report.plot.gantt import gantt_size

    (width, above), (_, below) = gantt_size(done.predicted), gantt_size(done.measured)
    ratios = {"height_ratios": (above, below)}
    _, (upper, lower) = pyplot.subplots(2, figsize=(width, above + below), layout="constrained", gridspec_kw=ratios)
    return upper, lower


def _color_by(color_by: str) -> str:
    if color_by not in _COLORS:
        raise InputError(f"color_by is {color_by!r}; use one of {', '.join(_COLORS)}")
    return color_by


def _comparison(found: "Comparison") -> "Comparison":
    from dlplacer.planning.compare import Comparison

    expect("", "found", found, Comparison, "what dp.compare(graph, topology) returns")
    return found


def _pipeline_plan(plan: "PipelinePlan") -> "PipelinePlan":
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan

    expect("", "plan", plan, PipelinePlan, "what dp.pipeline(graph, topology) returns")
    return plan


def _hybrid_plan(plan: "HybridPlan") -> "HybridPlan":
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan

    expect("", "plan", plan, HybridPlan, "what dp.hybrid(graph, topology, devices, epochs) returns")
    return plan


def _run(done: "Run") -> "Run":
    if not is_run(done):
        raise refuse("", "done", done, "what dp.run(job, plan, devices) returns")
    return done


_SUBJECTS: dict[str, Callable[[Any], Any]] = {
    "gantt": whole_plan_of,
    "placement": whole_plan_of,
    "memory": whole_plan_of,
    "topology": topology_of,
    "comparison": _comparison,
    "pipeline": _pipeline_plan,
    "hybrid": _hybrid_plan,
    "run": _run,
}
"""Name of a picture → what makes its subject of an argument."""
