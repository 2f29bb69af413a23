"""The measured Gantt chart below the predicted one, on the same time axis."""

from os import PathLike
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.files.disk import write_bytes
from dlplacer.report.plot.gantt import gantt_size, plot_gantt
from dlplacer.report.plot.save import figure_bytes
from dlplacer.report.plot.style.formats import picture_format


def plot_run(predicted: Plan, measured: Plan, axes: tuple[Axes, Axes], color_by: str = "phase") -> tuple[Axes, Axes]:
    """Gantt charts of the predicted and of the measured step with the same time axis; returns their Axes.

    Neither shows a critical path: cores also spend time on handing over tensors, which no bar represents.
    """
    longest_s = max(predicted.makespan_s, measured.makespan_s)
    for plan, ax, name in zip((predicted, measured), axes, ("predicted", "measured"), strict=True):
        plot_gantt(plan, ax, color_by=color_by, mark_path=False)
        ax.set_xlim(0, longest_s or 1.0)
        title = f"{name}: {format_seconds(plan.makespan_s)} from the start of the first op to the end of the last"
        ax.set_title(title, loc="left", fontsize=10)
    return axes


def save_run_picture(path: str | PathLike[str], predicted: Plan, measured: Plan) -> None:
    """Write the picture of `plot_run`; the suffix chooses the format.

    Raises
    ------
    InputError
        If the suffix is no picture format, or the file cannot be written.
    """
    suffix = picture_format(path)
    (width, above), (_, below) = gantt_size(predicted), gantt_size(measured)
    figure = Figure(figsize=(width, above + below), layout="constrained")
    FigureCanvasAgg(figure)
    plot_run(predicted, measured, tuple(figure.subplots(2, 1, gridspec_kw={"height_ratios": (above, below)})))
    write_bytes(Path(path), figure_bytes(figure, suffix, "run"))
