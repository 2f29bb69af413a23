"""Memory over time: curves, peaks, sums and capacities."""

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from report.plot.plans import diamond, plan_of

from dlplacer.check import live_bytes
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.report.plot import plot_memory

matplotlib.use("Agg")


def drawn(plan: Plan) -> Axes:
    ax = Figure(figsize=(10, 5)).add_subplot()
    assert plot_memory(plan, ax) is ax
    return ax


def test_a_curve_per_device_from_start_to_end() -> None:
    plan = diamond()
    curves = {str(line.get_label()): line for line in drawn(plan).get_lines() if len(line.get_xdata()) > 2}
    assert list(curves) == ["a", "b"]
    for device, line in curves.items():
        levels = live_bytes(plan, device)
        assert list(line.get_xdata()) == [*(time_s for time_s, _ in levels), 11.0]
        assert list(line.get_ydata()) == [*(level for _, level in levels), levels[-1][1]]


def test_peaks_are_marked_with_their_size() -> None:
    # a: p 8 B all step, x 4 B from 0 to the end of its transfer at 5, z 3 B from 2 on: 15 B.
    # b: the copy of x, 4 B from 2 to 8, and y, 2 B from 5: 6 B.
    ax = drawn(diamond())
    assert sorted(text.get_text().strip() for text in ax.texts) == ["peak 15 B", "peak 6 B"]
    dots = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.get_lines() if line.get_marker() == "o"
    ]
    assert sorted(dots) == [(2.0, 15.0), (5.0, 6.0)]


def labels(ax: Axes) -> list[Bbox]:
    """What the figures of peaks cover, in the units of the axes."""
    ax.figure.canvas.draw()
    texts = [text for text in ax.texts if text.get_text().strip().startswith("peak")]
    assert len(texts) == 2
    return [text.get_window_extent().transformed(ax.transData.inverted()) for text in texts]


@pytest.mark.parametrize("smallest_bytes", [0, 1000])
@pytest.mark.parametrize("begin_s", [0.0, 5.0])
def test_figures_of_close_peaks_do_not_touch_and_stay_inside(smallest_bytes: int, begin_s: float) -> None:
    # x and y at once, at the left or the right edge of the picture
    ops = [Op("x", "k", 1.0, output_bytes=smallest_bytes), Op("y", "k", 1.0, output_bytes=1010), Op("z", "k", 5.0)]
    times = {name: (device, begin_s, begin_s + 1) for name, device in (("x", "a"), ("y", "b"))}
    ax = drawn(plan_of(ops, (), times | {"z": ("a", 0.0 if begin_s else 1.0, 5.0 if begin_s else 6.0)}))
    one, other = labels(ax)
    assert not one.overlaps(other)
    (_, right), (_, top) = ax.get_xlim(), ax.get_ylim()
    assert all(0 <= box.x0 < box.x1 <= right and 0 <= box.y0 < box.y1 <= top for box in (one, other))
